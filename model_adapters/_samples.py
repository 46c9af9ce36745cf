"""Keeps prompts out of the samples files where they stand already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lm_eval.api.instance import Instance

from patheval.samplefile import reference

# Shorter texts are left alone: they are easier to read in place.
_MIN_CHARACTERS = 4096


class ReferringText(str):
    """A text with references, which hashes like the whole: lm-eval hashes `text.encode()`.

    Attributes:
        whole: The text without references.
    """

    whole: str

    def __new__(cls, shortened: str, whole: str) -> ReferringText:
        """Makes the shortened text."""
        self = super().__new__(cls, shortened)
        self.whole = whole
        return self

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        """Encodes the whole text."""
        return self.whole.encode(*args, **kwargs)


def refer_to_repeated_prompts(requests: Iterable[Instance]) -> None:
    """Replaces long contexts that the sample holds elsewhere, once they have been answered.

    Args:
        requests: lm-eval's requests; changed in place.
    """
    first_of: dict[tuple[object, object, str], int] = {}
    for request in requests:
        context, *rest = request.args
        if isinstance(context, ReferringText) or len(context) < _MIN_CHARACTERS:
            continue
        shortened = context
        owner = (request.task_name, request.doc_id, context)
        if first_of.setdefault(owner, request.idx) != request.idx:
            shortened = reference(f"request {first_of[owner]}", context)
        elif isinstance(request.doc, dict):
            for name, value in request.doc.items():
                is_long = isinstance(value, str) and len(value) >= _MIN_CHARACTERS
                if is_long and value in shortened:
                    shortened = shortened.replace(value, reference(f"doc.{name}", value), 1)
        if shortened != context:
            request.arguments = (ReferringText(shortened, context), *rest)
