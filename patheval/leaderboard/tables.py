"""A board as text: numbers as people read them, Markdown, CSV and LaTeX tables."""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from . import catalogue
from .board import Board
from .schema import MARKS, SCHEMA_VERSION, STATUSES, Row
from .table import Cell, Column
from .uncertainty import Difference

MISSING = "\u2013"
MINUS = "\u2212"
NOISE = (
    "`n` (noise) marks a difference that chance alone would often give: equally good models "
    "differ by as much or more in at least 5 % of comparisons. Even so, about one of 20 "
    "comparisons of equally good models has no `n`."
)
_MOST_LISTED = 200


def format_value(value: float | None, unit: str) -> str:
    """Writes a value as tables show it: shares in percent, lengths as 8k, others plainly."""
    if value is None:
        return "none" if unit == "tokens" else MISSING
    if unit == "share":
        return f"{100 * value:.1g}" if 0 < 100 * value < 0.05 else fixed(100 * value, 1)
    if unit == "tokens":
        return catalogue.length_label(int(value))
    if abs(value) >= 1e5:
        return f"{value:.2e}"
    return fixed(value, 2 if abs(value) < 100 else 1)


def fixed(value: float, digits: int) -> str:
    """Writes a number with so many decimals; a tie goes away from zero, as on the page."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def format_error(stderr: float | None, unit: str) -> str:
    """Writes a standard error in the scale of `format_value`."""
    return "" if stderr is None or unit == "tokens" else format_value(stderr, unit)


def format_difference(difference: Difference, unit: str) -> str:
    """Writes a difference with its sign and standard error, and says when it is noise."""
    sign = "+" if difference.value >= 0 else MINUS
    value = format_value(abs(difference.value), unit)
    noise = " n" if difference.is_noise else ""
    return f"{sign}{value} ±{format_error(difference.stderr, unit)}{noise}"


def groups(board: Board) -> dict[str, list[Column]]:
    """Returns the columns under each benchmark's title, in reading order."""
    result: dict[str, list[Column]] = defaultdict(list)
    for column in board.columns:
        result[column.group].append(column)
    return dict(result)


def main_columns(columns: Sequence[Column]) -> list[Column]:
    """Returns the columns that stand for a benchmark: its averages where it has a sweep of them."""
    averaged = any(column.kind == "average" and column.length is not None for column in columns)
    return [column for column in columns if column.kind not in ("score", "family") or not averaged]


def used_marks(board: Board) -> dict[str, str]:
    """Returns a letter for each mark that occurs on the board, the same in all its tables."""
    found = {mark for cell in board.cells.values() for mark in cell.row.marks}
    return {mark: chr(ord("a") + i) for i, mark in enumerate(m for m in MARKS if m in found)}


def definitions(columns: Iterable[Column]) -> list[str]:
    """Returns what columns mean, a line for each meaning."""
    return list(dict.fromkeys(column.definition for column in columns if column.definition))


def sample_sizes(board: Board) -> str:
    """Says how many samples are behind the measured value of a task; empty if none says it."""
    sizes: dict[str, set[int]] = defaultdict(set)
    for column in board.columns:
        for cell in (board.cell(model, column) for model in board.models):
            if cell and column.kind == "score" and cell.row.kind == "measured" and cell.row.n:
                sizes[column.group].add(cell.row.n)
    by_range: dict[str, list[str]] = defaultdict(list)
    for group, own in sizes.items():
        text = f"{min(own):,}" + (f" to {max(own):,}" if len(own) > 1 else "")
        by_range[text].append(group)
    if not by_range:
        return ""
    parts = [f"{text} ({'; '.join(own)})" for text, own in by_range.items()]
    return f"Samples behind each value of a task: {', '.join(parts)}."


def markdown(board: Board) -> str:
    """Writes the board's README.md."""
    return "\n\n".join([*_markdown_parts(board)]) + "\n"


def _markdown_parts(board: Board) -> Iterable[str]:
    yield f"# {board.name}"
    shown = Counter(row.status for row in board.rows)
    origin = f"from {board.num_files} results files"
    if all(row.kind == "published" for row in board.rows):
        origin = "**published, not measured by patheval**"
    yield (
        f"{len(board.models)} models, {len(board.columns)} columns, {origin}. Written by "
        "`patheval leaderboard`; [index.html](index.html) is the same "
        "board as a page, `rows.jsonl` and `rows.csv` hold every number with its provenance."
    )
    yield (
        "Shares are in percent, ± is one standard error (0 where all samples score alike; the "
        "95 % intervals in `rows.jsonl` and on the page are not). **Bold** is the best and "
        "<u>underlined</u> the second best of the compared values. Letters are explained below "
        "each table."
        + (
            f" Differences are from {board.baseline}, paired on equal prompts where their scores "
            f"are at hand and else as from unrelated prompts. {NOISE} The test is McNemar's exact "
            "one, a paired bootstrap, or the normal distribution for averages."
            if board.baseline
            else ""
        )
    )
    if sizes := sample_sizes(board):
        yield sizes
    if summaries := summary_definitions(board):
        yield summaries
    for columns in groups(board).values():
        yield from markdown_section(board, columns)
    if measured := [row for row in board.rows if row.kind == "measured"]:
        yield "## Models"
        yield _model_table(board, measured)
    if sources := dict.fromkeys(row.source for row in board.rows if row.source):
        yield "## Sources"
        yield "\n".join(f"- {source}" for source in sources)
        yield (
            "Standard errors are not printed there: they follow from the number of samples, "
            "where the printed digits or the test set tell it."
        )
    yield "## What is not shown"
    hidden = [row for row in board.rows if row.status in ("refused", "superseded")]
    counts = ", ".join(
        f"{shown[status]} {status} ({text})" for status, text in STATUSES.items() if shown[status]
    )
    yield f"Rows: {counts}."
    lines = [
        f"- {_escape(p.file)}: {_escape(p.reason)}." for p in board.problems[:_MOST_LISTED]
    ] + [
        f"- {_escape(f'{row.model}, {row.task}, {row.metric} ({row.status}, {row.file})')}: "
        f"{_escape(row.reason or STATUSES[row.status])}."
        for row in hidden[:_MOST_LISTED]
    ]
    left = max(0, len(board.problems) - _MOST_LISTED) + max(0, len(hidden) - _MOST_LISTED)
    if left:
        lines.append(f"- and {left} more, in `rows.jsonl` and `board.json`.")
    yield "\n".join(lines) or "Every file was read in full and every value is shown."
    yield (
        f"Schema {SCHEMA_VERSION} of the rows is documented in `patheval/leaderboard/schema.py`."
    )


def summary_definitions(board: Board) -> str:
    """Writes a list of what the columns over the lengths mean; empty if there are none."""
    own = definitions(column for column in board.columns if column.kind == "summary")
    return "\n".join(f"- {text}" for text in own)


def markdown_section(board: Board, columns: Sequence[Column], level: int = 2) -> Iterator[str]:
    """Yields the paragraphs and tables of one benchmark.

    Args:
        board: The board.
        columns: The benchmark's columns.
        level: Level of the heading.
    """
    yield f"{'#' * level} {columns[0].group}"
    own = set(columns)
    shown = {mark for (_, c), cell in board.cells.items() if c in own for mark in cell.row.marks}
    letters = {mark: letter for mark, letter in used_marks(board).items() if mark in shown}
    main = main_columns(columns)
    yield markdown_table(board, main, letters)
    if any(cell.difference for (_, c), cell in board.cells.items() if c in set(main)):
        yield f"Difference from {board.baseline}:"
        yield _difference_table(board, main)
    if len(main) < len(columns):
        tasks = [column for column in columns if column not in main]
        table = markdown_table(board, tasks, letters)
        yield f"<details><summary>Tasks</summary>\n\n{table}\n\n</details>"
    if meanings := definitions(column for column in columns if column.kind != "summary"):
        yield "<br>\n".join(meanings)
    if len({column.parts for column in columns if column.kind == "average"}) > 1:
        yield (
            "The averages are of different tasks at different lengths, so nothing sums up the "
            "lengths and no line joins them."
        )
    if letters:
        yield "\n".join(
            f"<sup>{letter}</sup> {mark}: {MARKS[mark]}.<br>" for mark, letter in letters.items()
        )


def markdown_table(
    board: Board, columns: Sequence[Column], letters: Mapping[str, str] | None = None
) -> str:
    """Writes a table of values, with a line for each model that has any.

    Args:
        board: The board.
        columns: The columns.
        letters: Letter of each mark; without it marks are not shown.
    """
    letters = letters or {}
    lines = [_markdown_row(["model", *(_heading(column) for column in columns)])]
    lines.append(_markdown_row(["---", *("---:" for _ in columns)]))
    for model in board.models:
        cells = [board.cell(model, column) for column in columns]
        if any(cells):
            lines.append(
                _markdown_row(
                    [
                        _escape(model),
                        *(
                            _markdown_cell(cell, column, letters)
                            for cell, column in zip(cells, columns, strict=True)
                        ),
                    ]
                )
            )
    return "\n".join(lines)


def _heading(column: Column) -> str:
    return f"{_escape(column.title)} {'' if column.higher_is_better else '↓'}".strip()


def _markdown_cell(cell: Cell | None, column: Column, letters: Mapping[str, str]) -> str:
    if cell is None:
        return MISSING
    text = format_value(cell.row.value, column.unit)
    text = {0: text, 1: f"**{text}**", 2: f"<u>{text}</u>"}[cell.rank]
    if error := format_error(cell.estimate.stderr, column.unit):
        text += f" ±{error}"
    marks = "".join(letters.get(mark, "") for mark in MARKS if mark in cell.row.marks)
    return f"{text} <sup>{marks}</sup>" if marks else text


def _difference_table(board: Board, columns: Sequence[Column]) -> str:
    columns = [column for column in columns if column.unit != "tokens"]
    lines = [_markdown_row(["model", *(_heading(column) for column in columns)])]
    lines.append(_markdown_row(["---", *("---:" for _ in columns)]))
    for model in board.models:
        cells = [board.cell(model, column) for column in columns]
        if model != board.baseline and any(cell and cell.difference for cell in cells):
            texts = [
                format_difference(cell.difference, column.unit)
                if cell and cell.difference
                else MISSING
                for cell, column in zip(cells, columns, strict=True)
            ]
            lines.append(_markdown_row([_escape(model), *texts]))
    return "\n".join(lines)


def _model_table(board: Board, rows: Sequence[Row]) -> str:
    head = ("model", "attention", "--model", "weights", "dtype", "max_length", "versions", "runs")
    lines = [_markdown_row(head), _markdown_row(["---"] * len(head))]
    by_model: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.status == "shown":
            by_model[row.model].append(row)
    for model, rows in sorted(by_model.items(), key=lambda item: board.models.index(item[0])):
        versions = dict.fromkeys(
            f"{key} {value}" for row in rows for key, value in row.versions.items()
        )
        limits = sorted({row.max_length for row in rows if row.max_length is not None})
        lines.append(
            _markdown_row(
                [
                    _escape(model),
                    rows[0].attention or "not stated",
                    rows[0].model_type,
                    f"`{rows[0].checkpoint_sha256[:12]}`" if rows[0].checkpoint_sha256 else MISSING,
                    rows[0].dtype or MISSING,
                    ", ".join(map(str, limits)) or MISSING,
                    ", ".join(versions),
                    str(len({row.file for row in rows})),
                ]
            )
        )
    return "\n".join(lines)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    # An underscore inside a word starts no emphasis, and names are full of them.
    text = re.sub(r"([|<>*`\[\]]|\b_|_\b)", r"\\\1", text)
    return " ".join(text.split())


def write_csv_tables(board: Board, folder: Path) -> None:
    """Writes `table.csv` (values) and `differences.csv`, one line for each model."""
    parts = {"table.csv": ("value", "stderr"), "differences.csv": ("difference", "stderr", "p")}
    for name, fields in parts.items():
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            headings = [f"{c.name} {field}" for c in board.columns for field in fields]
            writer.writerow(["model", *headings])
            for model in board.models:
                values: list[object] = [model]
                for column in board.columns:
                    cell = board.cell(model, column)
                    values += _csv_values(cell, name, len(fields))
                writer.writerow(values)


def _csv_values(cell: Cell | None, name: str, count: int) -> list[object]:
    if cell is None:
        return [""] * count
    if name == "table.csv":
        stderr = cell.estimate.stderr
        return ["" if value is None else value for value in (cell.row.value, stderr)]
    if cell.difference is None:
        return [""] * count
    return [cell.difference.value, cell.difference.stderr, cell.difference.p_value]


def write_latex_tables(board: Board, folder: Path) -> None:
    """Writes one table for each benchmark, in the style of booktabs."""
    for columns in groups(board).values():
        main = main_columns(columns)
        name = re.sub(r"\W+", "_", main[0].benchmark)
        (folder / f"{name}.tex").write_text(latex(board, main), encoding="utf-8")


def latex(board: Board, columns: Sequence[Column]) -> str:
    """Writes a table: best bold, second best underlined, standard errors small."""
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
        f" & \\multicolumn{{{len(columns)}}}{{c}}{{{_latex(columns[0].group)}}} \\\\",
        f"\\cmidrule(lr){{2-{len(columns) + 1}}}",
        " & ".join(["", *(_latex(column.title) for column in columns)]) + " \\\\",
        "\\midrule",
    ]
    for model in board.models:
        cells = [board.cell(model, column) for column in columns]
        if any(cells):
            texts = [_latex_cell(cell, column) for cell, column in zip(cells, columns, strict=True)]
            lines.append(" & ".join([_latex(model), *texts]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex_cell(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return "--"
    text = format_value(cell.row.value, column.unit)
    text = {0: text, 1: f"\\textbf{{{text}}}", 2: f"\\underline{{{text}}}"}[cell.rank]
    if error := format_error(cell.estimate.stderr, column.unit):
        text += f" {{\\scriptsize$\\pm${error}}}"
    return text if cell.row.is_compared else f"{text}$^\\ast$"


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
