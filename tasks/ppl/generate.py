"""Perplexity documents: the beginnings of long texts, and where their buckets of tokens end."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypedDict, cast

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from patheval.errors import UnsupportedError

from ..cache import SampleCache
from ..generation import LazyDocs, Recipe
from ..texts import Text
from ..tokenization import PromptTokenizer
from . import texts

NUM_SAMPLES = 50
# Every length uses the same texts: those of at least so many tokens.
LONGEST = 65536
SHORTEST = 512
# No tokenizer makes fewer tokens of English or code than one for so many characters.
_CHARS_PER_TOKEN = 8


class PerplexityDoc(TypedDict):
    """The beginning of one text, as lm-eval reads it and stores it with `--log_samples`.

    Attributes:
        index: Position in the task, from 0.
        name: Title or number of the text.
        text: Its beginning.
        ends: For each bucket of tokens the characters in front of its end; the first number is the
            end of the first word, which is given and not scored.
        ends_tokens: The same in tokens, special tokens included.
        labels: Name of each bucket.
        num_tokens: Tokens of the text, special tokens included.
        length: Limit in tokens that is part of the task's name.
        tokenizer: Fingerprint of the tokenizer.
        source_sha256: SHA-256 of the source.
    """

    index: int
    name: str
    text: str
    ends: list[int]
    ends_tokens: list[int]
    labels: list[str]
    num_tokens: int
    length: int
    tokenizer: str
    source_sha256: str


def ppl(
    *, corpus: str, target_length: int | None = None, **metadata: Any
) -> dict[str, LazyDocs[PerplexityDoc]]:
    """Makes the dataset of one perplexity task.

    Args:
        corpus: A key of `texts.SOURCES`.
        target_length: Length in tokens that is part of the task's name; None reads the metadata.
        **metadata: The task's metadata; names the tokenizer and where the data are.

    Raises:
        PrerequisiteError: The data set is missing, or no length or no tokenizer is given.
        UnsupportedError: The data set has other content or no text that is long enough, or a
            setting makes no sense.
    """
    recipe = Recipe.from_metadata(
        f"ppl_{corpus}",
        metadata,
        target_length=target_length,
        max_gen_toks=0,
        num_samples=NUM_SAMPLES,
    )
    if recipe.length < SHORTEST:
        raise UnsupportedError(
            f"length is {recipe.length}, below the smallest bucket of {SHORTEST} tokens; "
            f"pass at least {SHORTEST} in --metadata"
        )
    loaded, sha256 = texts.SOURCES[corpus](metadata)
    long_enough = _long_enough(loaded, recipe.tokenizer, max(recipe.length, LONGEST))
    if not long_enough:
        fix = "a smaller length" if recipe.length > LONGEST else "data with longer texts"
        raise UnsupportedError(
            f"none of the {len(loaded)} texts of {corpus} has {max(recipe.length, LONGEST)} "
            f"tokens; pass {fix}"
        )

    def build(index: int) -> PerplexityDoc:
        return build_doc(recipe.tokenizer, long_enough[index], recipe.length, index, sha256)

    cache = SampleCache.of(
        recipe.task, recipe.length, recipe.tokenizer.fingerprint, sha256, made_by=build_doc
    )
    return {"test": LazyDocs(min(recipe.num_samples, len(long_enough)), build, cache)}


def build_doc(
    tokenizer: PromptTokenizer, text: Text, length: int, index: int, sha256: str
) -> PerplexityDoc:
    """Makes the document of a text.

    Args:
        tokenizer: The model's tokenizer.
        text: A text of at least `length` tokens.
        length: Most tokens of its beginning, special tokens included.
        index: Position of the document in the task.
        sha256: SHA-256 of the source.

    Raises:
        UnsupportedError: The tokenizer has no token that ends where words end.
    """
    edges = bucket_edges(length)
    # Of the text, only so much is encoded as is needed.
    beginning = text.content[: _CHARS_PER_TOKEN * (length + SHORTEST)]
    cuts = tokenizer.clean_cuts(beginning, edges)
    first_word = len(beginning) - len(beginning.lstrip())
    first_word += len(beginning[first_word:].split(maxsplit=1)[0])
    ends = [first_word, *(end for end, _ in cuts)]
    ends_tokens = [tokenizer.num_tokens(beginning[:first_word]), *(tokens for _, tokens in cuts)]
    return PerplexityDoc(
        index=index,
        name=text.name,
        text=beginning[: ends[-1]],
        ends=ends,
        ends_tokens=ends_tokens,
        labels=[bucket_label(edge) for edge in edges],
        num_tokens=ends_tokens[-1],
        length=length,
        tokenizer=tokenizer.fingerprint,
        source_sha256=sha256,
    )


def bucket_edges(length: int) -> list[int]:
    """Returns where buckets end: at 512 tokens, at each doubling, and at the length."""
    num_doublings = int(math.log2(length / SHORTEST))
    edges = [SHORTEST << doubling for doubling in range(num_doublings + 1)]
    return edges if edges[-1] == length else [*edges, length]


def bucket_label(edge: int) -> str:
    """Names a bucket by its end: `512`, `1k` and so on."""
    return f"{edge // 1024}k" if edge % 1024 == 0 else str(edge)


class PerplexityTask(ConfigurableTask):
    """An lm-eval task that asks for the log-likelihood of each bucket behind all text before it.

    Every request is the beginning of the last one, so that a model that shares prefixes reads a
    text once.

    Args:
        config: The task's YAML file.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config={key: config[key] for key in config if key != "class"})

    def construct_requests(self, doc: PerplexityDoc, ctx: str, **kwargs: Any) -> list[Instance]:
        """Makes the requests of a text.

        Raises:
            UnsupportedError: A chat template, examples or instructions were added to the text.
        """
        text = doc["text"]
        if ctx != text:
            raise UnsupportedError(
                f"{self.task_name} scores bare texts; run it without --apply_chat_template, "
                "--num_fewshot and --system_instruction"
            )
        bounds = zip(doc["ends"], doc["ends"][1:], strict=False)
        return [
            Instance(
                request_type="loglikelihood",
                doc=cast(dict[str, Any], doc),
                arguments=(text[:start], text[start:end]),
                idx=number,
                metadata=kwargs["metadata"],
            )
            for number, (start, end) in enumerate(bounds)
        ]


def process_results(doc: PerplexityDoc, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Scores a text.

    Args:
        doc: The document with its buckets.
        results: For each bucket its log-probability, and whether greedy decoding gives it.

    Returns:
        `nll`: mean negative natural-log probability of a token, over the whole text; `perplexity`:
        the same, from which `exp_mean` makes the perplexity; `nll_{bucket}`: over the tokens of
        one bucket.
    """
    losses = [-logprob for logprob, _ in results]
    counts = [b - a for a, b in zip(doc["ends_tokens"], doc["ends_tokens"][1:], strict=False)]
    nll = sum(losses) / sum(counts)
    buckets = {
        f"nll_{label}": loss / num_tokens
        for label, loss, num_tokens in zip(doc["labels"], losses, counts, strict=True)
    }
    return {"nll": nll, "perplexity": nll, **buckets}


def process_whole(doc: PerplexityDoc, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Scores a text of any length: what `process_results` gives, without the buckets."""
    scores = process_results(doc, results)
    return {name: scores[name] for name in ("nll", "perplexity")}


def exp_mean(values: Sequence[float]) -> float:
    """Makes a perplexity of the losses of texts of equal length."""
    return math.exp(sum(values) / len(values))


@cache
def _long_enough(
    loaded: tuple[Text, ...], tokenizer: PromptTokenizer, num_tokens: int
) -> tuple[Text, ...]:
    """Keep the texts that have so many tokens; the longest ones are not encoded for that."""
    return tuple(
        text
        for text in loaded
        if len(text.content) >= num_tokens
        and (
            len(text.content) >= _CHARS_PER_TOKEN * num_tokens
            or tokenizer.num_tokens(text.content) > num_tokens
        )
    )
