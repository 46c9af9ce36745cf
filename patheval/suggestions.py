"""The names that a misspelt one may have meant."""

import difflib
from collections.abc import Collection


def did_you_mean(name: str, known: Collection[str], *, cutoff: float = 0.6) -> str:
    """A question that names the nearest known names, with a space behind it, or "".

    Args:
        name: What was given.
        known: What there is.
        cutoff: Least similarity, from 0 to 1.
    """
    near = difflib.get_close_matches(name, known, n=2, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}? " if near else ""
