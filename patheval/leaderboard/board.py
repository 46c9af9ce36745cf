"""A board: rows of many runs, made comparable, averaged and compared with a baseline."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from patheval.errors import ResultsError

from . import collect, curate, derive, uncertainty
from .collect import Problem, ScoreKey, score_key
from .samples import Scores
from .schema import Row
from .table import Cell, Cells, Column, column_of, distinct
from .uncertainty import Difference, Estimate


@dataclass
class Board:
    """The table and all that it was made from.

    Attributes:
        name: Name of the board.
        baseline: Model that the others are compared with; empty for none.
        rows: Every row, shown or not.
        problems: Files that gave nothing, or less than they should.
        scores: Per-prompt values behind rows.
        train_length: Length in tokens that the models were trained at; None if not told.
        num_files: Results files read.
    """

    name: str
    baseline: str
    rows: list[Row]
    problems: list[Problem] = field(default_factory=list)
    scores: dict[ScoreKey, Scores] = field(default_factory=dict)
    train_length: int | None = None
    num_files: int = 0

    @cached_property
    def models(self) -> list[str]:
        """Models with shown rows: the baseline first, then those with most rows, then by name."""
        counts = Counter(row.model for row in self.rows if row.status == "shown")
        return sorted(
            counts, key=lambda name: (name != self.baseline, -counts[name], name.casefold(), name)
        )

    @cached_property
    def columns(self) -> list[Column]:
        """Columns in reading order: by benchmark, averages before their tasks."""
        return distinct(column for _, column in self.cells)

    @cached_property
    def cells(self) -> dict[tuple[str, Column], Cell]:
        """Value of each model and column that has one."""
        tasks = _task_cells(self)
        averages = derive.derived_cells(self.models, tasks)
        return derive.ranked({**tasks, **averages, **derive.speed_cells(self.rows)})

    def cell(self, model: str, column: Column) -> Cell | None:
        """Returns the value of a model in a column, or None."""
        return self.cells.get((model, column))

    def sweep(self, benchmark: str, subtask: str) -> list[Column]:
        """Returns the columns of a benchmark's subtask that have a length, shortest first."""
        columns = [
            column
            for column in self.columns
            if column.benchmark == benchmark
            and column.subtask == subtask
            and column.length is not None
        ]
        return sorted(columns, key=lambda column: column.length or 0)


def build(
    folders: Sequence[Path],
    *,
    name: str,
    baseline: str = "",
    renamed: Mapping[str, str] | None = None,
    allow_limit: bool = False,
    train_length: int | None = None,
    num_examples: int = 3,
    progress: Callable[[Iterable[tuple[Path, str]], int], Iterable[tuple[Path, str]]] | None = None,
) -> Board:
    """Builds a board from the results files in folders.

    Args:
        folders: Where lm-eval wrote to.
        name: Name of the board.
        baseline: Model to compare with: its name, or the unambiguous last part of it.
        renamed: New names of models, by their names in the files.
        allow_limit: Show `--limit` runs, marked and not compared, instead of refusing them.
        train_length: Length in tokens that the models were trained at.
        num_examples: Answers to keep for each task.
        progress: Wraps the files, with their number, while they are read.

    Raises:
        ResultsError: No file, no row that can be shown, or no such baseline.
    """
    files = collect.find_results(folders)
    whole = collect.Collection()
    for path, label in progress(files, len(files)) if progress else files:
        one = collect.read_results(path, label, num_examples=num_examples, allow_limit=allow_limit)
        whole.rows += one.rows
        whole.scores |= one.scores
        whole.problems += one.problems
        whole.num_files += 1
    rows = curate.distinct_models(whole.rows, renamed or {})
    rows = curate.newest(rows)
    if not any(row.status == "shown" for row in rows):
        reasons = [row.reason for row in rows if row.reason] + [p.reason for p in whole.problems]
        first = f"; the first reason: {reasons[0]}" if reasons else ""
        raise ResultsError(f"none of {len(files)} results files gives a row to show{first}")
    resolved = curate.resolve_baseline(rows, baseline) if baseline else ""
    return Board(
        name=name,
        baseline=resolved,
        rows=curate.comparable(rows, resolved),
        problems=whole.problems,
        scores=whole.scores,
        train_length=train_length or curate.stated_train_length(rows),
        num_files=whole.num_files,
    )


def _estimate(row: Row) -> Estimate:
    return Estimate(row.value or 0.0, row.stderr, row.ci_low, row.ci_high, row.n)


def _task_cells(board: Board) -> Cells:
    cells = {}
    baselines = {
        column_of(row): row
        for row in board.rows
        if row.status == "shown" and row.model == board.baseline
    }
    for row in board.rows:
        if row.status != "shown":
            continue
        column = column_of(row)
        difference = None
        base = baselines.get(column)
        if base is not None and base is not row and row.is_compared and base.is_compared:
            difference = _difference(board, row, base)
        cells[row.model, column] = Cell(row, _estimate(row), difference)
    return cells


def _difference(board: Board, row: Row, base: Row) -> Difference | None:
    ours, theirs = (board.scores.get(score_key(r)) for r in (row, base))
    if ours is not None and theirs is not None and len(ours.keys) > 1:
        if ours.keys == theirs.keys:
            return uncertainty.paired_difference(ours.values, theirs.values)
        if sorted(ours.keys) == sorted(theirs.keys):
            order_ours, order_theirs = np.argsort(ours.keys), np.argsort(theirs.keys)
            return uncertainty.paired_difference(
                ours.values[order_ours], theirs.values[order_theirs]
            )
    return uncertainty.unpaired_difference(_estimate(row), _estimate(base))
