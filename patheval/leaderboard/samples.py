"""Per-sample scores, read from the files that `--log_samples` writes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patheval import samplefile
from patheval.errors import ResultsError

_EXAMPLE_CHARACTERS = 240


@dataclass(frozen=True)
class Example:
    """One answer, as the page shows it.

    Attributes:
        prompt_end: The last characters of the prompt.
        target: What is right.
        answer: What the model wrote; empty for scored continuations.
        score: Score by the metric shown.
    """

    prompt_end: str
    target: str
    answer: str
    score: float | None


@dataclass(frozen=True)
class Scores:
    """Values of one metric, one for each prompt, whose mean is the reported value.

    Attributes:
        keys: Identity of each prompt: its place and the hashes of prompt and target.
        values: [n]. For means the scores themselves; for perplexities the score's linear terms,
            which have the same mean and give its standard error (delta method by document).
        depths: [n, 2], the answer's place in the prompt and the prompt's length, in tokens; NaN
            where unknown.
        examples: The first answers.
    """

    keys: tuple[str, ...]
    values: NDArray[np.float64]
    depths: NDArray[np.float64]
    examples: tuple[Example, ...]


@dataclass
class TaskSamples:
    """What a samples file tells about one task.

    Attributes:
        raw: Per filter and metric, each prompt's key and logged value.
        depths: Per filter, [answer's place, prompt's length] of each prompt.
        examples: Per filter, the first answers with all metrics.
        tokens: Prompt lengths, in tokens.
        tokenizer: Fingerprint of the tokenizer that sized the prompts.
        seed: Seed of generated data.
        num_empty: Answers without text; None where nothing is generated.
    """

    raw: dict[tuple[str, str], list[tuple[str, Any]]] = field(default_factory=dict)
    depths: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    examples: dict[str, list[tuple[Example, Mapping[str, Any]]]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    tokenizer: str = ""
    seed: int | None = None
    num_empty: int | None = None


def read_samples(path: Path, num_examples: int) -> TaskSamples:
    """Reads a samples file.

    Args:
        path: The file.
        num_examples: Answers to keep for the page.

    Raises:
        ResultsError: A line is damaged, as the last one of a file that was not written to its end.
    """
    samples = TaskSamples()
    first_filter = None
    for number, record in enumerate(samplefile.read_samples(path), start=1):
        try:
            key = f"{record['doc_id']} {record['prompt_hash']} {record['target_hash']}"
            own_filter = record["filter"]
            metrics = {name: record[name] for name in record["metrics"]}
        except (KeyError, TypeError) as error:
            raise ResultsError(
                f"line {number} of {path} is no sample ({error}); run the task again"
            ) from error
        for metric, value in metrics.items():
            samples.raw.setdefault((own_filter, metric), []).append((key, value))
        doc = record["doc"] if isinstance(record["doc"], dict) else {}
        place = (_number(doc.get("depth_tokens")), _number(doc.get("num_tokens")))
        samples.depths.setdefault(own_filter, []).append(place)
        examples = samples.examples.setdefault(own_filter, [])
        if len(examples) < num_examples:
            examples.append((_example(record), metrics))
        if first_filter in (None, own_filter):
            first_filter = own_filter
            _describe(samples, record, doc)
    return samples


def scores(samples: TaskSamples, own_filter: str, metric: str, reported: float) -> Scores | None:
    """Returns the prompts' values of a metric, if their aggregate is the reported value.

    Which aggregation a task uses is written in no file; the one that reproduces the value is it.

    Args:
        samples: What the samples file tells.
        own_filter: lm-eval's filter.
        metric: Metric's name.
        reported: The value in the results file.

    Returns:
        None if no known aggregation of the logged values gives the reported one.
    """
    pairs = samples.raw.get((own_filter, metric), [])
    if not pairs:
        return None
    logged = [value for _, value in pairs]
    try:
        array = np.asarray(logged, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if not np.isfinite(array).all():
        return None
    for aggregate in _AGGREGATIONS:
        values = aggregate(array)
        if values is not None and math.isclose(
            float(values.mean()), reported, rel_tol=1e-6, abs_tol=1e-9
        ):
            break
    else:
        return None
    examples = tuple(
        Example(example.prompt_end, example.target, example.answer, _score(metrics.get(metric)))
        for example, metrics in samples.examples.get(own_filter, [])
    )
    depths = np.asarray(samples.depths[own_filter], dtype=np.float64)
    if len(depths) != len(values):
        depths = np.full((len(values), 2), np.nan)
    return Scores(tuple(key for key, _ in pairs), values, depths, examples)


def _mean(array: NDArray[np.float64]) -> NDArray[np.float64] | None:
    return array if array.ndim == 1 else None


def _perplexity(array: NDArray[np.float64]) -> NDArray[np.float64] | None:
    if array.ndim != 1 or -array.mean() > 700:
        return None
    perplexity = math.exp(-float(array.mean()))
    return perplexity * (1 - (array - array.mean()))


def _exp_mean(array: NDArray[np.float64]) -> NDArray[np.float64] | None:
    return _perplexity(-array)


def _weighted(array: NDArray[np.float64]) -> tuple[NDArray[np.float64], float] | None:
    """Linear terms of sum(logprob) / sum(weight), and that ratio."""
    if array.ndim != 2 or array.shape[1] != 2 or array[:, 1].sum() <= 0:
        return None
    ratio = float(array[:, 0].sum() / array[:, 1].sum())
    return (array[:, 0] - ratio * array[:, 1]) / array[:, 1].mean(), ratio


def _weighted_perplexity(array: NDArray[np.float64]) -> NDArray[np.float64] | None:
    weighted = _weighted(array)
    if weighted is None or -weighted[1] > 700:
        return None
    terms, ratio = weighted
    return math.exp(-ratio) * (1 - terms)


def _weighted_mean(array: NDArray[np.float64]) -> NDArray[np.float64] | None:
    weighted = _weighted(array)
    return None if weighted is None else weighted[0] + weighted[1]


def _bits(array: NDArray[np.float64]) -> NDArray[np.float64] | None:
    weighted = _weighted(array)
    return None if weighted is None else -(weighted[0] + weighted[1]) / math.log(2)


_AGGREGATIONS: tuple[Callable[[NDArray[np.float64]], NDArray[np.float64] | None], ...] = (
    _mean,
    _perplexity,
    _exp_mean,
    _weighted_perplexity,
    _weighted_mean,
    _bits,
)


def _describe(samples: TaskSamples, record: Mapping[str, Any], doc: Mapping[str, Any]) -> None:
    if isinstance(doc.get("num_tokens"), int):
        samples.tokens.append(doc["num_tokens"])
    if isinstance(doc.get("tokenizer"), str):
        samples.tokenizer = doc["tokenizer"]
    if isinstance(doc.get("seed"), int):
        samples.seed = doc["seed"]
    responses = record.get("filtered_resps")
    if isinstance(responses, list) and responses and isinstance(responses[0], str):
        samples.num_empty = (samples.num_empty or 0) + (not responses[0].strip())


def _example(record: Mapping[str, Any]) -> Example:
    prompt = str(next((own[0] for own in samplefile.whole_prompts(record) if own), ""))
    responses = record.get("filtered_resps") or [""]
    answer = responses[0] if isinstance(responses[0], str) else ""
    end = ("…" if len(prompt) > _EXAMPLE_CHARACTERS else "") + prompt[-_EXAMPLE_CHARACTERS:]
    return Example(
        _writable(end),
        _shorten(str(record.get("target", ""))),
        _shorten(answer),
        None,
    )


def _shorten(text: str) -> str:
    return _writable(text[:_EXAMPLE_CHARACTERS] + ("…" if len(text) > _EXAMPLE_CHARACTERS else ""))


def _writable(text: str) -> str:
    """Without halves of surrogate pairs, which JSON can hold and no file of ours."""
    return text.encode(errors="replace").decode()


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _score(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
