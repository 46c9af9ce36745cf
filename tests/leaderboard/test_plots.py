"""One model has one colour in all plots, and no label lies on a curve."""

import pytest
from golden_results import Run, perplexity_run, scores

from patheval.leaderboard import board as boards
from patheval.leaderboard import plots
from patheval.leaderboard.page import positions

MODELS = ("rope", "fox", "path", "path-fox")


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """Scores of four models, and perplexities of three in another order."""
    folder = tmp_path_factory.mktemp("runs")
    for model in MODELS:
        tasks = {f"path_phonebook_{length}": scores(90, 96) for length in ("1k", "2k", "4k")}
        Run(model, tasks).write(folder)
    for second, model in enumerate(("path-fox", "path", "fox")):
        loss = 9.0 if model == "fox" else 3.0
        run = perplexity_run(model, {end: [loss] * 3 for end in (512, 1024, 2048)})
        run.time = f"2026-05-02T10-00-0{second}.1"
        run.write(folder)
    return boards.build([folder], name="b", baseline="rope", train_length=2048)


def draw(board):
    (sweep,) = plots._sweeps(board)["PhoneBook"]
    (position,) = positions(board)
    panels = [plots._sweep_panel(board, sweep), plots._position_panel(board, position)]
    return [plots._draw_panels(board, [panel]).axes[0] for panel in panels]


def test_a_models_colour_is_the_same_in_every_plot(board):
    colors = dict(zip(board.models, plots.COLORS, strict=False))
    sweep, position = draw(board)
    for axis, models in ((sweep, set(board.models)), (position, {"fox", "path", "path-fox"})):
        lines = {line.get_label(): line.get_color() for line in axis.get_lines()}
        assert {m: lines[m] for m in models} == {m: colors[m] for m in models}
    # Arrows of what is above the frame too.
    arrows = {line.get_color() for line in position.get_lines() if line.get_marker() == "^"}
    assert arrows == {colors["fox"]}


def test_models_stand_in_the_boards_order_in_every_legend(board):
    for axis in draw(board):
        _, labels = axis.get_legend_handles_labels()
        assert labels == [model for model in board.models if model in labels]


def test_the_training_length_is_named_above_the_frame(board):
    for axis in draw(board):
        (label,) = axis.texts
        axis.figure.canvas.draw()
        assert label.get_text() == "trained"
        frame, own = axis.get_window_extent(), label.get_window_extent()
        assert own.y0 >= frame.y1
        assert own.y1 <= axis.title.get_window_extent().y0
