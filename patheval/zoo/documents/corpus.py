"""Code and prose that the training machine already has; read when needed, never stored."""

import hashlib
import re
import sysconfig
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from pathlib import Path
from random import Random

from patheval.zoo import leakage

_DOCSTRING = re.compile(r'"""((?:(?!""").){400,}?)"""', re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_PROSE_NAMES = ("METADATA", "LICENSE", "*.rst", "*.txt", "*.md")
_NO_WORDS = re.compile(r"[^A-Za-z\s]+")
_TEST_PACKAGES = frozenset({"lm_eval", "names", "wonderwords"})
_MIN_TEXT_CHARS = 400
_MAX_FILE_CHARS = 400_000


def is_held_out(relative_path: str) -> bool:
    """Whether a file is kept out of training, so that perplexity can be measured on it.

    Args:
        relative_path: POSIX path below the standard library or the installed packages.
    """
    return hashlib.sha256(relative_path.encode()).digest()[0] % 10 == 0


class Corpus:
    """Texts of two kinds, drawn in proportion to their length."""

    def __init__(self, code: list[str], prose: list[str]) -> None:
        """Keeps the texts and a list of their common plain words.

        Args:
            code: source files.
            prose: documents and docstrings.
        """
        self.code = code
        self.prose = prose
        self._ends = {id(texts): list(accumulate(map(len, texts))) for texts in (code, prose)}
        counts = Counter(re.findall(r"\b[a-z]{3,9}\b", "\n".join(prose)))
        self.words = [word for word, _ in counts.most_common(5000)]

    def fingerprint(self) -> str:
        """SHA-256 of all texts in order."""
        digest = hashlib.sha256()
        for text in (*self.code, *self.prose):
            digest.update(text.encode("utf-8", "surrogatepass"))
            digest.update(b"\0")
        return digest.hexdigest()

    def excerpt(self, rng: Random, texts: list[str], num_chars: int) -> str:
        """A window of at most ``num_chars`` characters that begins at a line of one text."""
        ends = self._ends[id(texts)]
        text = texts[bisect(ends, rng.randrange(ends[-1]))]
        start = rng.randrange(max(1, len(text) - num_chars // 2))
        start = text.rfind("\n", 0, start) + 1
        return text[start : start + num_chars]

    def sentences(self, rng: Random, num_chars: int) -> list[str]:
        """Consecutive sentences of prose, about ``num_chars`` characters together."""
        found: list[str] = []
        while num_chars > 0:
            excerpt = self.excerpt(rng, self.prose, num_chars)
            found += _SENTENCE_END.split(" ".join(excerpt.split()))
            num_chars -= len(excerpt) + 1
        return found


def _read(root: Path, patterns: tuple[str, ...], skipped: frozenset[str]) -> Iterator[str]:
    for path in sorted({path for pattern in patterns for path in root.rglob(pattern)}):
        relative = path.relative_to(root)
        if skipped.isdisjoint(relative.parts) and not is_held_out(relative.as_posix()):
            yield path.read_text("utf-8", errors="ignore")[:_MAX_FILE_CHARS]


def _docstrings(sources: Iterable[str]) -> Iterator[str]:
    for source in sources:
        yield from _DOCSTRING.findall(source)


def _keep(texts: Iterable[str], max_chars: int) -> list[str]:
    """New texts that hold no test format, until there are ``max_chars`` characters."""
    kept: dict[str, None] = {}
    num_chars = 0
    for text in texts:
        if len(text) < _MIN_TEXT_CHARS or text in kept or leakage.test_formats_in(text):
            continue
        kept[text] = None
        num_chars += len(text)
        if num_chars > max_chars:
            break
    return list(kept)


def _is_wordy(text: str) -> bool:
    return len(_NO_WORDS.sub("", text)) > 0.75 * len(text)


def load_installed(max_code_chars: int = 25_000_000, max_prose_chars: int = 30_000_000) -> Corpus:
    """Reads the standard library and the texts that the installed packages ship.

    Args:
        max_code_chars: about how many characters of source code to keep.
        max_prose_chars: about how many characters of prose to keep.
    """
    library, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    code = _read(library, ("*.py",), frozenset({"site-packages", "dist-packages"}))
    documents = _read(packages, _PROSE_NAMES, _TEST_PACKAGES)
    docstrings = _docstrings(_read(packages, ("*.py",), _TEST_PACKAGES))
    prose = filter(_is_wordy, chain(documents, docstrings))
    return Corpus(_keep(code, max_code_chars), _keep(prose, max_prose_chars))
