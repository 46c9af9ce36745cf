"""The texts whose perplexity is measured: books, code, stories, and their stand-ins."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..sources import SourceFile, SourceRows
from ..texts import Text, library_code, plays, texts_sha256

# Files of code and plays are joined until a text has so many characters: 8 for each of 65,536
# tokens, which no tokenizer gets by with.
JOINED_CHARS = 524_288
_MAX_JOINED = 60

PG19 = SourceRows(
    name="the PG-19 test books",
    repository="emozilla/pg19-test",
    revision="c5e39bf32e33f9111323aa68d7d9000d22722035",
    split="test",
)
CODEPARROT = SourceRows(
    name="CodeParrot's validation files",
    repository="codeparrot/codeparrot-clean-valid",
    revision="4db92d2ec0c1b4c41eeb439cfae16854511d9dcd",
    split="train",
    columns=("content",),
)
# Full texts are repeated for each question; three of the eight test files hold enough of them.
NARRATIVEQA = tuple(
    SourceFile(
        name="NarrativeQA's test stories",
        folder="deepmind/narrativeqa",
        path=f"data/test-0000{number}-of-00008.parquet",
        sha256=sha256,
        revision="2e643e7363944af1c33a652d1c87320d0871c4e4",
    )
    for number, sha256 in (
        (0, "638fe830caab599fd40333b5c6783a83e12e431de35c9dde730d329596456f66"),
        (1, "51acc457d81b38e4cfb048436a239fe415aafa9c559577456720774c0cc5b407"),
        (4, "c69949be3fe1d57f1171f929f18646eb99410784162b15632e778085a15abb79"),
    )
)


class LoadedTexts(NamedTuple):
    """Texts and the identity of their source.

    Attributes:
        texts: The texts, in the order of the source.
        sha256: SHA-256 of the source, in hexadecimal digits.
    """

    texts: tuple[Text, ...]
    sha256: str


def join_files(files: Iterable[Text]) -> Iterator[Text]:
    """Joins files, in their order and with a blank line between two, to long texts.

    A text is complete when it has `JOINED_CHARS` characters; an incomplete last one is left out.
    """
    parts: list[str] = []
    num_chars = number = 0
    for file in files:
        parts.append(file.content)
        num_chars += len(file.content) + 2
        if num_chars >= JOINED_CHARS:
            yield Text(str(number), "\n\n".join(parts))
            parts, num_chars, number = [], 0, number + 1


def pg19(metadata: Mapping[str, Any]) -> LoadedTexts:
    """Loads the 100 test books of PG-19."""
    rows, sha256 = PG19.load(metadata)
    texts = (Text(row.get("short_book_title", str(n)), row["text"]) for n, row in enumerate(rows))
    return LoadedTexts(tuple(texts), sha256)


def codeparrot(metadata: Mapping[str, Any]) -> LoadedTexts:
    """Loads the first Python files of CodeParrot's validation set, joined to long texts."""
    rows, sha256 = CODEPARROT.load(metadata)
    files = (Text("", row["content"]) for row in rows)
    texts = (text for _, text in zip(range(_MAX_JOINED), join_files(files), strict=False))
    return LoadedTexts(tuple(texts), sha256)


def narrativeqa(metadata: Mapping[str, Any]) -> LoadedTexts:
    """Loads stories of NarrativeQA's test set, each once."""
    fetched = [file.fetch(metadata) for file in NARRATIVEQA]
    stories = {name: text for path, _ in fetched for name, text in _stories(path)}
    texts = tuple(Text(name, content) for name, content in stories.items())
    return LoadedTexts(texts, texts_sha256(texts))


def offline_plays(metadata: Mapping[str, Any]) -> LoadedTexts:
    """Joins Shakespeare's plays to long texts: a stand-in for books and stories."""
    return _joined(plays)


def offline_code(metadata: Mapping[str, Any]) -> LoadedTexts:
    """Joins modules of Python's standard library to long texts: a stand-in for code."""
    return _joined(library_code)


@cache
def _joined(load: Callable[[], tuple[Text, ...]]) -> LoadedTexts:
    texts = tuple(join_files(load()))
    return LoadedTexts(texts, texts_sha256(texts))


def _stories(path: Path) -> Iterator[tuple[str, str]]:
    import pyarrow.parquet as parquet

    seen = set()
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=64, columns=["document"]):
        for document in batch.column("document").to_pylist():
            if document["id"] not in seen:
                seen.add(document["id"])
                yield document["id"], document["text"]


SOURCES: dict[str, Callable[[Mapping[str, Any]], LoadedTexts]] = {
    "pg19": pg19,
    "codeparrot": codeparrot,
    "narrativeqa": narrativeqa,
    "plays": offline_plays,
    "code": offline_code,
}
"""What loads each corpus, given a task's metadata."""
