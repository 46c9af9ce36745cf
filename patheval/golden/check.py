"""Replay of golden files."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from patheval.golden.case import Case, GoldenError
from patheval.golden.registry import ADAPTERS, replay_function

_REQUIRED = ("benchmark", "task", "kind")
# What values of another type or number than a case has make a replay raise.
_MISFITS = (ArithmeticError, AttributeError, IndexError, TypeError, ValueError)


class Outcome(NamedTuple):
    """What came out of one case.

    Attributes:
        case: The case.
        failures: One line for each comparison that failed; none if the case passed.
    """

    case: Case
    failures: tuple[str, ...]


def read_cases(files: Sequence[Path]) -> list[Case]:
    """Reads the cases of golden files, in order.

    Args:
        files: Files of one JSON object per line.

    Raises:
        GoldenError: A file cannot be read or holds no case, or a line is no case.
    """
    return [case for file in files for case in _read(file)]


def replay(case: Case) -> Outcome:
    """Replays one case; one that lacks what its kind needs has failed."""
    function = replay_function(case["benchmark"])
    if function is None:
        known = ", ".join(sorted(ADAPTERS))
        return Outcome(case, (f"no benchmark {case['benchmark']!r}; there are {known}",))
    try:
        checks = list(function(case))
    except GoldenError as error:
        return Outcome(case, (str(error),))
    except KeyError as error:
        return Outcome(case, (f"the case has no {error}",))
    except _MISFITS as error:
        return Outcome(
            case, (f"a field is not as recorded cases have it ({type(error).__name__}: {error})",)
        )
    if not checks:
        return Outcome(case, (f"{case['benchmark']} cannot replay the kind {case['kind']!r}",))
    return Outcome(case, tuple(str(check) for check in checks if not check.passed))


def _read(file: Path) -> Iterator[Case]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GoldenError(f"{file} cannot be read ({error}); pass a golden .jsonl file") from error
    # Not splitlines: JSON strings may hold other line separators.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise GoldenError(f"{file} holds no case; pass a golden .jsonl file")
    for number, line in lines:
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise GoldenError(f"line {number} of {file} is no JSON ({error}); mend it") from error
        values = fields if isinstance(fields, dict) else {}
        missing = [name for name in _REQUIRED if not isinstance(values.get(name), str)]
        if missing:
            raise GoldenError(
                f"line {number} of {file} is no case: it has no text as {' and '.join(missing)}; "
                "pass a golden .jsonl file"
            )
        yield Case(fields, file, number)
