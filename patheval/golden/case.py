"""One recorded case, and what comes out of its replay."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patheval.errors import PathEvalError

_SHOWN_CHARS = 40


class GoldenError(PathEvalError):
    """A golden file that cannot be replayed as it stands."""


@dataclass(frozen=True)
class Case:
    """One line of a golden file.

    Attributes:
        fields: The line's fields; `benchmark`, `task` and `kind` are always there.
        file: The golden file.
        line: Number of the line, from 1.
    """

    fields: Mapping[str, Any]
    file: Path
    line: int

    def __getitem__(self, name: str) -> Any:
        """Returns a field.

        Raises:
            GoldenError: The line has no such field.
        """
        if name not in self.fields:
            raise GoldenError(
                f"line {self.line} of {self.file} has no field {name!r}; it has "
                f"{', '.join(self.fields)}"
            )
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a field, or `default` where the line has none."""
        return self.fields.get(name, default)

    @property
    def name(self) -> str:
        """The case's id, or its place where it has none."""
        return str(self.get("id", f"{self.file.name}:{self.line}"))

    def input_file(self, name: str) -> Path:
        """Returns a file of the folder `inputs` beside the golden file.

        Raises:
            GoldenError: It is not there.
        """
        path = self.file.parent / "inputs" / name
        if not path.is_file():
            raise GoldenError(f"{self.name} needs {path}, which is missing; put it there")
        return path


@dataclass(frozen=True)
class Check:
    """One comparison of what was recorded with what patheval gives.

    Attributes:
        what: What is compared, such as `prompt`.
        expected: The recorded value; numbers anywhere in it are compared within 1e-9.
        got: patheval's value.
        reason: Why patheval differs on purpose, if it does; shown with the failure.
    """

    what: str
    expected: object
    got: object
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether both values are equal."""
        return _equal(self.expected, self.got)

    def __str__(self) -> str:
        """Says where the values differ, in one line."""
        expected, got = _excerpts(self.expected, self.got)
        reason = f" (on purpose: {self.reason})" if self.reason else ""
        return f"{self.what}: expected {expected}, got {got}{reason}"


def _equal(expected: object, got: object) -> bool:
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return expected.keys() == got.keys() and all(_equal(expected[k], got[k]) for k in expected)
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        return len(expected) == len(got) and all(map(_equal, expected, got))
    return expected == got


def _excerpts(expected: object, got: object) -> tuple[str, str]:
    if not (isinstance(expected, str) and isinstance(got, str)):
        return repr(expected), repr(got)
    pairs = enumerate(zip(expected, got, strict=False))
    shorter = min(len(expected), len(got))
    start = next((i for i, (left, right) in pairs if left != right), shorter)
    if max(len(expected), len(got)) <= 2 * _SHOWN_CHARS:
        return repr(expected), repr(got)
    shown = slice(max(0, start - _SHOWN_CHARS // 2), start + _SHOWN_CHARS)
    return f"{expected[shown]!r} around character {start}", repr(got[shown])
