"""The board as one page without any request to a network: data, style and script are inside."""

import json
import math
import re
import shlex
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from . import catalogue
from .board import Board
from .collect import score_key
from .schema import MARKS, NOT_COMPARED, Row
from .table import Cell, Column
from .tables import main_columns, sample_sizes, used_marks

NUM_DEPTHS = 10
_MOST_EXAMPLE_BYTES = 4_000_000


def write_page(board: Board, path: Path) -> None:
    """Writes the page.

    Args:
        board: The board.
        path: The HTML file.
    """
    assets = files("patheval.leaderboard") / "assets"
    page = (assets / "page.html").read_text(encoding="utf-8")
    # In JSON inside HTML, only "<" could end the script element.
    data = json.dumps(page_data(board), ensure_ascii=False, separators=(",", ":"))
    contents = {
        "TITLE": _escape(board.name),
        "STYLE": (assets / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": (assets / "page.js").read_text(encoding="utf-8"),
        "DATA": data.replace("<", "\\u003c"),
    }
    page = re.sub("%%([A-Z]+)%%", lambda match: contents[match.group(1)], page)
    path.write_text(page, encoding="utf-8")


def page_data(board: Board) -> dict[str, Any]:
    """Returns what the page's script reads.

    Args:
        board: The board.

    Returns:
        `models`, `columns` and `runs` as lists; `cells[model][column]` as None or
        [value, stderr, low, high, n, rank, marks, run, difference, facts, is not compared], the
        value None where no length reaches a threshold;
        `examples` by "model,column"; `heat` maps of depth by length; `positions` as the function
        of that name gives them.
    """
    tasks: dict[str, set[str]] = defaultdict(set)
    first_rows: dict[str, Row] = {}
    for row in board.rows:
        if row.status != "recomputed":
            tasks[row.file].add(row.task)
        if row.status == "shown":
            first_rows.setdefault(row.model, row)
    runs: dict[str, int] = {}
    run_list: list[dict[str, Any]] = []
    main = {column for group in _groups(board).values() for column in main_columns(group)}
    cells, examples = [], {}
    for i, model in enumerate(board.models):
        line: list[Any] = []
        for j, column in enumerate(board.columns):
            cell = board.cell(model, column)
            if cell is None:
                line.append(None)
                continue
            if cell.row.file and cell.row.file not in runs:
                runs[cell.row.file] = len(run_list)
                run_list.append(_run(cell.row, tasks[cell.row.file]))
            line.append(_cell(cell, runs.get(cell.row.file, -1)))
            if shown := _examples(board, cell.row):
                examples[f"{i},{j}"] = shown
        cells.append(line)
    return {
        "name": board.name,
        "baseline": board.baseline,
        "trainLength": board.train_length,
        "numFiles": board.num_files,
        "published": all(row.kind == "published" for row in board.rows),
        "marks": {mark: MARKS[mark] for mark in used_marks(board)},
        "sizes": sample_sizes(board),
        "models": [_model(first_rows[model]) for model in board.models],
        "columns": [_column(column, column in main) for column in board.columns],
        "cells": cells,
        "runs": run_list,
        "examples": _within_budget(examples),
        "heat": heat_maps(board),
        "positions": positions(board),
        "hidden": [
            [row.model, row.task, row.metric, row.status, row.reason, row.file]
            for row in board.rows
            if row.status in ("refused", "superseded")
        ],
        "problems": [[problem.file, problem.reason] for problem in board.problems],
    }


def _groups(board: Board) -> dict[str, list[Column]]:
    groups: dict[str, list[Column]] = defaultdict(list)
    for column in board.columns:
        groups[column.group].append(column)
    return groups


def _model(row: Row) -> dict[str, Any]:
    return {"name": row.model, "attention": row.attention, "type": row.model_type}


def _column(column: Column, is_main: bool) -> dict[str, Any]:
    return {
        "group": column.group,
        "title": column.title,
        "benchmark": column.benchmark,
        "subtask": column.subtask,
        "length": column.length,
        "label": catalogue.column_label(column.benchmark, column.length),
        "metric": column.metric,
        "unit": column.unit,
        "kind": column.kind,
        "share": column.share_of_tasks,
        "parts": " ".join(column.parts),
        "about": column.definition,
        "up": column.higher_is_better,
        "main": is_main,
    }


def _cell(cell: Cell, run: int) -> list[Any]:
    estimate, difference, row = cell.estimate, cell.difference, cell.row
    delta = None
    if difference is not None:
        delta = [
            _round(difference.value),
            _round(difference.stderr),
            _round(difference.low),
            _round(difference.high),
            _round(difference.p_value),
            difference.method,
        ]
    own = {
        "source": row.source,
        "task": row.task,
        "tasks": row.tasks,
        "version": row.task_version,
        "hash": row.task_hash[:16],
        "tokens": [row.tokens_min, row.tokens_max],
        "total": row.n_total,
        "empty": row.num_empty,
        "fewshot": row.num_fewshot,
        "seed": row.data_seed,
        "tokenizer": row.tokenizer,
        "filter": row.filter if row.filter != "none" else "",
    }
    return [
        # Unrounded, so that one decimal on the page is that of every other table.
        row.value,
        _round(estimate.stderr),
        _round(estimate.low),
        _round(estimate.high),
        estimate.n,
        cell.rank,
        list(row.marks),
        run,
        delta,
        {key: value for key, value in own.items() if value not in (None, "", (), [None, None])},
        int(not NOT_COMPARED.isdisjoint(row.marks)),
    ]


def _run(row: Row, tasks: set[str]) -> dict[str, Any]:
    shown = {
        "file": row.file,
        "command": _command(row, sorted(tasks)),
        "began": row.date,
        "seconds": None if row.seconds is None else round(row.seconds, 1),
        "seconds in the model": _round(row.model_seconds),
        "tokens read": row.prompt_tokens,
        "tokens generated": row.generated_tokens,
        "commit": row.commit,
        "versions": ", ".join(f"{key} {value}" for key, value in row.versions.items()),
        "device": row.platform,
        "dtype": row.dtype,
        "weights (SHA-256)": row.checkpoint_sha256,
        "max_length": row.max_length,
        "overlength": row.overlength,
        "prompts cut": row.num_truncated,
        "prompts left out": row.num_skipped,
    }
    return {key: value for key, value in shown.items() if value not in (None, "")}


def _command(row: Row, tasks: list[str]) -> str:
    arguments = json.loads(row.model_args or "{}")
    pairs = ",".join(f"{key}={value}" for key, value in arguments.items())
    listed = ",".join(tasks[:20]) + (",..." if len(tasks) > 20 else "")
    words = ["lm_eval", "--model", row.model_type or "?", "--model_args", pairs, "--tasks", listed]
    if row.metadata:
        words += ["--metadata", row.metadata]
    return shlex.join(words) + " --log_samples --output_path results"


def _examples(board: Board, row: Row) -> list[list[Any]]:
    own = board.scores.get(score_key(row))
    if own is None:
        return []
    return [[e.prompt_end, e.target, e.answer, e.score] for e in own.examples]


def _within_budget(examples: dict[str, list[list[Any]]]) -> dict[str, list[list[Any]]]:
    """Keep as many examples of each cell as a page of a few megabytes can hold."""
    while examples and len(json.dumps(examples)) > _MOST_EXAMPLE_BYTES:
        most = max(map(len, examples.values()))
        examples = {key: shown[: most - 1] for key, shown in examples.items() if most > 1}
    return examples


def heat_maps(board: Board) -> list[dict[str, Any]]:
    """Returns mean scores by length and by the answer's true place in the prompt.

    Args:
        board: The board.

    Returns:
        For each task `group`, `subtask`, `lengths` as labels, and `models`: by the model's index
        and length, [mean score, number of prompts] for each tenth of the depth.
    """
    cells: dict[tuple[str, str], dict[int, dict[str, list[tuple[float, int]]]]] = {}
    for model_index, model in enumerate(board.models):
        for column in board.columns:
            cell = board.cell(model, column)
            if cell is None or column.length is None or column.unit != "share":
                continue
            own = board.scores.get(score_key(cell.row))
            if own is None or not np.isfinite(own.depths).all():
                continue
            depth = own.depths[:, 0] / own.depths[:, 1]
            place = np.minimum((depth * NUM_DEPTHS).astype(int), NUM_DEPTHS - 1)
            if len(set(place)) < 2:
                continue
            counts = np.bincount(place, minlength=NUM_DEPTHS)
            sums = np.bincount(place, own.values, minlength=NUM_DEPTHS)
            key = (column.group, column.subtask)
            label = catalogue.length_label(column.length)
            cells.setdefault(key, {}).setdefault(model_index, {})[label] = [
                (round(float(s / n), 4) if n else -1.0, int(n))
                for s, n in zip(sums, counts, strict=True)
            ]
    lengths = {
        catalogue.length_label(column.length): column.length or 0 for column in board.columns
    }
    return [
        {
            "group": group,
            "subtask": subtask,
            "lengths": sorted(
                {x for own in by_model.values() for x in own}, key=lengths.__getitem__
            ),
            "models": {str(index): own for index, own in by_model.items()},
        }
        for (group, subtask), by_model in cells.items()
    ]


def positions(board: Board) -> list[dict[str, Any]]:
    """Returns the perplexity by position in the text, for each corpus.

    Args:
        board: The board.

    Returns:
        For each corpus `title`, `ticks` as [tokens, label], and `models`: by the model's index,
        [tokens, perplexity, low, high] for each bucket of tokens, named by its end. Of the lengths
        that the texts were cut to, the one that most models have, and of those the longest.
    """
    found: dict[tuple[str, str], dict[int, dict[str, dict[int, Row]]]] = {}
    for row in board.rows:
        end = catalogue.bucket_end(row.metric)
        if end is None or row.status not in ("shown", "secondary") or row.value is None:
            continue
        corpus = found.setdefault((row.benchmark, row.subtask), {})
        corpus.setdefault(row.length or 0, {}).setdefault(row.model, {})[end] = row
    plots = []
    for (benchmark, subtask), by_length in found.items():
        length, by_model = max(by_length.items(), key=lambda item: (len(item[1]), item[0]))
        ends = sorted({end for own in by_model.values() for end in own})
        title = f"{catalogue.benchmark(benchmark).title} {subtask} by position"
        plots.append(
            {
                "title": f"{title}, texts of {catalogue.length_label(length)}",
                "ticks": [[end, catalogue.length_label(end)] for end in ends],
                "models": {
                    str(index): [
                        [end, *_perplexity(own)] for end, own in sorted(by_model[model].items())
                    ]
                    for index, model in enumerate(board.models)
                    if model in by_model
                },
            }
        )
    return plots


def _perplexity(row: Row) -> list[float | None]:
    return [
        None if nll is None or nll > 700 else _round(math.exp(nll))
        for nll in (row.value, row.ci_low, row.ci_high)
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
