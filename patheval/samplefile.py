"""The files that `--log_samples` writes, with *references* in the place of long texts.

lm-eval stores each document and each request's arguments: a prompt of 64K tokens would stand in the
document and in the arguments, once for each choice. A reference says where the text is, and has its
SHA-256, so that `whole_prompts` can put it back and prove it:

- `doc.FIELD[START:STOP]`, a part of a field of the sample's document;
- `request N[START:STOP]`, a part of the context of the document's request N;
- `recipe.FIELD[START:STOP]`, only in the document itself: a text that stands in no file. What is
  left of a generated document (index, length, seed, fingerprint of the tokenizer) and its task
  determine it; `rebuilding.Rebuilder` makes it anew.

The end of a prompt, where the question is, always stays in place.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from patheval.errors import ResultsError

# Samples with less text are left alone: they are easier to read in place.
_MIN_SAMPLE_CHARACTERS = 4096
_MIN_REFERENCE_CHARACTERS = 512
_END_CHARACTERS = 240

_REFERENCE = re.compile(
    r"\u27e6(?P<kind>doc|request|recipe)[. ](?P<name>[^\[\u27e6\u27e7]+)"
    r"\[(?P<start>\d+):(?P<stop>\d+)\], SHA-256 (?P<digest>[0-9a-f]{64})\u27e7"
)
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_FILE_NAME = re.compile(
    r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-[\d.]+)\.jsonl(\.gz)?"
)

Rebuild = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def is_generated(doc: object) -> bool:
    """Whether a document is one of patheval's own, which its task can make anew."""
    return (
        isinstance(doc, dict)
        and isinstance(doc.get("index"), int)
        and isinstance(doc.get("tokenizer"), str)
        and _FINGERPRINT.fullmatch(doc["tokenizer"]) is not None
    )


def shortened(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with references in the place of long texts; its hashes stay those of the whole.

    Args:
        sample: As lm-eval's `evaluate` returns it: `arguments` is a list of tuples.
    """
    doc, arguments = sample["doc"], sample["arguments"]
    texts = [text for own in arguments for text in own if isinstance(text, str)]
    if sum(map(len, texts)) < _MIN_SAMPLE_CHARACTERS:
        return dict(sample)
    fields = {
        name: text
        for name, text in (doc.items() if isinstance(doc, dict) else ())
        if isinstance(text, str) and len(text) >= _MIN_REFERENCE_CHARACTERS
    }
    first_request: dict[str, int] = {}
    short_arguments = []
    for number, own in enumerate(arguments):
        short = [_refer(text, fields) if isinstance(text, str) else text for text in own]
        if short and short[0] == own[0] and isinstance(own[0], str):
            first = first_request.setdefault(own[0], number)
            if first != number:
                short[0] = _shorten(f"request {first}", own[0], 0)
        short_arguments.append(tuple(short))
    if is_generated(doc):
        doc = doc | {
            name: _reference(f"recipe.{name}", 0, text)
            for name, text in fields.items()
            if len(text) >= _MIN_SAMPLE_CHARACTERS
        }
    return {**sample, "doc": doc, "arguments": short_arguments}


def whole_prompts(sample: Mapping[str, Any], rebuild: Rebuild | None = None) -> list[list[Any]]:
    """The arguments of a sample's requests, with references replaced by what they stand for.

    Args:
        sample: One line of the file.
        rebuild: Makes the sample's document anew; without it, references to texts that stand in no
            file stay, and the ends of prompts behind them are whole.

    Raises:
        ResultsError: A reference's text is not in the sample, or not the one that was run.
    """
    arguments: list[list[Any]] = []
    for own in sample["arguments"].values():
        arguments.append(
            [
                _REFERENCE.sub(lambda match: _find(match, sample, arguments, rebuild), text)
                if isinstance(text, str)
                else text
                for text in own.values()
            ]
        )
    return arguments


def stored_doc(sample: Mapping[str, Any]) -> Any:
    """The sample's document without the fields that are only referred to."""
    doc = sample["doc"]
    if not isinstance(doc, dict):
        return doc
    return {name: value for name, value in doc.items() if not _is_recipe(value)}


def rebuilt_text(sample: Mapping[str, Any], name: str, rebuild: Rebuild) -> str:
    """A field of the document that stands in no file.

    Args:
        sample: One line of the file.
        name: The field; its value in the sample is a reference.
        rebuild: Makes the sample's document anew.

    Raises:
        ResultsError: The text is not the one that was run.
    """
    match = _REFERENCE.fullmatch(sample["doc"][name])
    assert match is not None
    text = rebuild(sample).get(name)
    if not isinstance(text, str) or _digest(text) != match["digest"]:
        raise ResultsError(
            f"document {sample['doc_id']} cannot be made anew: its {name} comes out otherwise than "
            "in the run; use the version of patheval, the data and the tokenizer of the run"
        )
    return text


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a samples file, gzipped if its name ends so.

    Raises:
        ResultsError: The file cannot be read, is a results file, or a line is damaged.
    """
    refuse_results(path)
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    sample = json.loads(line)
                    missing = {"doc_id", "doc", "arguments", "resps", "filter"} - set(sample)
                except (TypeError, ValueError) as error:
                    raise ResultsError(
                        f"line {number} of {path} is no sample ({error}); run the task again"
                    ) from error
                if missing:
                    raise ResultsError(
                        f"line {number} of {path} lacks {', '.join(sorted(missing))}; pass a file "
                        "that lm_eval --log_samples wrote"
                    )
                yield sample
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} cannot be read ({error}); pass a samples file") from error


def refuse_results(path: Path) -> None:
    """Refuses the results file of a run, which lies beside its samples and is easily mistaken.

    Raises:
        ResultsError: The file is one; the message names the samples beside it.
    """
    if path.suffix != ".json":
        return
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if not isinstance(content, dict) or not {"results", "configs"} <= set(content):
        return
    beside = sorted(path.parent.glob(f"samples_*_{path.stem.rpartition('_')[2]}.jsonl*"))
    names = ", ".join(file.name for file in beside[:3])
    more = f" or one of {len(beside) - 3} more" if len(beside) > 3 else ""
    what = (
        f"name the samples beside it: {names}{more}"
        if beside
        else "no samples are beside it, so run the task again with --log_samples"
    )
    raise ResultsError(f"{path} is a results file; {what}")


def find_samples(results: Path, task: str) -> Path | None:
    """The samples of a task beside the results file of its run, gzipped or not, if there are any.

    Args:
        results: Whose name ends in the run's date.
        task: Name of the task.
    """
    plain = results.with_name(f"samples_{task}_{results.stem.rpartition('_')[2]}.jsonl")
    both = plain, plain.with_name(f"{plain.name}.gz")
    return next((path for path in both if path.is_file()), None)


def task_of(path: Path) -> str | None:
    """Name of the task in a samples file's name, or None if the name is not lm-eval's."""
    match = _FILE_NAME.fullmatch(path.name)
    return match["task"] if match else None


def date_of(path: Path) -> str | None:
    """Date in a samples file's name, which the run's results file has too."""
    match = _FILE_NAME.fullmatch(path.name)
    return match["date"] if match else None


def _refer(text: str, fields: Mapping[str, str]) -> str:
    """Replace what a text and a field of the document have in common."""
    for name, field in fields.items():
        if (start := text.find(field)) >= 0:
            short = _shorten(f"doc.{name}", field, 0)
            return text[:start] + short + text[start + len(field) :]
        if (start := field.find(text)) >= 0:
            return _shorten(f"doc.{name}", text, start)
    return text


def _shorten(place: str, text: str, start: int) -> str:
    """The text, which stands at `start` in `place`, as a reference and its own end."""
    front = text[:-_END_CHARACTERS]
    if len(front) < _MIN_REFERENCE_CHARACTERS:
        return text
    return _reference(place, start, front) + text[-_END_CHARACTERS:]


def _reference(place: str, start: int, text: str) -> str:
    return f"\u27e6{place}[{start}:{start + len(text)}], SHA-256 {_digest(text)}\u27e7"


def _is_recipe(value: object) -> bool:
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return match is not None and match["kind"] == "recipe"


def _find(
    match: re.Match[str],
    sample: Mapping[str, Any],
    arguments: list[list[Any]],
    rebuild: Rebuild | None,
) -> str:
    text = None
    if match["kind"] == "request":
        number = int(match["name"])
        text = arguments[number][0] if number < len(arguments) else None
    elif isinstance(sample["doc"], dict):
        text = sample["doc"].get(match["name"])
        if _is_recipe(text):
            if rebuild is None:
                return match[0]
            text = rebuilt_text(sample, match["name"], rebuild)
    part = text[int(match["start"]) : int(match["stop"])] if isinstance(text, str) else ""
    if _digest(part) != match["digest"]:
        raise ResultsError(
            f"the prompt of document {sample['doc_id']} refers to its {match['kind']} "
            f"{match['name']}, which is not the text that was run; the file was edited, run the "
            "task again"
        )
    return part


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
