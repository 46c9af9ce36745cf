"""What changed between two boards: for CI of model training, and before publishing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from patheval.errors import ResultsError

from . import schema, scorefile
from .board import Board
from .collect import ScoreKey, score_key
from .curate import comparable
from .samples import Scores
from .schema import Row
from .table import Cell, Column
from .uncertainty import Difference
from .write import ROWS

Kind = Literal["new", "gone", "better", "worse", "within noise", "same", "not comparable"]

UNMOVED: tuple[Kind, ...] = ("same", "within noise")
"""Kinds of values that did not move."""

_BEFORE, _AFTER = "before", "after"


@dataclass(frozen=True)
class Change:
    """One value of two boards.

    Attributes:
        model: The model, by its name in the second board.
        column: The column.
        kind: "better" and "worse" are moves beyond the asked number of standard errors, "within
            noise" smaller ones, and "same" is an equal value; "not comparable" has reasons in
            `marks`.
        before: Value in the first board, or None.
        after: Value in the second board, or None.
        difference: After minus before, if comparable.
        marks: Why it is not comparable.
    """

    model: str
    column: Column
    kind: Kind
    before: float | None
    after: float | None
    difference: Difference | None = None
    marks: tuple[str, ...] = ()


def compare(
    first: Path, second: Path, *, sigmas: float, models: Mapping[str, str] | None = None
) -> list[Change]:
    """Compares two boards, prompt by prompt where both hold the prompts' scores.

    Args:
        first: Folder of the earlier board.
        second: Folder of the later board.
        sigmas: Standard errors beyond which a difference counts as a move.
        models: Names in the first board and in the second, of models to compare. By default
            equal names; two boards of one model each compare those.

    Raises:
        ResultsError: A folder is no board, there is no pair of models, or `sigmas` is negative or
            not finite.
    """
    if not 0 <= sigmas < math.inf:
        raise ResultsError(f"--sigmas is {sigmas}; pass a number from 0 on, such as 2")
    sides = [_read(folder) for folder in (first, second)]
    names = [sorted({row.model for row in rows}) for rows, _ in sides]
    pairs = dict(models or {})
    for side, wanted in zip(names, (list(pairs), list(pairs.values())), strict=True):
        if unknown := sorted(set(wanted) - set(side)):
            raise ResultsError(f"no model {unknown[0]} is on the board; it has {', '.join(side)}")
    if not pairs:
        pairs = {name: name for name in names[0] if name in names[1]}
    if not pairs and len(names[0]) == len(names[1]) == 1:
        pairs = {names[0][0]: names[1][0]}
    if not pairs:
        raise ResultsError(
            f"the boards share no model ({', '.join(names[0])} and {', '.join(names[1])}); "
            "pass --model BEFORE=AFTER"
        )
    changes = []
    for before, after in sorted(pairs.items()):
        changes += _compare_model(after, _merged(before, after, sides), sigmas)
    return changes


def regressions(changes: list[Change]) -> list[Change]:
    """Returns the changes for the worse."""
    return [change for change in changes if change.kind == "worse"]


_Side = tuple[list[Row], dict[scorefile.StoredKey, scorefile.StoredScores]]


def _read(folder: Path) -> _Side:
    rows = [row for row in schema.read_json_lines(folder / ROWS) if row.status == "shown"]
    return rows, scorefile.read(folder)


def _merged(before: str, after: str, sides: list[_Side]) -> Board:
    """One board of two models, named before and after, with the first as baseline."""
    merged: list[Row] = []
    scores: dict[ScoreKey, Scores] = {}
    for name, model, (rows, stored) in zip((_BEFORE, _AFTER), (before, after), sides, strict=True):
        for row in rows:
            if row.model != model:
                continue
            marks = tuple(mark for mark in row.marks if mark not in _RELATIVE_MARKS)
            own = replace(row, model=name, file=f"{name}/{row.file}", marks=marks)
            merged.append(own)
            kept = stored.get((row.model, row.task, row.metric, row.filter))
            if kept is not None:
                keys = tuple(f"{kept.prompts} {i:08d}" for i in range(len(kept.values)))
                unknown = np.full((len(kept.values), 2), np.nan)
                scores[score_key(own)] = Scores(keys, kept.values, unknown, ())
    return Board("", _BEFORE, comparable(merged, _BEFORE), scores=scores)


# Against other models of their board; here they are judged anew against each other.
_RELATIVE_MARKS = {
    *("other-version", "other-prompts", "other-fewshot", "other-length", "max-length"),
}


def _compare_model(model: str, board: Board, sigmas: float) -> list[Change]:
    changes = []
    for column in board.columns:
        if column.kind == "speed" or column.unit == "tokens":
            continue
        old, new = board.cell(_BEFORE, column), board.cell(_AFTER, column)
        kind, marks = _kind(old, new, column, sigmas)
        changes.append(
            Change(
                model,
                column,
                kind,
                old.estimate.value if old else None,
                new.estimate.value if new else None,
                new.difference if new else None,
                marks,
            )
        )
    return changes


def _kind(
    old: Cell | None, new: Cell | None, column: Column, sigmas: float
) -> tuple[Kind, tuple[str, ...]]:
    if old is None:
        return "new", ()
    if new is None:
        return "gone", ()
    if new.difference is None:
        return "not comparable", tuple(dict.fromkeys((*old.row.marks, *new.row.marks)))
    gain = new.difference.value if column.higher_is_better else -new.difference.value
    # Averages of equal values may differ in their last bits.
    if math.isclose(gain, 0, abs_tol=1e-12):
        return "same", ()
    if abs(gain) <= sigmas * new.difference.stderr:
        return "within noise", ()
    return ("better" if gain > 0 else "worse"), ()
