"""The project's own leaderboards: the boards, and the README that shows them.

`leaderboards/` holds raw results of the zoo's models (`results/`), measured speeds
(`performance/`), and what is made of them: the boards `zoo/` and `paper/`, and README.md.
"""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from patheval.errors import ResultsError

from . import catalogue, collect, paper, schema, speed, speed_plots, states, tables
from .board import Board, build
from .page import heat_maps, positions
from .plots import POSITION_FILE, heat_file, sweep_files
from .speed import Speeds
from .states import STATES, StateRow
from .write import ROWS, write_board

RESULTS, PERFORMANCE, ZOO, PAPER = "results", "performance", "zoo", "paper"
README = "README.md"
_FORMATS = ("svg",)  # What the page shows.
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")


def make_front(folder: Path) -> dict[Path, str]:
    """Returns the text of every file here that must follow from the results.

    Args:
        folder: The folder `leaderboards`.

    Raises:
        ResultsError: A results or performance file is damaged, or a result is refused.
    """
    zoo = zoo_board(folder)
    texts = {folder / README: _front_page_of(folder, zoo)}
    for name, board in ((ZOO, zoo), (PAPER, paper.paper_board())):
        if board is not None:
            texts[folder / name / ROWS] = schema.to_json_lines(board.rows)
            texts[folder / name / README] = tables.markdown(board)
    return texts


def write_front(folder: Path, *, plots: bool = True) -> list[Path]:
    """Writes the boards and the README.

    Args:
        folder: The folder `leaderboards`.
        plots: Also write plots as files, which takes longest.

    Returns:
        The files written.
    """
    written = []
    zoo = zoo_board(folder)
    text = _front_page_of(folder, zoo)
    for name, board in ((ZOO, zoo), (PAPER, paper.paper_board())):
        if board is not None:
            written += write_board(
                board, folder / name, plots=plots and name == ZOO, formats=_FORMATS
            )
    if plots:
        series = speed_plots.length_series(speed.read_speeds(folder / PERFORMANCE))
        written += speed_plots.write_speed_plots(series, folder / PERFORMANCE, _FORMATS)
    (folder / README).write_text(text, encoding="utf-8")
    return [*written, folder / README]


def stale_files(folder: Path, *, plots: bool = True) -> list[Path]:
    """Returns the files that are not what the results now give, and the plots that are missing.

    Args:
        folder: The folder `leaderboards`.
        plots: Also look for the plots that the README shows.
    """
    texts = make_front(folder)
    stale = [
        path
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    shown = [folder / name for name in _IMAGE.findall(texts[folder / README])] if plots else []
    return stale + [path for path in shown if not path.is_file()]


def zoo_board(folder: Path) -> Board | None:
    """Builds the board of the zoo's committed results; None if there are none.

    Args:
        folder: The folder `leaderboards`.

    Raises:
        ResultsError: A file is damaged or a value refused: what is committed must be whole.
    """
    results = folder / RESULTS
    try:
        collect.find_results([results])
    except ResultsError:
        return None
    board = build([results], name="The zoo")
    names = [model for model in board.models if catalogue.last_part(model) == "rope"]
    if len(names) == 1:
        board = build([results], name="The zoo", baseline=names[0])
    faults = [f"{problem.file}: {problem.reason}" for problem in board.problems]
    faults += [f"{r.task} of {r.file}: {r.reason}" for r in board.rows if r.status == "refused"]
    if faults:
        raise ResultsError(
            f"{len(faults)} committed results cannot be shown, the first: {faults[0]}"
        )
    return board


def _front_page_of(folder: Path, zoo: Board | None) -> str:
    speeds = speed.read_speeds(folder / PERFORMANCE)
    return front_page(zoo, states.read(folder / RESULTS / STATES), speeds)


def front_page(zoo: Board | None, state_rows: list[StateRow], speeds: Speeds) -> str:
    """Writes leaderboards/README.md.

    Args:
        zoo: The board of the zoo's results, or None.
        state_rows: Errors of the zoo's state-tracking models.
        speeds: Measured speeds.
    """
    return "\n\n".join(_front_parts(zoo, state_rows, speeds)) + "\n"


def _front_parts(zoo: Board | None, state_rows: list[StateRow], speeds: Speeds) -> Iterator[str]:
    yield "# Leaderboards"
    yield (
        "Written by `patheval leaderboard front` from the files in this folder; edit those, not "
        "this page."
    )
    if zoo is None and not state_rows:
        yield "No measured results are published yet."
    else:
        yield "## The zoo"
        yield (
            "Four kinds of attention, small models trained alike on synthetic tasks: miniatures "
            "of the PaTH paper's Tables 3 and 1, measured by patheval. Their models are far "
            "smaller than the paper's: do not compare their numbers with its."
        )
    if zoo is not None:
        yield "### Table 3 in miniature: long context"
        yield (
            "Each kind was trained once, with one seed. What follows ± is about the choice of "
            "prompts alone; with another seed their order may be another, so these tables compare "
            "the checkpoints more than the kinds of attention."
        )
        yield from _zoo_parts(zoo)
    if state_rows:
        yield "### Table 1 in miniature: state tracking"
        yield (
            "Wrong answers in percent: the mean over the seeds, and in brackets the lowest and "
            "highest. The trainer counted them, not lm-eval. Every seed by itself: "
            f"[{STATES}]({RESULTS}/{STATES})."
        )
        yield from states.markdown_parts(state_rows, level=4)
    yield "## Speed"
    yield from _speed_parts(speeds)
    yield "## The paper"
    yield (
        "The numbers printed in the PaTH paper (arXiv 2505.16381), with the standard errors that "
        f"follow from their sample sizes where those can be told: [{PAPER}/]({PAPER}/README.md), "
        f"as a page [{PAPER}/index.html]({PAPER}/index.html). Published, not measured here."
    )
    board = paper.paper_board()
    by_group = tables.groups(board)
    for title in ("RULER", "BABILong", "PhoneBook", "LongBench-E", "Flip-flop"):
        main = tables.main_columns(by_group[title])
        columns = [column for column in main if column.kind != "summary"]
        yield f"### {title}, published"
        yield tables.markdown_table(board, columns)
    assets = files("patheval.leaderboard") / "assets"
    yield (assets / "front.md").read_text(encoding="utf-8").strip()


def _zoo_parts(zoo: Board) -> Iterator[str]:
    yield (
        "Percent, ± one standard error; **bold** is the best and <u>underlined</u> the second "
        f"best of compared values. {tables.NOISE} {tables.sample_sizes(zoo)} Intervals, every plot "
        f"and provenance: [{ZOO}/]({ZOO}/README.md), and as a page "
        f"[{ZOO}/index.html]({ZOO}/index.html)."
    )
    if summaries := tables.summary_definitions(zoo):
        yield summaries
    sweeps = sweep_files(zoo)
    for title, columns in tables.groups(zoo).items():
        yield from tables.markdown_section(zoo, columns, level=4)
        if title in sweeps:
            yield _image(f"{title} by length", f"{ZOO}/plots/{sweeps[title]}")
    if positions(zoo):
        yield "#### Perplexity by position"
        yield _image("perplexity by position in the text", f"{ZOO}/plots/{POSITION_FILE}")
    if maps := heat_maps(zoo):
        yield "#### Score by depth"
        yield _image(
            f"{maps[0]['group']} {maps[0]['subtask']} by length and by depth in the prompt",
            f"{ZOO}/plots/{heat_file(maps[0])}",
        )


def _speed_parts(speeds: Speeds) -> Iterator[str]:
    series = speed_plots.length_series(speeds)
    empty = True
    for bench, card, parts in speed.markdown_parts(speeds, PERFORMANCE):
        empty = False
        yield f"### {bench}, {card}"
        yield from parts
        for own in series:
            if (own.bench, own.card) == (bench, card):
                yield _image(own.description, f"{PERFORMANCE}/{own.file_name}")
    if empty:
        yield "No measured speeds are published yet."


def _image(description: str, path: str) -> str:
    return f"![{description}]({path}.svg)"
