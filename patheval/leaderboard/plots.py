"""Plots of a board as SVG and PNG files, drawn with matplotlib."""

import re
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import catalogue
from .board import Board
from .page import heat_maps, positions
from .table import Column
from .tables import main_columns

COLORS = ("#2f7fd0", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6bbd", "#7f7f7f")
FORMATS = ("svg", "png")
"""Endings of the files that a plot is written to."""

OPTIONS: Any = {
    "svg.hashsalt": "patheval",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
"""For every plot: its file depends on its data alone, and not on the time or on random ids."""

POSITION_FILE = "perplexity_by_position"
LINES = ("-", "--", ":", "-.")
_MOST_MODELS = 16
_MOST_HEAT_MAPS = 8


def write_plots(board: Board, folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Writes plots of scores by length, perplexity by position, and scores by depth.

    Args:
        board: The board.
        folder: An existing folder.
        formats: Of `FORMATS`.
    """
    import matplotlib

    with matplotlib.rc_context(OPTIONS):
        names = sweep_files(board)
        for group, sweeps in _sweeps(board).items():
            panels = [_sweep_panel(board, columns) for columns in sweeps]
            save(_draw_panels(board, panels), folder / names[group], formats)
        if by_position := [_position_panel(board, plot) for plot in positions(board)]:
            save(_draw_panels(board, by_position), folder / POSITION_FILE, formats)
        for heat_map in heat_maps(board):
            save(_draw_heat_maps(board, heat_map), folder / heat_file(heat_map), formats)


def sweep_files(board: Board) -> dict[str, str]:
    """Returns the file name, without its ending, of each benchmark's plot over lengths."""
    return {group: f"sweep_{_file_name(group)}" for group in _sweeps(board)}


def heat_file(heat_map: Mapping[str, Any]) -> str:
    """Returns the file name, without its ending, of one of `page.heat_maps`."""
    return "depth_" + _file_name(f"{heat_map['group']}_{heat_map['subtask']}")


def _sweeps(board: Board) -> dict[str, list[list[Column]]]:
    """Panels of each benchmark: the benchmark's own score, its families, its tasks."""
    groups: dict[str, list[Column]] = defaultdict(list)
    for column in board.columns:
        if column.length and column.kind != "summary":
            groups[column.group].append(column)
    sweeps = {}
    for group, columns in groups.items():
        main = set(main_columns(columns))
        panels: dict[tuple[str, str, tuple[str, ...]], list[Column]] = defaultdict(list)
        for column in sorted(
            columns, key=lambda c: (c not in main, c.kind != "family", c.length or 0)
        ):
            panels[column.subtask, column.metric, column.parts].append(column)
        if drawn := [panel for panel in panels.values() if len(panel) > 1]:
            sweeps[group] = drawn
    return sweeps


@dataclass(frozen=True)
class _Panel:
    """Lines over lengths: ticks as (tokens, label), points as [tokens, value, low, high]."""

    title: str
    is_share: bool
    higher_is_better: bool
    ticks: Sequence[tuple[int, str]]
    lines: Mapping[str, Sequence[Sequence[Any]]]


def _sweep_panel(board: Board, columns: list[Column]) -> _Panel:
    first = columns[0]
    lines = {}
    for model in board.models[:_MOST_MODELS]:
        cells = [(column.length, board.cell(model, column)) for column in columns]
        lines[model] = [
            (length, cell.estimate.value, cell.estimate.low, cell.estimate.high)
            for length, cell in cells
            if cell is not None
        ]
    name = "" if first.kind == "average" else first.subtask
    return _Panel(
        " ".join(filter(None, (first.group, name, first.share_of_tasks))),
        first.unit == "share",
        first.higher_is_better,
        [(c.length or 0, catalogue.column_label(c.benchmark, c.length)) for c in columns],
        lines,
    )


def _position_panel(board: Board, plot: dict[str, Any]) -> _Panel:
    chosen = list(plot["models"].items())[:_MOST_MODELS]
    lines = {
        board.models[int(index)]: [point for point in points if point[1] is not None]
        for index, points in chosen
    }
    return _Panel(plot["title"], False, False, [tuple(tick) for tick in plot["ticks"]], lines)


def _draw_panels(board: Board, panels: Sequence[_Panel]) -> Any:
    from matplotlib.figure import Figure

    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(4.2 * across, 3.1 * down + 0.4), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(board, axis, panel)
    for axis in axes[len(panels) :]:
        axis.remove()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _line_style(board: Board, model: str) -> dict[str, str]:
    """A model's place on the board gives its colour, in every plot."""
    place = board.models.index(model)
    return {
        "color": COLORS[place % len(COLORS)],
        "ls": LINES[place // len(COLORS) % len(LINES)],
    }


def _draw_panel(board: Board, axis: Any, panel: _Panel) -> None:
    scale = 100 if panel.is_share else 1
    values, lows = [], []
    for model, points in panel.lines.items():
        if not points:
            continue
        style = _line_style(board, model)
        heights = [scale * value for _, value, _, _ in points]
        axis.plot([x for x, *_ in points], heights, marker="o", ms=3.5, label=model, **style)
        values += heights
        banded = [
            (x, scale * low, scale * high)
            for x, _, low, high in points
            if low is not None and high is not None
        ]
        if banded:
            lows += [low for _, low, _ in banded if low > 0]
            axis.fill_between(*zip(*banded, strict=True), color=style["color"], alpha=0.15, lw=0)
    ticks = [length for length, _ in panel.ticks]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [label for _, label in panel.ticks])
    axis.minorticks_off()
    note = "" if panel.higher_is_better else " (lower is better)"
    axis.set_title("\n".join(textwrap.wrap(panel.title + note, 52)), fontsize=9, pad=14)
    if panel.is_share:
        axis.set_ylim(-2, 102)
    elif values:
        # One model that explodes must not press the others to the axis.
        middle = sorted(values)[len(values) // 2]
        top = min(max(values), 2 * middle) * 1.05
        axis.set_ylim(min(values + lows) * 0.95, top)
        for model, points in panel.lines.items():
            for x, value, _, _ in points:
                if value > top:
                    color = _line_style(board, model)["color"]
                    axis.plot([x], [top * 0.97], marker="^", color=color, clip_on=False)
    if board.train_length and ticks[0] <= board.train_length <= ticks[-1]:
        axis.axvline(board.train_length, color="grey", ls="--", lw=1)
        # Above the frame, where no curve runs.
        axis.annotate(
            "trained",
            (board.train_length, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )


def _draw_heat_maps(board: Board, heat_map: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    chosen = list(heat_map["models"].items())[:_MOST_HEAT_MAPS]
    lengths = heat_map["lengths"]
    across = min(4, len(chosen))
    down = -(-len(chosen) // across)
    size = ((0.9 + 0.55 * len(lengths)) * across + 0.8, 3.2 * down)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    image: Any = None
    for axis, (index, fields) in zip(axes, chosen, strict=False):
        depths = range(len(next(iter(fields.values()))))
        grid = [
            [fields[x][d][0] * 100 if x in fields and fields[x][d][1] else float("nan")
             for x in lengths]
            for d in depths
        ]  # fmt: skip
        image = axis.imshow(grid, vmin=0, vmax=100, cmap="cividis", aspect="auto")
        axis.grid(visible=False)
        for place, length in enumerate(lengths):
            for d in depths:
                if length in fields and (count := fields[length][d][1]):
                    color = "white" if grid[d][place] < 50 else "black"
                    axis.text(place, d, f"n={count}", color=color, fontsize=5, ha="center",
                              va="center")  # fmt: skip
        axis.set_xticks(range(len(lengths)), lengths, fontsize=7)
        axis.set_yticks([-0.5, 4.5, 9.5], ["0 %", "50 %", "100 %"], fontsize=7)
        axis.set_title(board.models[int(index)], fontsize=9)
    for axis in axes[len(chosen) :]:
        axis.remove()
    title = f"{heat_map['group']} {heat_map['subtask']}".strip()
    lines = textwrap.wrap(f"{title}: score by length and depth", 24 + 16 * across)
    figure.suptitle("\n".join(lines), fontsize=10)
    figure.colorbar(image, ax=figure.axes, shrink=0.8, ticks=[0, 50, 100], format="%d")
    return figure


def save(figure: Any, path: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes a figure on a white ground, which reads in light and dark surroundings.

    Args:
        figure: The figure.
        path: The files' path, without an ending.
        formats: Of `FORMATS`.

    Returns:
        The files.
    """
    files = [path.with_name(f"{path.name}.{ending}") for ending in formats]
    for file in files:
        stamp = "Date" if file.suffix == ".svg" else "Software"
        figure.savefig(file, dpi=130, metadata={stamp: None})
        figure.set_layout_engine("none")  # It is laid out now, and need not be again.
    return files


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "_", text.casefold()).strip("_")
