"""What a task's name means on a board: benchmark, subtask, length, main metric, averages."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RULER_FAMILIES: Mapping[str, Sequence[str]] = {
    "retrieval": (
        *("niah_single_1", "niah_single_2", "niah_single_3"),
        *("niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
        *("niah_multivalue", "niah_multiquery"),
    ),
    "multi-hop tracing": ("vt",),
    "aggregation": ("cwe", "fwe"),
    "question answering": ("qa_1", "qa_2"),
}
"""RULER's 13 tasks by category, as the paper's Figure 4 groups them."""

OFFLINE = "offline"
"""Part of a task's name that says its text is a stand-in for the benchmark's own."""


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark is named and averaged.

    Attributes:
        key: Part of patheval's task names.
        title: Name in tables.
        average: Subtasks whose plain mean is the benchmark's score at a length; empty if its
            subtasks are not averaged.
        by_length: Whether its columns form a sweep over lengths.
    """

    key: str
    title: str
    average: tuple[str, ...] = ()
    by_length: bool = False


LONGBENCH_E = (
    *("2wikimqa", "hotpotqa", "multifieldqa_en", "qasper"),
    *("multi_news", "gov_report", "trec", "triviaqa", "samsum", "lcc", "repobench-p"),
)
"""The 11 of 13 LongBench-E sets that the PaTH paper averages."""

TABLE_2 = (*("lambada_openai", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge"),)
"""Tasks whose accuracies the PaTH paper's Table 2 averages."""

BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        "ruler",
        "RULER",
        tuple(task for family in RULER_FAMILIES.values() for task in family),
        by_length=True,
    ),
    Benchmark("phonebook", "PhoneBook", by_length=True),
    Benchmark("babilong", "BABILong", ("qa1", "qa2", "qa3", "qa4", "qa5"), by_length=True),
    Benchmark("longbench_e", "LongBench-E", LONGBENCH_E, by_length=True),
    Benchmark("ppl", "Perplexity", by_length=True),
    Benchmark("fflm", "Flip-flop"),
    Benchmark("mqrar", "MQRAR-N"),
    Benchmark("lm_eval_ruler", "RULER (lm-eval's)", by_length=True),
    Benchmark("zero_shot", "Zero-shot", TABLE_2),
    Benchmark("converted_smollm2", "SmolLM2-1.7B, converted"),
    Benchmark("converted_qwen", "Qwen2.5-7B-Instruct, converted"),
    Benchmark("speed", "Speed"),
)

OTHER = Benchmark("other", "Other tasks")

_BY_KEY = {benchmark.key: benchmark for benchmark in BENCHMARKS}

# Metrics that the PaTH paper reports where lm-eval's first one is another.
_MAIN_METRICS = {
    "hellaswag": ("acc_norm",),
    "arc_challenge": ("acc_norm",),
    "lambada_openai": ("acc", "perplexity"),
    "wikitext": ("word_perplexity",),
}
_MAIN_METRICS_BY_PREFIX = {"path_fflm_": ("error",), "path_ppl_": ("perplexity",)}
_ZERO_SHOT = {*TABLE_2, "wikitext"}
_NEVER_MAIN = {"empty", "cut", "bypass"}
_SHARES = re.compile(
    r"acc|error|exact_match|string_match|^em$|f1|rouge|match|score|pass@|recall|precision|mcc"
)
_LOSSES = re.compile(r"perplexity|ppl|nll|loss|bits_per_byte|error|\bwer\b|empty|^cut$")
_COUNTED = re.compile(r"^(acc|acc_norm|exact_match|em)(,|$)")
_SPAN = re.compile(r"_(?:(\d+k?)[-_])?(\d+k?|any)(\+)?$")
_LENGTH = re.compile(r"_(\d+k?|any)$")
_BUCKET = re.compile(r"^nll_(\d+k?)$")
_LM_EVAL_RULER = re.compile(r"^(niah_|ruler_)")


@dataclass(frozen=True)
class TaskName:
    """A task's place on a board.

    Attributes:
        benchmark: Key of the benchmark; that of stand-in data ends with "_offline".
        subtask: Task within the benchmark, without its length; may be empty.
        length: Length in tokens, or the upper end of a bucket; None without one.
        label: The length as the name writes it.
    """

    benchmark: str
    subtask: str
    length: int | None
    label: str = ""


def benchmark(key: str) -> Benchmark:
    """Returns a benchmark by its key; unknown ones are titled by it."""
    base = key.removesuffix(f"_{OFFLINE}")
    known = _BY_KEY.get(base) or (OTHER if base == OTHER.key else Benchmark(base, base, (), True))
    if base == key:
        return known
    return Benchmark(key, f"{known.title}, stand-in data", known.average, known.by_length)


def order(key: str) -> tuple[int, str]:
    """Sorts benchmarks in the order of `BENCHMARKS`, others behind them by name."""
    base = key.removesuffix(f"_{OFFLINE}")
    position = list(_BY_KEY).index(base) if base in _BY_KEY else len(_BY_KEY)
    return position + (base == OTHER.key), key


def parse(task: str, metric: str = "", metadata: Mapping[str, object] | None = None) -> TaskName:
    """Reads a task's name.

    Args:
        task: lm-eval's task name.
        metric: Metric's name; lm-eval's own RULER tasks keep the length there.
        metadata: The task's metadata, which holds the length of tasks called `..._any`.
    """
    if not task.startswith("path_"):
        if metric.isdigit() and _LM_EVAL_RULER.match(task):
            return TaskName("lm_eval_ruler", task, int(metric), length_label(int(metric)))
        return TaskName("zero_shot" if task in _ZERO_SHOT else OTHER.key, task, None)
    name, stand_in = re.subn(rf"_{OFFLINE}(?=_|$)", "", task.removeprefix("path_"))
    suffix = f"_{OFFLINE}" if stand_in else ""
    key = next((k for k in _BY_KEY if name == k or name.startswith(f"{k}_")), "")
    pattern = _SPAN if key == "longbench_e" else _LENGTH
    match = pattern.search(name)
    rest = name[: match.start()] if match else name
    subtask = rest[len(key) + 1 :] if key else ""
    if not key:
        key, _, subtask = rest.partition("_")
    if match is None:
        return TaskName(key + suffix, subtask, None)
    label = match.group(0)[1:].replace("_", "-")
    if label == "any":
        given = (metadata or {}).get("length")
        length = given if isinstance(given, int) else None
        return TaskName(key + suffix, subtask, length, length_label(length))
    upper = tokens(match.group(2) if key == "longbench_e" else match.group(1))
    if label.endswith("+"):
        upper *= 2
    return TaskName(key + suffix, subtask, upper, label)


def tokens(label: str) -> int:
    """Returns the tokens of a length as task names write it; 1k is 1024.

    Raises:
        ValueError: It is no length.
    """
    if not re.fullmatch(r"[0-9]+k?", label):
        raise ValueError(f"{label!r} is no length")
    return int(label.removesuffix("k")) * (1024 if label.endswith("k") else 1)


def length_label(length: int | None) -> str:
    """Writes a length as task names do; an empty text for None."""
    if not length:
        return "" if length is None else "0k"
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def column_label(benchmark_key: str, length: int | None) -> str:
    """Writes a column's length: LongBench-E's as the bucket that ends or begins there."""
    base = benchmark_key.removesuffix(f"_{OFFLINE}")
    buckets = {4096: "0-4k", 8192: "4-8k", 16384: "8k+"}
    if base == "longbench_e" and length in buckets:
        return buckets[length]
    return length_label(length)


def main_metrics(task: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """Returns the metrics of a task that are columns.

    The PaTH paper's for its zero-shot tasks; else the first one that the task declares.

    Args:
        task: lm-eval's task name.
        metrics: The task's metrics, in its own order.
    """
    known = _MAIN_METRICS.get(task, ())
    for prefix, own in _MAIN_METRICS_BY_PREFIX.items():
        known = own if task.startswith(prefix) else known
    wanted = tuple(metric for metric in known if metric in metrics)
    if wanted:
        return wanted
    if metrics and all(metric.isdigit() for metric in metrics):
        return tuple(metrics)
    return tuple(metric for metric in metrics if metric not in _NEVER_MAIN)[:1]


def bucket_end(metric: str) -> int | None:
    """Returns where the bucket of tokens ends that a metric such as `nll_4k` is about."""
    match = _BUCKET.match(metric)
    return tokens(match.group(1)) if match else None


def unit(metric: str, value: float | None) -> str:
    """Returns "share" for metrics from 0 to 1 that tables show in percent, else ""."""
    is_share = metric.isdigit() or _SHARES.search(metric) is not None
    return "share" if is_share and (value is None or 0 <= value <= 1) else ""


def is_higher_better(metric: str, stated: object) -> bool:
    """Returns a metric's direction.

    Args:
        metric: Metric's name.
        stated: What the results file says, if it is a boolean.
    """
    return stated if isinstance(stated, bool) else _LOSSES.search(metric) is None


def last_part(model: str) -> str:
    """Returns a model's name without owner or `zoo:`, in lower case."""
    return model.replace(":", "/").rpartition("/")[2].casefold()


def counts_answers(metric: str) -> bool:
    """Whether each sample's score is known to be 0 or 1."""
    return _COUNTED.match(metric) is not None
