"""The files that `--log_samples` writes, in which no long prompt stands twice.

lm-eval stores each document and each request's arguments. A prompt of 64K tokens would stand in the
document and in the arguments, or once for each choice. `--model path` puts a *reference* in the
place of a repetition; it holds the SHA-256 of what it stands for, so `whole_prompts` can put it
back and prove it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from patheval.errors import ResultsError

_REFERENCE = re.compile(
    r"\u27e6(?P<place>doc\.[^,\u27e6\u27e7]+|request \d+), \d+ characters, "
    r"SHA-256 (?P<digest>[0-9a-f]{64})\u27e7"
)
_FILE_NAME = re.compile(r"samples_(?P<task>.+)_\d{4}-\d\d-\d\dT\d\d-\d\d-[\d.]+\.jsonl")


def reference(place: str, text: str) -> str:
    """What stands for a text that is stored elsewhere in the same sample.

    Args:
        place: `doc.FIELD`, or `request N` for the context of the document's request N.
        text: The text.
    """
    return f"\u27e6{place}, {len(text)} characters, SHA-256 {_digest(text)}\u27e7"


def whole_prompts(sample: Mapping[str, Any]) -> list[list[Any]]:
    """The arguments of a sample's requests, with references replaced by what they stand for.

    Args:
        sample: One line of the file.

    Raises:
        ResultsError: A reference's text is not in the sample, or not the one that was run.
    """
    arguments: list[list[Any]] = []
    for own in sample["arguments"].values():
        whole = list(own.values())
        if isinstance(whole[0], str):
            whole[0] = _REFERENCE.sub(lambda match: _find(match, sample, arguments), whole[0])
        arguments.append(whole)
    return arguments


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a samples file.

    Raises:
        ResultsError: The file cannot be read, or a line is damaged.
    """
    try:
        with path.open(encoding="utf-8") as file:
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
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} cannot be read ({error}); pass a samples file") from error


def task_of(path: Path) -> str | None:
    """Name of the task in a samples file's name, or None if the name is not lm-eval's."""
    match = _FILE_NAME.fullmatch(path.name)
    return match["task"] if match else None


def _find(match: re.Match[str], sample: Mapping[str, Any], arguments: list[list[Any]]) -> str:
    kind, _, name = match["place"].replace("doc.", "doc ", 1).partition(" ")
    text = None
    if kind == "doc":
        text = sample["doc"].get(name)
    elif int(name) < len(arguments):
        text = arguments[int(name)][0]
    if not isinstance(text, str) or _digest(text) != match["digest"]:
        raise ResultsError(
            f"the prompt of document {sample['doc_id']} refers to its {match['place']}, which is "
            "not the text that was run; the file was edited, run the task again"
        )
    return text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
