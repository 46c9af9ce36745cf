"""Values made of others: averages of tasks, summaries over lengths, speeds, and ranks."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from . import catalogue, uncertainty
from .curate import marked
from .schema import NOT_COMPARED, Row
from .table import (
    AVERAGE,
    EFFECTIVE,
    EFFECTIVE_RULER,
    EFFECTIVE_SHARE,
    GENERATION,
    RULER_THRESHOLD,
    Cell,
    Cells,
    Column,
    distinct,
)
from .uncertainty import Estimate


def derived_cells(models: Sequence[str], tasks: Cells) -> Cells:
    """Returns averages of tasks at each length, and summaries over the lengths.

    Args:
        models: Models in the order of the table.
        tasks: Cells of single tasks.
    """
    averages: Cells = {}
    lengths: dict[tuple[str, int | None], list[Column]] = defaultdict(list)
    for column in distinct(column for _, column in tasks):
        wanted = catalogue.benchmark(column.benchmark).average
        is_accuracy = column.unit == "share"
        if column.subtask in wanted and is_accuracy:
            lengths[column.benchmark, column.length].append(column)
    for (benchmark, length), columns in lengths.items():
        known = catalogue.benchmark(benchmark)
        means: dict[tuple[str, str], Sequence[str]] = {(AVERAGE, "average"): known.average}
        if known.average == catalogue.benchmark("ruler").average:
            means |= {(name, "family"): own for name, own in catalogue.RULER_FAMILIES.items()}
        for (subtask, kind), names in means.items():
            parts = [column for column in columns if column.subtask in names]
            if len(parts) < 2:
                continue
            column = Column(
                benchmark,
                subtask,
                length,
                parts[0].metric,
                unit="share",
                kind=kind,
                num_tasks=(len(parts), len(names)),
                parts=tuple(name for name in names if name in {part.subtask for part in parts}),
            )
            if any(_is_same_average(own, column) for _, own in tasks):
                continue  # Published as such.
            for model in models:
                if own := [tasks[model, part] for part in parts if (model, part) in tasks]:
                    averages[model, column] = _mean_cell(own, None, column, len(parts))
    return {**averages, **_summary_cells({**tasks, **averages})}


def _is_same_average(a: Column, b: Column) -> bool:
    return (a.kind, a.benchmark, a.length) == (b.kind, b.benchmark, b.length)


def _summary_cells(cells: Cells) -> Cells:
    sweeps: dict[str, list[Column]] = defaultdict(list)
    for column in distinct(column for _, column in cells):
        known = catalogue.benchmark(column.benchmark)
        if known.by_length and column.length is not None and column.unit == "share":
            is_score = column.kind == "average" if known.average else column.subtask == ""
            if is_score:
                sweeps[column.benchmark].append(column)
    summaries: Cells = {}
    for benchmark, columns in sweeps.items():
        columns = sorted(columns, key=lambda column: column.length or 0)
        if len(columns) < 2 or len({column.length for column in columns}) < len(columns):
            continue
        if len({column.parts for column in columns}) > 1:
            continue  # Averages of other tasks at each length say nothing about length.
        increasing = uncertainty.increasing_weights(len(columns))
        for model in dict.fromkeys(model for model, _ in cells):
            own = [cells[model, c] for c in columns if (model, c) in cells]
            if len(own) < len(columns):
                continue
            for title, weights in (
                ("mean", None),
                ("wAvg(inc)", increasing),
                ("wAvg(dec)", increasing[::-1]),
            ):
                column = _summary(benchmark, title, columns[0], "share")
                summaries[model, column] = _mean_cell(own, weights, column, len(columns))
            scores = [
                (c.length or 0, cell.estimate.value) for c, cell in zip(columns, own, strict=True)
            ]
            thresholds = {EFFECTIVE: EFFECTIVE_SHARE * own[0].estimate.value}
            if benchmark == "ruler":
                thresholds[EFFECTIVE_RULER] = RULER_THRESHOLD
            for title, threshold in thresholds.items():
                reached = uncertainty.effective_length(scores, threshold)
                if own[0].estimate.value == 0:
                    reached = None
                column = _summary(benchmark, title, columns[0], "tokens")
                value = None if reached is None else float(reached)
                row = _derived_row([cell.row for cell in own], column, value)
                estimate = Estimate(float(reached or 0), None, None, None, 0)
                summaries[model, column] = Cell(row, estimate)
    return summaries


def _summary(benchmark: str, title: str, first: Column, unit: str) -> Column:
    return Column(benchmark, title, None, first.metric, unit=unit, kind="summary")


def speed_cells(rows: Iterable[Row]) -> Cells:
    """Returns each model's speeds over all its shown runs, and the most memory that one took."""
    runs: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        # Answers that were all kept from an earlier run tell no speed.
        if row.status == "shown" and row.model_seconds and row.prompt_tokens:
            runs[row.model][row.file] = row
    cells: Cells = {}
    for model, by_file in runs.items():
        own = list(by_file.values())
        generating = [row for row in own if row.generation_seconds and row.generated_tokens]
        values = {
            "tokens read / s": _ratio(own, "prompt_tokens", "model_seconds"),
            GENERATION: _ratio(generating, "generation_seconds", "generated_tokens"),
            "peak GPU memory, GiB": max(
                (row.peak_memory_bytes / 2**30 for row in own if row.peak_memory_bytes),
                default=None,
            ),
        }
        for title, value in values.items():
            if value is not None:
                is_rate = title.endswith("/ s")
                value *= 1000 if title.startswith("ms") else 1
                column = Column("speed", title, None, title, higher_is_better=is_rate, kind="speed")
                row = _derived_row(own, column, value)
                # The other marks are about scores.
                marks = tuple(mark for mark in row.marks if mark in NOT_COMPARED)
                row = replace(row, platform=own[0].platform, marks=marks)
                cells[model, column] = Cell(row, Estimate(value, None, None, None, len(own)))
    return cells


def _ratio(rows: Sequence[Row], above: str, below: str) -> float | None:
    total = sum(getattr(row, below) for row in rows)
    return sum(getattr(row, above) for row in rows) / total if total else None


def _mean_cell(
    cells: Sequence[Cell], weights: Sequence[float] | None, column: Column, expected: int
) -> Cell:
    estimate = uncertainty.weighted_mean([cell.estimate for cell in cells], weights)
    row = _derived_row([cell.row for cell in cells], column, estimate.value)
    if len(cells) < expected:
        row = marked(row, "incomplete")
    row = replace(
        row,
        stderr=estimate.stderr,
        ci_low=estimate.low,
        ci_high=estimate.high,
        n=estimate.n,
    )
    differences = [cell.difference for cell in cells if cell.difference is not None]
    difference = None
    if row.is_compared and len(differences) == expected:
        difference = uncertainty.weighted_difference(differences, weights)
    return Cell(row, estimate, difference)


def _derived_row(rows: Sequence[Row], column: Column, value: float | None) -> Row:
    """A row for a value made of others; it keeps the run's record if there was one run only."""
    first = rows[0]
    one_run = len({row.file for row in rows}) == 1
    base = Row(
        model=first.model,
        attention=first.attention,
        checkpoint_sha256=first.checkpoint_sha256,
        model_type=first.model_type,
        dtype=first.dtype,
        benchmark="",
        task="",
        metric="",
        value=None,
    )
    return replace(
        first if one_run else base,
        benchmark=column.benchmark,
        subtask=column.subtask,
        length=column.length,
        task="",
        tasks=tuple(dict.fromkeys(task for row in rows for task in row.tasks or (row.task,))),
        metric=column.metric,
        filter="none",
        unit=column.unit,
        value=value,
        stderr=None,
        ci_low=None,
        ci_high=None,
        n=sum(row.n for row in rows),
        n_total=None,
        marks=tuple(dict.fromkeys(mark for row in rows for mark in row.marks)),
        task_version="",
        task_hash="",
        tokens_min=None,
        tokens_max=None,
        num_empty=None,
    )


def ranked(cells: Cells) -> Cells:
    """Returns the cells with each column's best and second best of what is compared marked."""
    by_column: dict[Column, list[tuple[str, Cell]]] = defaultdict(list)
    for (model, column), cell in cells.items():
        if cell.row.is_compared and column.is_ranked:
            by_column[column].append((model, cell))
    result = dict(cells)
    for column, own in by_column.items():
        if len(own) < 2:
            continue
        values = sorted({cell.estimate.value for _, cell in own}, reverse=column.higher_is_better)
        for model, cell in own:
            rank = values.index(cell.estimate.value) + 1
            if rank <= 2 and len(values) > 1 and cell.row.value is not None:
                result[model, column] = replace(cell, rank=rank)
    return result
