"""LongBench-E documents: records of one length bucket, without their middle where too long."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from lm_eval.api.task import ConfigurableTask

from patheval.errors import UnsupportedError

from ..generation import (
    PAPER,
    LazyDocs,
    checked_integer,
    num_samples_of,
    preset_of,
    refuse_misspelt,
)
from ..sources import SourceFile
from ..tokenization import PromptTokenizer, load_tokenizer
from .sets import SETS

# What the models allow unless another limit is asked for.
DEFAULT_MAX_LENGTH = 8192

ARCHIVE = SourceFile(
    name="the LongBench archive",
    folder="zai-org/LongBench",
    path="data.zip",
    sha256="cb45b11a4133c6bc1d6a44b0f8e701335ff1e543195db1103472e575857f7f64",
    revision="5e628be450b7e67fb7ae6e201bd6d8f7056f7672",
)
BUCKETS = ("0-4k", "4-8k", "8k+")
_WORD_EDGES = (4000, 8000)
_TOKEN_EDGES = (4096, 8192)


class LongBenchDoc(TypedDict):
    """One record, as lm-eval reads it and stores it with `--log_samples`.

    Attributes:
        index: Position in the task, from 0.
        set: Name of the set.
        prompt: Text for the model.
        references: Right answers.
        all_classes: Every possible answer of a set of classes; else None.
        num_words: Words of the record's text, as the data set states them.
        num_tokens: Tokens of the prompt, special tokens included.
        num_tokens_uncut: Tokens that the prompt had before its middle was cut out.
        tokenizer: Fingerprint of the tokenizer that counted them.
        preset: `reference` buckets by words, `paper` by tokens.
        source_sha256: SHA-256 of the archive.
    """

    index: int
    set: str
    prompt: str
    references: list[str]
    all_classes: list[str] | None
    num_words: int
    num_tokens: int
    num_tokens_uncut: int
    tokenizer: str
    preset: str
    source_sha256: str


def longbench_e(*, name: str, bucket: str, **metadata: Any) -> dict[str, LazyDocs[LongBenchDoc]]:
    """Makes the dataset of one set's records of one length.

    Args:
        name: Name of the set.
        bucket: One of `BUCKETS`.
        **metadata: The task's metadata; names the tokenizer and where the data are. `preset` is
            `reference` (buckets by words, unless given) or `paper` (by tokens of the prompt).
            A prompt is cut to `max_prompt_tokens`, or else to what `max_length`, the model's limit
            of prompt and answer together, leaves it. `num_samples` takes the first so many, all
            unless given.

    Raises:
        PrerequisiteError: The data set is missing, or no tokenizer is given.
        UnsupportedError: The data set has other content or no record of that length, a setting
            makes no sense, or the limit leaves no room for a prompt.
    """
    refuse_misspelt(metadata)
    preset = preset_of(metadata)
    tokenizer = load_tokenizer(metadata)
    max_tokens = _max_prompt_tokens(metadata, SETS[name].max_gen_toks)
    path, sha256 = ARCHIVE.fetch(metadata)
    records = read_records(path, name)
    prompts = [SETS[name].render_prompt(record) for record in records]

    def size(number: int) -> int:
        if preset == PAPER:
            return tokenizer.num_tokens(prompts[number])
        return int(records[number]["length"])

    edges = _TOKEN_EDGES if preset == PAPER else _WORD_EDGES
    chosen = [n for n in range(len(records)) if bucket_of(size(n), edges) == bucket]
    if not chosen:
        raise UnsupportedError(
            f"none of the {len(records)} records of {name} is in the bucket {bucket} of preset "
            f"{preset}; leave path_longbench_e_{name}_{bucket} out"
        )

    def build(index: int) -> LongBenchDoc:
        record, prompt = records[chosen[index]], prompts[chosen[index]]
        cut = fit_prompt(tokenizer, prompt, max_tokens)
        return LongBenchDoc(
            index=index,
            set=name,
            prompt=cut,
            references=record["answers"],
            all_classes=record["all_classes"],
            num_words=record["length"],
            num_tokens=tokenizer.num_tokens(cut),
            num_tokens_uncut=tokenizer.num_tokens(prompt),
            tokenizer=tokenizer.fingerprint,
            preset=preset,
            source_sha256=sha256,
        )

    return {"test": LazyDocs(min(num_samples_of(metadata, len(chosen)), len(chosen)), build)}


def by_tokens(**arguments: Any) -> dict[str, LazyDocs[LongBenchDoc]]:
    """Makes the dataset as `longbench_e` does with the preset `paper`."""
    return longbench_e(**arguments | {"preset": PAPER})


def read_records(archive: Path, name: str) -> list[dict[str, Any]]:
    """Reads a set's records from the archive, in their order.

    Raises:
        UnsupportedError: The archive does not hold the set, or not in the known form.
    """
    member = f"data/{name}_e.jsonl"
    try:
        with zipfile.ZipFile(archive) as files:
            lines = files.read(member).decode("utf-8").split("\n")
        records = [json.loads(line) for line in lines if line.strip()]
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UnsupportedError(
            f"{archive} has no readable {member} ({error}); fetch it anew"
        ) from error
    for number, record in enumerate(records, 1):
        missing = {"input", "context", "answers", "length", "all_classes"} - set(record)
        if missing:
            raise UnsupportedError(
                f"record {number} of {member} in {archive} has no {', '.join(sorted(missing))}; "
                "fetch the archive anew"
            )
    return records


def bucket_of(length: int, edges: tuple[int, int] = _WORD_EDGES) -> str:
    """Names the bucket of a length: below the first edge, below the second, or else."""
    return BUCKETS[sum(length >= edge for edge in edges)]


def fit_prompt(tokenizer: PromptTokenizer, prompt: str, max_tokens: int) -> str:
    """Cuts out the middle of a prompt that is too long.

    The rule is LongBench's (`PromptTokenizer.cut_middle`), applied to fewer tokens where what it
    leaves still has too many: text around the cut can take a token more than its halves.
    """
    for room in range(max_tokens, 1, -1):
        cut = tokenizer.cut_middle(prompt, room)
        if tokenizer.num_tokens(cut) <= max_tokens:
            return cut
    raise UnsupportedError(
        f"no part of a LongBench-E prompt fits {max_tokens} tokens; pass a larger max_length"
    )


class LongBenchTask(ConfigurableTask):
    """An lm-eval task that gives chat models no message where LongBench gives them none.

    Args:
        config: The task's YAML file.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config={key: config[key] for key in config if key != "class"})

    def fewshot_context(self, doc: LongBenchDoc, num_fewshot: int, **kwargs: Any) -> Any:
        """Returns the prompt, bare or as a message, depending on the set."""
        if SETS[doc["set"]].chat or num_fewshot:
            return super().fewshot_context(doc, num_fewshot, **kwargs)
        return doc["prompt"]


def _max_prompt_tokens(metadata: Mapping[str, Any], max_gen_toks: int) -> int:
    given = metadata.get("max_prompt_tokens")
    if given is not None:
        return checked_integer("max_prompt_tokens", given, minimum=2)
    limit = metadata.get("max_length") or metadata.get("max_model_len") or DEFAULT_MAX_LENGTH
    max_tokens = int(limit) - max_gen_toks
    if max_tokens < 2:
        raise UnsupportedError(
            f"max_length={limit} leaves {max_tokens} tokens for a prompt before the {max_gen_toks} "
            "generated ones; pass a larger max_length"
        )
    return max_tokens
