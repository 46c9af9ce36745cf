"""Values of `--model_args`, which arrive as whatever type lm-eval's parser guessed."""

import contextlib
import difflib
import math
from collections.abc import Collection, Mapping, Sequence

from patheval.errors import UnsupportedError


def integer(name: str, value: object, *, minimum: int) -> int:
    """Returns an integer given as int, as whole float (`1e3`, `2.0`) or as text.

    Args:
        name: The argument, for the message.
        value: What lm-eval passed.
        minimum: Smallest accepted value.

    Raises:
        UnsupportedError: The value is anything else or below `minimum`.
    """
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            number = float(value)
    if not number.is_integer() or number < minimum:
        raise UnsupportedError(
            f"{name} is {value!r}; pass an integer of at least {minimum} in --model_args"
        )
    return int(number)


def flag(name: str, value: object) -> bool:
    """Returns a boolean given as such or as the text `true` or `false`.

    Args:
        name: The argument, for the message.
        value: What lm-eval passed.

    Raises:
        UnsupportedError: The value is anything else.
    """
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise UnsupportedError(f"{name} is {value!r}; pass True or False in --model_args")
    return value


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Returns one of `choices`.

    Args:
        name: The argument, for the message.
        value: What lm-eval passed.
        choices: Accepted values.

    Raises:
        UnsupportedError: The value is anything else.
    """
    if value not in choices:
        raise UnsupportedError(
            f"{name} is {value!r}; pass one of {', '.join(choices)} in --model_args"
        )
    return str(value)


def refuse_unknown(arguments: Mapping[str, object], known: Collection[str]) -> None:
    """Refuses arguments that nothing reads.

    Args:
        arguments: What lm-eval passed.
        known: Names that mean something.

    Raises:
        UnsupportedError: A name is not known; the nearest one is suggested.
    """
    for name, value in arguments.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "remove it"
            raise UnsupportedError(f"{name}={value!r} in --model_args is not an argument; {hint}")
