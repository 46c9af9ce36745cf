"""Plots of measured speeds over the length of sequences, as SVG and PNG files."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from . import catalogue
from .plots import COLORS, FORMATS, OPTIONS, save
from .speed import Speeds, Timing, attention

_FEWEST_LENGTHS = 3
_OURS = "patheval"

Points = Sequence[tuple[int, float]]
"""(Tokens of a sequence, value), shortest first."""


@dataclass(frozen=True)
class LengthSeries:
    """Timings of equal numbers of tokens, cut into sequences of several lengths.

    Attributes:
        bench: `prefill` or `decode`.
        card: Device.
        tokens: Batch times length, in every timing.
        num_heads: Heads.
        head_dim: Channels of a head.
        times: By line, milliseconds. A rival's line is the median of its timings beside each kind
            of attention, since it computes the same whatever it stands beside.
        ratios: By line and rival, times the rival's time on the same shape.
    """

    bench: str
    card: str
    tokens: int
    num_heads: int
    head_dim: int
    times: Mapping[str, Points]
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
        lines = [
            f"{name}: "
            + ", ".join(f"{catalogue.length_label(x)} {value:.3g} ms" for x, value in points)
            for name, points in self.times.items()
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
        ratios: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for timing in timings:
            length = int(timing.shape["seq_len"])
            is_ours = timing.impl == _OURS
            name = f"{_OURS} {attention(timing.shape)}" if is_ours else timing.impl
            times[name][length].append(timing.median_ms)
            for rival, ratio in timing.ratio_to.items():
                ratios[name, rival][length].append(ratio)
        long_enough = [name for name, own in times.items() if len(own) >= _FEWEST_LENGTHS]
        if any(name.startswith(_OURS) for name in long_enough):
            series.append(
                LengthSeries(
                    *key,
                    times={name: _points(times[name]) for name in long_enough},
                    ratios={
                        pair: _points(own) for pair, own in ratios.items() if pair[0] in long_enough
                    },
                )
            )
    return series


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
    names = list(series.times)
    styles = {
        name: {
            "color": COLORS[place % len(COLORS)],
            "ls": "-" if name.startswith(_OURS) else "--",
            "marker": "os^Dv"[place % 5],
            "ms": 4,
        }
        for place, name in enumerate(names)
    }
    left, *right = figure.subplots(1, 1 + bool(rivals), squeeze=False)[0]
    for name, points in series.times.items():
        left.plot(*zip(*points, strict=True), label=name, **styles[name])
    left.set_title("milliseconds (lower is better)", fontsize=9)
    _set_axes(left, series)
    for axis in right:
        for (name, rival), points in series.ratios.items():
            if rival == rivals[0]:
                axis.plot(*zip(*points, strict=True), **styles[name])
        axis.axhline(1, color="grey", lw=1)
        axis.set_title(f"times the time of {rivals[0]} (below 1 is faster)", fontsize=9)
        _set_axes(axis, series)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(series.title, fontsize=10)
    return figure


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
