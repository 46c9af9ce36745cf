"""Plots of measured speeds over the length of sequences, as SVG and PNG files."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from . import catalogue
from .plots import COLORS, FORMATS, LINES, OPTIONS, save
from .speed import Speeds, Timing, attention

KINDS = ("rope", "fox", "path", "path-fox")
"""Kinds of attention in the order of the zoo's board, whose colours they have here too."""

_FEWEST_LENGTHS = 3
_OURS = "patheval"

Points = Sequence[tuple[int, float]]
"""(Tokens of a sequence, value), shortest first."""

_ByPair = dict[tuple[str, str], dict[int, list[float]]]


@dataclass(frozen=True)
class LengthSeries:
    """Timings of equal numbers of tokens, cut into sequences of several lengths.

    Attributes:
        bench: `prefill` or `decode`.
        card: Device.
        tokens: Batch times length, in every timing.
        num_heads: Heads.
        head_dim: Channels of a head.
        times: By line of ours, milliseconds.
        rivals: By line of ours and rival, the rival's milliseconds in the runs of that line.
        ratios: By line of ours and rival, times the rival's time in the same run.
    """

    bench: str
    card: str
    tokens: int
    num_heads: int
    head_dim: int
    times: Mapping[str, Points]
    rivals: Mapping[tuple[str, str], Points]
    ratios: Mapping[tuple[str, str], Points]

    @property
    def title(self) -> str:
        """What was timed."""
        tokens = catalogue.length_label(self.tokens)
        heads = f"{self.num_heads} heads of {self.head_dim}"
        return f"{self.bench.capitalize()} of {tokens} tokens, {heads}, {self.card}"

    @property
    def file_name(self) -> str:
        """Name of the plot, without its ending."""
        tokens = catalogue.length_label(self.tokens)
        text = f"{self.bench}_{tokens}_{self.num_heads}x{self.head_dim}_{self.card}"
        return re.sub(r"[^a-z0-9_-]+", "_", text.casefold()).strip("_")

    @property
    def description(self) -> str:
        """The times in words, for readers without the picture."""
        beside = {f"{rival} beside {name}": own for (name, rival), own in self.rivals.items()}
        lines = [
            f"{name}: "
            + ", ".join(f"{catalogue.length_label(x)} {value:.3g} ms" for x, value in points)
            for name, points in {**self.times, **beside}.items()
        ]
        return f"{self.title}. {'; '.join(lines)}"


def length_series(speeds: Speeds) -> list[LengthSeries]:
    """Finds the timings that make a line over at least three lengths.

    Args:
        speeds: What was measured.
    """
    groups: dict[tuple[str, str, int, int, int], list[Timing]] = defaultdict(list)
    needed = {"batch", "seq_len", "num_heads", "head_dim", "kind"}
    for timing in speeds.timings:
        shape = timing.shape
        if needed <= shape.keys():
            tokens = shape["batch"] * shape["seq_len"]
            heads = shape["num_heads"], shape["head_dim"]
            groups[timing.bench, timing.card, tokens, *heads].append(timing)
    series = []
    for key, timings in groups.items():
        times: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        rivals: _ByPair = defaultdict(lambda: defaultdict(list))
        ratios: _ByPair = defaultdict(lambda: defaultdict(list))
        for timing in timings:
            length = int(timing.shape["seq_len"])
            name = f"{_OURS} {attention(timing.shape)}"
            if timing.impl == _OURS:
                times[name][length].append(timing.median_ms)
                for rival, ratio in timing.ratio_to.items():
                    ratios[name, rival][length].append(ratio)
            else:
                rivals[name, timing.impl][length].append(timing.median_ms)
        if long_enough := [name for name, own in times.items() if len(own) >= _FEWEST_LENGTHS]:
            series.append(
                LengthSeries(
                    *key,
                    times={name: _points(times[name]) for name in long_enough},
                    rivals=_pairs_of(long_enough, rivals),
                    ratios=_pairs_of(long_enough, ratios),
                )
            )
    return series


def _pairs_of(names: Sequence[str], by_pair: _ByPair) -> dict[tuple[str, str], Points]:
    return {pair: _points(own) for pair, own in by_pair.items() if pair[0] in names}


def _points(by_length: Mapping[int, Sequence[float]]) -> Points:
    return [(length, median(values)) for length, values in sorted(by_length.items())]


def write_speed_plots(
    series: Sequence[LengthSeries], folder: Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draws each series.

    Args:
        series: The series.
        folder: An existing folder.
        formats: Of `plots.FORMATS`.

    Returns:
        The files written.
    """
    import matplotlib

    written = []
    with matplotlib.rc_context(OPTIONS):
        for own in series:
            written += save(_draw(own), folder / own.file_name, formats)
    return written


def _draw(series: LengthSeries) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    rivals = list(dict.fromkeys(rival for _, rival in series.ratios))
    # Rivals are drawn as a line beside the longest line of ours, and as marks beside the others.
    main = max(series.times, key=lambda name: len(series.times[name]))
    left, *right = figure.subplots(1, 1 + bool(rivals), squeeze=False)[0]
    styles = _styles(list(series.times))
    for name, points in series.times.items():
        left.plot(*zip(*points, strict=True), label=name, **styles[name])
    for place, rival in enumerate(rivals):
        color = COLORS[(len(KINDS) + place) % len(COLORS)]
        if beside := series.rivals.get((main, rival)):
            label = f"{rival}, beside {main}"
            left.plot(*zip(*beside, strict=True), label=label, color=color, ls="--", lw=1.2)
        others = [
            point
            for (name, own), points in series.rivals.items()
            if own == rival and name != main
            for point in points
        ]
        if others:
            left.plot(
                *zip(*others, strict=True),
                label=f"{rival}, beside the others",
                color=color,
                ls="",
                marker="+x1_"[place % 4],
                ms=7,
            )
    left.set_title("milliseconds (lower is better)", fontsize=9)
    _set_axes(left, series)
    for axis in right:
        for (name, rival), points in series.ratios.items():
            if rival == rivals[0]:
                axis.plot(*zip(*points, strict=True), **styles[name])
        axis.axhline(1, color="grey", lw=1)
        title = f"times the time of {rivals[0]} in the same run (below 1 is faster)"
        axis.set_title(title, fontsize=9)
        _set_axes(axis, series)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(series.title, fontsize=10)
    return figure


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Styles of lines of ours: a kind of attention has its colour, its gates other dashes."""
    styles: dict[str, dict[str, Any]] = {}
    seen: Counter[str] = Counter()
    for name in names:
        kind = name.removeprefix(f"{_OURS} ").partition(",")[0]
        place = KINDS.index(kind) if kind in KINDS else -1
        styles[name] = {
            "color": COLORS[place],
            "marker": "os^Dv"[place],
            "ms": 4,
            "ls": LINES[seen[kind] % len(LINES)],
        }
        seen[kind] += 1
    return styles


def _set_axes(axis: Any, series: LengthSeries) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    lengths = sorted({length for points in series.times.values() for length, _ in points})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    labels = [f"{catalogue.length_label(x)}\n{series.tokens // x} x" for x in lengths]
    axis.set_xticks(lengths, labels)
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(axis="x", which="minor", bottom=False)
    axis.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("tokens of a sequence, and sequences", fontsize=8)
