"""Essays as RULER's haystack: real ones, or plays in their place."""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from patheval.errors import UnsupportedError

from ..generation import Loaded
from ..sources import SourceFile, data_folder
from ..texts import plays, sentence_starts, texts_sha256

ESSAYS = SourceFile(
    name="Paul Graham's essays, RULER's haystack",
    folder="baber/paul_graham_essays",
    path="essays.parquet",
    revision="792d672b77d1a67720f7e9820d646358fc18792e",
    sha256="825448033be010042ffd6fc77c32bbcab61f2ef63196f0fc4bfbf5b388a1660e",
)
# What RULER's own script makes of the essays; nobody hosts it. Taken first in a data folder.
RULER_ESSAYS = SourceFile(
    name="RULER's PaulGrahamEssays.json",
    folder="ruler",
    path="PaulGrahamEssays.json",
    sha256="8d31e1b660e0f2180bcca6d238e18f77921df9d158611582b860da1762b6d3dd",
)

# About as many words as the essays have.
_NUM_PLAYS = 12


class Haystack:
    """Words of a text, which starts over where it ends.

    Args:
        one_copy: The words of one copy.
    """

    def __init__(self, one_copy: Sequence[str]) -> None:
        self.one_copy = one_copy
        self._starts = sentence_starts(one_copy)

    def words(self, start: int, stop: int) -> list[str]:
        """Returns the words from position `start` up to `stop`."""
        size = len(self.one_copy)
        copies: list[str] = []
        while start < stop:
            offset = start % size
            part = self.one_copy[offset : offset + stop - start]
            copies += part
            start += len(part)
        return copies

    def num_sentences(self, num_words: int) -> int:
        """Returns the sentences of the first `num_words` words, a cut one included."""
        copies, rest = divmod(num_words, len(self.one_copy))
        return copies * len(self._starts) + bisect_left(self._starts, rest)

    def sentence_start(self, sentence: int) -> int:
        """Returns the position of the word that begins a sentence, counted from 0."""
        copies, rest = divmod(sentence, len(self._starts))
        return copies * len(self.one_copy) + self._starts[rest]


def essays(metadata: Mapping[str, Any]) -> Loaded:
    """Loads the essays: RULER's own file from the data folder, else the hub's copy.

    Args:
        metadata: The task's metadata.

    Returns:
        The haystack, and the SHA-256 of the file.

    Raises:
        PrerequisiteError: The essays are missing.
        UnsupportedError: They have other content, or no words.
    """
    own = RULER_ESSAYS.is_in(data_folder(metadata))
    file = (RULER_ESSAYS if own else ESSAYS).fetch(metadata)
    return Loaded(_read(file.path, file.sha256), file.sha256)


def essays_offline(metadata: Mapping[str, Any]) -> Loaded:
    """Loads the plays that stand in for the essays.

    Raises:
        PrerequisiteError: The package that holds them is missing.
    """
    del metadata
    return _plays()


@cache
def _plays() -> Loaded:
    chosen = plays()[:_NUM_PLAYS]
    words = " ".join(play.content for play in chosen).split()
    return Loaded(Haystack(words), texts_sha256(chosen))


@cache
def _read(path: Path, sha256: str) -> Haystack:
    del sha256  # Part of the key.
    if path.suffix == ".json":
        text = str(json.loads(path.read_text(encoding="utf-8"))["text"])
    else:
        from datasets import Dataset

        text = " ".join(Dataset.from_parquet(str(path))["text"])
    words = text.split()
    if not words:
        raise UnsupportedError(f"{path} holds no words; put the essays there")
    return Haystack(words)
