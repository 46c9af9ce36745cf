"""A board's folder: every file that `patheval leaderboard build` writes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from . import schema, scorefile, tables
from .board import Board
from .page import write_page
from .plots import FORMATS, write_plots

ROWS = "rows.jsonl"
SUMMARY = "board.json"


def write_board(
    board: Board, folder: Path, *, plots: bool = True, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Writes a board in place of an earlier one, whose tables and plots go.

    Args:
        board: The board.
        folder: Made if it does not exist.
        plots: Also write plots, which takes longest.
        formats: Their formats, of `plots.FORMATS`.

    Returns:
        The files written.
    """
    table_folder = folder / "tables"
    table_folder.mkdir(parents=True, exist_ok=True)
    plot_folder = folder / "plots"
    for pattern in ("tables/*.csv", "tables/*.tex", "plots/*.svg", "plots/*.png"):
        for old in folder.glob(pattern):
            old.unlink()
    (folder / ROWS).write_text(schema.to_json_lines(board.rows), encoding="utf-8")
    schema.write_csv(board.rows, folder / "rows.csv")
    scorefile.write(board, folder)
    (folder / SUMMARY).write_text(_summary(board), encoding="utf-8")
    (folder / "README.md").write_text(tables.markdown(board), encoding="utf-8")
    write_page(board, folder / "index.html")
    tables.write_csv_tables(board, table_folder)
    tables.write_latex_tables(board, table_folder)
    if plots:
        plot_folder.mkdir(exist_ok=True)
        write_plots(board, plot_folder, formats)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _summary(board: Board) -> str:
    content = {
        "schema": schema.SCHEMA_VERSION,
        "name": board.name,
        "baseline": board.baseline,
        "models": board.models,
        "train_length": board.train_length,
        "num_files": board.num_files,
        "problems": [asdict(problem) for problem in board.problems],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
