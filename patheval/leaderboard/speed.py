"""Measured speeds, from the files that `patheval bench` writes, as tables."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patheval.errors import ResultsError

from . import catalogue
from .tables import MINUS, MISSING

PLAIN_ATTENTION = ("fa3", "cudnn")
"""Rivals that compute plain attention, the same beside every kind of ours."""

_RATIO = "the fastest is bold. `a / b`: the time of a in times of b's, both of the same row."
_TIMED = {
    "prefill": (
        "The attention of one layer over whole sequences; ours also writes its pages for decode. "
        f"Median milliseconds; {_RATIO}"
    ),
    "decode": (
        "The attention of one layer for one more token of each sequence, in a CUDA graph; of a "
        f"rival's page sizes of 16 and 256 the better one counts. Median milliseconds; {_RATIO}"
    ),
    "engine": (
        "One decode step of vLLM with a whole model of random weights, scheduling and sampling "
        "included: the time that 128 more tokens of each sequence take, prefill subtracted, over "
        "128; the faster of two runs counts. `rope` is vLLM's own Llama. Milliseconds; " + _RATIO
    ),
}
_CHECKED = (
    "Before anything is timed the kernel is checked against the definition in float64, prefill "
    "and decode, on a reduced shape: two heads, at most 3,000 tokens of one sequence and 40 more "
    "one by one. `relative_error` in the file is the root-mean-square error of that check, in "
    "shares of the output's root mean square; rows of equal kind, head size and checked length "
    "share one check, and none is of the shape timed. The largest here is "
)


@dataclass(frozen=True)
class Timing:
    """Time of one implementation on one shape.

    Attributes:
        bench: `prefill`, `decode` or `engine`.
        impl: What was timed: `patheval`, a rival such as `fa3`, or an engine's kind of attention.
        shape: The shape's fields, such as batch, seq_len, num_heads, head_dim and kind.
        median_ms: Milliseconds.
        ratio_to: Times the time of each rival on the same shape.
        relative_error: Of the check of the kind and head size, before it was timed; None for what
            is not ours.
        card: Device.
        measured_with: Versions, driver and commit, as text.
        file: Name of the file.
    """

    bench: str
    impl: str
    shape: Mapping[str, Any]
    median_ms: float
    ratio_to: Mapping[str, float]
    relative_error: float | None
    card: str
    measured_with: str
    file: str


@dataclass(frozen=True)
class Scoring:
    """Speed of one route of multiple-choice scoring.

    Attributes:
        checkpoint: What was scored with.
        workload: Name of the workload.
        route: `patheval` or `lm-eval`.
        choices_per_second: Continuations scored in a second.
        speedup: Times lm-eval's; None where that was not run.
        max_difference: Largest difference of a log-probability to lm-eval's, in nats.
        card: Device.
        measured_with: Versions, driver and commit, as text.
        file: Name of the file.
    """

    checkpoint: str
    workload: str
    route: str
    choices_per_second: float
    speedup: float | None
    max_difference: float | None
    card: str
    measured_with: str
    file: str


@dataclass
class Speeds:
    """All that was measured.

    Attributes:
        timings: Of kernels and engines.
        scorings: Of routes of scoring.
    """

    timings: list[Timing] = field(default_factory=list)
    scorings: list[Scoring] = field(default_factory=list)


def read_speeds(folder: Path) -> Speeds:
    """Reads what `patheval bench ... --json` wrote; nothing if there is no file.

    Args:
        folder: Folder of JSON files, each with a list `rows`.

    Raises:
        ResultsError: A file is damaged.
    """
    speeds = Speeds()
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.get("bench") == "scoring":
                speeds.scorings += [_scoring(content, row, path) for row in content["rows"]]
            else:
                speeds.timings += [_timing(row, path) for row in content["rows"]]
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            raise ResultsError(
                f"{path} is no file of speeds ({type(error).__name__}: {error}); "
                "write it with `patheval bench`"
            ) from error
    return speeds


def _timing(row: Mapping[str, Any], path: Path) -> Timing:
    ratios = {str(rival): _positive(ratio) for rival, ratio in row["ratio_to"].items()}
    error = row.get("relative_error")
    return Timing(
        bench=str(row["bench"]),
        impl=str(row["impl"]),
        shape={key: value for key, value in row["shape"].items() if value is not None},
        median_ms=_positive(row["median_ms"]),
        ratio_to=ratios,
        relative_error=None if error is None else float(error),
        card=str(row.get("card") or "unknown card"),
        measured_with=_measured_with(row),
        file=path.name,
    )


def _scoring(content: Mapping[str, Any], row: Mapping[str, Any], path: Path) -> Scoring:
    checkpoint = content["checkpoint"]
    if isinstance(checkpoint, Mapping):
        size = f"{checkpoint['num_layers']} layers, hidden size {checkpoint['hidden_size']}"
        checkpoint = f"{checkpoint['attention']}, random weights, {size}"
    speedup, difference = row["speedup"], row["max_difference"]
    return Scoring(
        checkpoint=str(checkpoint),
        workload=str(row["workload"]),
        route=str(row["route"]),
        choices_per_second=_positive(row["choices_per_second"]),
        speedup=None if speedup is None else _positive(speedup),
        max_difference=None if difference is None else float(difference),
        card=str(content.get("card") or "unknown card"),
        measured_with=_measured_with(content),
        file=path.name,
    )


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError(f"{value!r} is no positive number")
    return number


def _measured_with(record: Mapping[str, Any]) -> str:
    versions = record.get("versions") or {}
    parts = [f"{key} {value}" for key, value in versions.items() if value]
    parts += [f"driver {record['driver']}"] if record.get("driver") else []
    parts += [f"commit {str(record['commit'])[:12]}"] if record.get("commit") else []
    return ", ".join(parts)


def markdown_parts(speeds: Speeds, folder: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yields for each bench and card the bench, the card, and its tables and notes.

    Args:
        speeds: What was measured.
        folder: Where the files lie, as links say it.
    """
    groups: dict[tuple[str, str], list[Timing]] = defaultdict(list)
    for timing in speeds.timings:
        groups[timing.bench, timing.card].append(timing)
    for (bench, card), own in groups.items():
        notes = [_TIMED.get(bench, f"Milliseconds; {_RATIO}")]
        notes += filter(None, [_rivals_note(own)])
        parts = [" ".join(notes), _timing_table(own), _check_note(own), _source(own, folder)]
        yield bench, card, [part for part in parts if part]
    scorings: dict[tuple[str, str], list[Scoring]] = defaultdict(list)
    for scoring in speeds.scorings:
        scorings[scoring.card, scoring.checkpoint].append(scoring)
    for (card, checkpoint), rows in scorings.items():
        note = (
            f"Multiple-choice scoring, continuations per second; {checkpoint}. Every repetition "
            "has new texts, tokenisation included, each route in an engine of its own."
        )
        yield "scoring", card, [note, _scoring_table(rows), _source(rows, folder)]


def _rivals_note(timings: Sequence[Timing]) -> str:
    """Says what rivals compute, and how far their times at one shape are apart."""
    by_shape: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for timing in timings:
        if timing.impl in PLAIN_ATTENTION:
            by_shape[timing.impl][describe(timing.shape)].append(timing.median_ms)
    if not by_shape:
        return ""
    spreads = {
        rival: max(max(own) / min(own) - 1 for own in shapes.values())
        for rival, shapes in by_shape.items()
        if any(len(own) > 1 for own in shapes.values())
    }
    text = f"Plain attention ({', '.join(by_shape)}) was timed anew for each row"
    if not spreads:
        return f"{text}."
    apart = ", ".join(f"{rival} by up to {100 * share:.2g} %" for rival, share in spreads.items())
    return f"{text}; at one shape these times differ: {apart}."


def _check_note(timings: Sequence[Timing]) -> str:
    errors = [timing.relative_error for timing in timings if timing.relative_error is not None]
    return f"{_CHECKED}{max(errors):.2g}." if errors else ""


def _timing_table(timings: Sequence[Timing]) -> str:
    impls = list(dict.fromkeys(timing.impl for timing in timings))
    pairs = list(
        dict.fromkeys(
            (timing.impl, rival)
            for timing in timings
            for rival in timing.ratio_to
            if rival != timing.impl
        )
    )
    lines: dict[tuple[str, str], dict[str, Timing]] = defaultdict(dict)
    for timing in timings:
        lines[attention(timing.shape), describe(timing.shape)][timing.impl] = timing
    headings = ["attention", "shape", *impls, *(f"{impl} / {rival}" for impl, rival in pairs)]
    has_attention = any(name for name, _ in lines)
    rows = []
    for (name, shape), own in lines.items():
        fastest = min(timing.median_ms for timing in own.values())
        cells = [name or MISSING, shape]
        for impl in impls:
            text = f"{own[impl].median_ms:#.3g}".rstrip(".") if impl in own else MISSING
            is_best = impl in own and own[impl].median_ms == fastest and len(own) > 1
            cells.append(f"**{text}**" if is_best else text)
        for impl, rival in pairs:
            ratio = own[impl].ratio_to.get(rival) if impl in own else None
            cells.append(MISSING if ratio is None else f"{ratio:.2f}")
        rows.append(cells)
    table = [headings, ["---", "---", *["---:"] * (len(headings) - 2)], *rows]
    return _table(table if has_attention else [line[1:] for line in table])


def _scoring_table(scorings: Sequence[Scoring]) -> str:
    routes = list(dict.fromkeys(scoring.route for scoring in scorings))
    lines: dict[str, dict[str, Scoring]] = defaultdict(dict)
    for scoring in scorings:
        lines[scoring.workload][scoring.route] = scoring
    compared = [route for route in routes if route != "lm-eval"] if "lm-eval" in routes else []
    headings = ["workload", *routes]
    for route in compared:
        headings += [f"{route} / lm-eval", "largest difference, nats"]
    rows = []
    for workload, own in lines.items():
        cells = [workload]
        cells += [
            f"{own[route].choices_per_second:,.1f}" if route in own else MISSING for route in routes
        ]
        for route in compared:
            found = own.get(route)
            speedup = found.speedup if found else None
            difference = found.max_difference if found else None
            cells.append(MISSING if speedup is None else f"{speedup:.1f}")
            cells.append(MISSING if difference is None else f"{difference:.2g}")
        rows.append(cells)
    return _table([headings, ["---", *["---:"] * (len(headings) - 1)], *rows])


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _source(rows: Sequence[Timing] | Sequence[Scoring], folder: str) -> str:
    origins = dict.fromkeys(
        ", ".join(filter(None, (row.measured_with, f"[{row.file}]({folder}/{row.file})")))
        for row in rows
    )
    return f"Measured with {'; '.join(origins)}."


def attention(shape: Mapping[str, Any]) -> str:
    """Names a shape's kind of attention, with the mean of its log forget gates."""
    gate = shape.get("mean_log_fgate")
    kind = str(shape.get("kind", ""))
    if gate is None:
        return kind
    return f"{kind}, mean log gate {MINUS if gate < 0 else ''}{abs(gate):g}"


def describe(shape: Mapping[str, Any]) -> str:
    """Writes a shape without its kind: 2 x 16k, 32 heads of 64."""
    left = {key: value for key, value in shape.items() if key not in ("kind", "mean_log_fgate")}
    parts = []
    if {"batch", "seq_len"} <= left.keys():
        length = catalogue.length_label(int(left.pop("seq_len")))
        parts.append(f"{left.pop('batch')} x {length}")
    if {"num_heads", "head_dim"} <= left.keys():
        parts.append(f"{left.pop('num_heads')} heads of {left.pop('head_dim')}")
    return ", ".join([*parts, *(f"{key} {value}" for key, value in left.items())])
