"""The project's own leaderboards: the boards, and the README that shows them.

`leaderboards/` holds raw results of the zoo's models (`results/`), measured speeds
(`performance/`), and what is made of them: the boards `zoo/` and `paper/`, and README.md.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from patheval.errors import ResultsError

from . import catalogue, collect, paper, schema, tables
from .board import Board, build
from .plots import sweep_files
from .write import ROWS, write_board

RESULTS, PERFORMANCE, ZOO, PAPER = "results", "performance", "zoo", "paper"
README = "README.md"


def make_front(folder: Path) -> dict[Path, str]:
    """Returns the text of every file here that must follow from the results.

    Args:
        folder: The folder `leaderboards`.

    Raises:
        ResultsError: A results or performance file is damaged, or a result is refused.
    """
    zoo = zoo_board(folder)
    texts = {folder / README: front_page(zoo, performance_rows(folder / PERFORMANCE))}
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
    for name, board in ((ZOO, zoo), (PAPER, paper.paper_board())):
        if board is not None:
            written += write_board(board, folder / name, plots=plots and name == ZOO)
    text = front_page(zoo, performance_rows(folder / PERFORMANCE))
    (folder / README).write_text(text, encoding="utf-8")
    return [*written, folder / README]


def stale_files(folder: Path) -> list[Path]:
    """Returns the files that are not what the results now give.

    Args:
        folder: The folder `leaderboards`.
    """
    return [
        path
        for path, text in make_front(folder).items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


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


def performance_rows(folder: Path) -> list[dict[str, Any]]:
    """Reads the measured speeds that `patheval bench` wrote; none if there is no file.

    Args:
        folder: Folder of JSON files, each with a list `rows`.

    Raises:
        ResultsError: A file is damaged.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
                if not isinstance(row["shape"], dict):
                    raise TypeError("shape is no mapping")
                rows.append({**row, "median_ms": float(row["median_ms"]), "file": path.name})
                str(row["bench"]), str(row["impl"])
        except (KeyError, TypeError, ValueError) as error:
            raise ResultsError(
                f"{path} is no file of speeds ({type(error).__name__}: {error}); "
                "write it with `patheval bench`"
            ) from error
    return rows


def front_page(zoo: Board | None, performance: list[dict[str, Any]]) -> str:
    """Writes leaderboards/README.md.

    Args:
        zoo: The board of the zoo's results, or None.
        performance: Rows of `performance_rows`.
    """
    return "\n\n".join(_front_parts(zoo, performance)) + "\n"


def _front_parts(zoo: Board | None, performance: list[dict[str, Any]]) -> Iterator[str]:
    yield "# Leaderboards"
    yield (
        "Written by `patheval leaderboard front` from the files in this folder; edit those, not "
        "this page."
    )
    if zoo is None:
        yield "No measured results are published yet."
    else:
        yield "## The zoo"
        yield (
            "Four kinds of attention, small models trained alike on synthetic tasks: a miniature "
            "of the PaTH paper's Tables 1 and 3, measured by patheval. Percent, ± one standard "
            "error; **bold** is the best and <u>underlined</u> the second best of compared "
            "values; `n`: a difference that is noise. The whole board with intervals, plots and "
            "provenance: "
            f"[{ZOO}/]({ZOO}/README.md), and as a page [{ZOO}/index.html]({ZOO}/index.html)."
        )
        plots = sweep_files(zoo)
        for title, columns in tables.groups(zoo).items():
            yield from tables.markdown_section(zoo, columns, level=3)
            if title in plots:
                yield f"![{title} by length]({ZOO}/plots/{plots[title]}.svg)"
    yield "## Speed"
    yield from _performance_parts(performance)
    yield "## The paper"
    yield (
        "The numbers printed in the PaTH paper (arXiv 2505.16381), with the standard errors that "
        f"follow from their sample sizes where those can be told: [{PAPER}/]({PAPER}/README.md), "
        f"as a page [{PAPER}/index.html]({PAPER}/index.html). Published, not measured here."
    )
    board = paper.paper_board()
    by_group = tables.groups(board)
    for title in ("RULER", "BABILong", "PhoneBook", "LongBench-E"):
        columns = [c for c in tables.main_columns(by_group[title]) if c.length is not None]
        yield f"### {title}, published"
        yield tables.markdown_table(board, columns)
    assets = files("patheval.leaderboard") / "assets"
    yield (assets / "front.md").read_text(encoding="utf-8").strip()


def _performance_parts(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        yield "No measured speeds are published yet."
        return
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[str(row["bench"]), str(row.get("card", "unknown card"))].append(row)
    for (bench, card), own in groups.items():
        yield f"### {bench}, {card}"
        impls = list(dict.fromkeys(str(row["impl"]) for row in own))
        cells: dict[str, dict[str, float]] = defaultdict(dict)
        for row in own:
            cells[_shape(row["shape"])][str(row["impl"])] = row["median_ms"]
        lines = [f"| shape | {' | '.join(impls)} |", f"| --- |{' ---: |' * len(impls)}"]
        for shape, values in cells.items():
            fastest = min(values.values())
            texts = []
            for impl in impls:
                text = tables.MISSING
                if impl in values:
                    text = f"{values[impl]:.3g}"
                    text = f"**{text}**" if values[impl] == fastest and len(values) > 1 else text
                texts.append(text)
            lines.append(f"| {shape} | {' | '.join(texts)} |")
        yield "Median milliseconds; the fastest is bold."
        yield "\n".join(lines)
        yield "Measured with " + "; ".join(dict.fromkeys(_measured_with(row) for row in own)) + "."


def _shape(shape: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in shape.items() if value is not None)


def _measured_with(row: Mapping[str, Any]) -> str:
    versions = row.get("versions") or {}
    parts = [f"{key} {value}" for key, value in versions.items()]
    parts += [f"driver {row['driver']}"] if row.get("driver") else []
    parts += [f"commit {str(row['commit'])[:12]}"] if row.get("commit") else []
    return ", ".join([*parts, f"[{row['file']}]({PERFORMANCE}/{row['file']})"])
