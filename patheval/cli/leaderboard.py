"""`patheval leaderboard`: from results files to tables, plots and a page."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

_FOLDER = click.Path(path_type=Path)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    from patheval.errors import ResultsError

    try:
        yield
    except OSError as error:
        raise ResultsError(
            f"{folder} cannot be written ({error.strerror}); make room, or name another folder"
        ) from error


@click.group()
def leaderboard() -> None:
    """Tables, plots and a page from results files, and what changed between two of them."""


def _pairs(context: click.Context, parameter: click.Parameter, values: Any) -> dict[str, str]:
    pairs = [value.rpartition("=")[::2] for value in values]
    if any(not (old and new) for old, new in pairs):
        raise click.BadParameter("write OLD=NEW, such as 'zoo:rope=RoPE'.")
    if len(dict(pairs)) < len(pairs):
        raise click.BadParameter("a name is given twice before '='.")
    return dict(pairs)


def _length(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    from patheval.leaderboard.catalogue import tokens

    try:
        return None if value is None else tokens(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no length; write tokens or 4k.") from error


@leaderboard.command()
@click.argument("folders", nargs=-1, required=True, type=_FOLDER, metavar="DIR...")
@click.option("--out", required=True, type=_FOLDER, help="Folder of the board; made if missing.")
@click.option("--baseline", default="", help="Model that the others are compared with.")
@click.option("--name", help="Title of the board; by default the name of its folder.")
@click.option(
    "--rename",
    multiple=True,
    metavar="OLD=NEW",
    callback=_pairs,
    help="Show a model under another name; may be repeated.",
)
@click.option(
    "--trained-at",
    callback=_length,
    metavar="LENGTH",
    help="Training length, such as 4k, to mark in plots; by default what RoPE configs state.",
)
@click.option("--allow-limit", is_flag=True, help="Show --limit runs, marked and not compared.")
@click.option("--strict", is_flag=True, help="Fail if anything was refused or unreadable.")
@click.option(
    "--examples",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Answers to show for each value.",
)
@click.option("--plots/--no-plots", default=True, help="Also write plots as SVG and PNG files.")
def build(
    folders: tuple[Path, ...],
    out: Path,
    baseline: str,
    name: str | None,
    rename: dict[str, str],
    trained_at: int | None,
    allow_limit: bool,
    strict: bool,
    examples: int,
    plots: bool,
) -> None:
    """Build a board from all results files in DIR, hidden folders included.

    Reads what lm_eval wrote with --output_path, for any model; with --log_samples models are
    compared prompt by prompt. Values that cannot be trusted are refused or marked, and listed.
    """
    from patheval.errors import ResultsError
    from patheval.leaderboard.board import build as build_board
    from patheval.leaderboard.write import write_board

    console = Console(stderr=True)

    def progress(files: Iterable[tuple[Path, str]], total: int) -> Iterator[tuple[Path, str]]:
        description = f"Reading {total} results files"
        return iter(
            track(files, description, total, console=console, disable=not console.is_terminal)
        )

    board = build_board(
        folders,
        name=name or out.resolve().name,
        baseline=baseline,
        renamed=rename,
        allow_limit=allow_limit,
        train_length=trained_at,
        num_examples=examples,
        progress=progress,
    )
    refused = [row for row in board.rows if row.status == "refused"]
    for problem in board.problems:
        click.secho(f"not read in full: {problem.file}: {problem.reason}", fg="yellow", err=True)
    for (file, task), reason in {(r.file, r.task): r.reason for r in refused}.items():
        click.secho(f"refused: {task} of {file}: {reason}", fg="yellow", err=True)
    if strict and (refused or board.problems):
        raise ResultsError(
            f"--strict: {len(refused)} values were refused and {len(board.problems)} files not "
            "read in full; mend what is listed above, or leave --strict out"
        )
    with _writing(out):
        write_board(board, out, plots=plots)
    click.echo(
        f"{out}: {len(board.models)} models, {len(board.columns)} columns, "
        f"{len(refused)} values refused, {len(board.problems)} files not read in full"
    )


@leaderboard.command()
@click.argument("folders", nargs=-1, type=_FOLDER, metavar="[DIR]...")
@click.option("--out", required=True, type=_FOLDER, help="Folder of the board, or the report.")
@click.option("--name", default="Your runs", show_default=True, help="Title of the report.")
def paper(folders: tuple[Path, ...], out: Path, name: str) -> None:
    """Write the PaTH paper's numbers as a board, or beside your own.

    Without DIR, OUT becomes the board of the published numbers. With DIR, folders of results files,
    OUT/paper.md lines up each model with the paper's of the same attention.
    """
    from patheval.leaderboard import paper as published
    from patheval.leaderboard.board import build as build_board
    from patheval.leaderboard.write import write_board

    if folders:
        text = published.line_up(build_board(folders, name=name))
        report = out / "paper.md"
        with _writing(out):
            out.mkdir(parents=True, exist_ok=True)
            report.write_text(text, encoding="utf-8")
        if published.NOTHING_IN_COMMON in text:
            click.secho(published.NOTHING_IN_COMMON, fg="yellow", err=True)
        click.echo(report)
    else:
        with _writing(out):
            write_board(published.paper_board(), out)
        click.echo(out)


@leaderboard.command()
@click.argument("folder", type=_FOLDER, default=Path("leaderboards"))
@click.option("--check", is_flag=True, help="Write nothing; exit with status 1 if a file is stale.")
@click.pass_context
def front(context: click.Context, folder: Path, check: bool) -> None:
    """Write the boards and the README of FOLDER, by default leaderboards.

    FOLDER/results holds results files and FOLDER/performance the speeds of `patheval bench`; either
    may be missing. Writes FOLDER/zoo, FOLDER/paper and FOLDER/README.md.
    """
    from patheval.leaderboard.front import stale_files, write_front

    if check:
        stale = stale_files(folder)
        for path in stale:
            click.secho(f"stale: {path}; run `patheval leaderboard front {folder}`", err=True)
        context.exit(1 if stale else 0)
    with _writing(folder):
        written = write_front(folder)
    click.echo(f"{len(written)} files written to {folder}")


@leaderboard.command()
@click.argument("source", type=_FOLDER)
@click.option("--out", required=True, type=_FOLDER, help="Folder of the copies.")
def trim(source: Path, out: Path) -> None:
    """Copy results from SOURCE without prompts, small enough to commit.

    Boards built from the copies have the same numbers, paired comparisons and depth maps.
    """
    from patheval.leaderboard.trim import trim_results

    with _writing(out):
        before, after = trim_results(source, out)
    click.echo(f"{out}: {after / 1e6:.1f} MB of {before / 1e6:.1f} MB")


@leaderboard.command()
@click.argument("board", type=_FOLDER)
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--private", is_flag=True, help="Make a new dataset private.")
@click.option("--upload", is_flag=True, help="Upload; without it, only list what would be.")
def push(board: Path, repository: str, private: bool, upload: bool) -> None:
    """Upload BOARD to the dataset OWNER/NAME on the Hugging Face hub.

    Lists the files and uploads nothing unless --upload is given. Needs `hf auth login`.
    """
    from patheval.leaderboard.push import files_to_push, push_board

    paths = files_to_push(board)
    for path in paths:
        click.echo(f"{path.stat().st_size:>12,}  {path.relative_to(board)}")
    if upload:
        click.echo(push_board(board, repository, private=private))
    else:
        click.echo(f"{len(paths)} files for {repository}; nothing was uploaded, pass --upload")


@leaderboard.command()
@click.argument("before", type=_FOLDER)
@click.argument("after", type=_FOLDER)
@click.option(
    "--sigmas", default=2.0, show_default=True, help="Standard errors that a move must exceed."
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="BEFORE=AFTER",
    callback=_pairs,
    help="Compare models of different names; may be repeated.",
)
@click.option("--all", "show_all", is_flag=True, help="List values that did not move, too.")
@click.option("--strict", is_flag=True, help="Also fail for values gone or not comparable.")
@click.option("--json", "as_json", is_flag=True, help="Print all changes as a JSON list.")
@click.pass_context
def diff(
    context: click.Context,
    before: Path,
    after: Path,
    sigmas: float,
    models: dict[str, str],
    show_all: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Say what changed from board BEFORE to board AFTER.

    A value is "same" if it is equal, "within noise" if it moved by at most --sigmas standard
    errors, else "better" or "worse". Exits with status 1 if one is worse. Boards are folders that
    `patheval leaderboard build` wrote; equal prompts are compared one by one.
    """
    import dataclasses
    import json

    from patheval.leaderboard.diff import UNMOVED, compare

    changes = compare(before, after, sigmas=sigmas, models=models)
    failing = {"worse", "gone", "not comparable"} if strict else {"worse"}
    failed = [change for change in changes if change.kind in failing]
    if as_json:
        records = [
            dataclasses.asdict(change) | {"column": change.column.name} for change in changes
        ]
        click.echo(json.dumps(records, indent=2, ensure_ascii=False))
    else:
        shown = [change for change in changes if show_all or change.kind not in UNMOVED]
        if shown:
            Console().print(_diff_table(shown))
        kinds = [change.kind for change in changes]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(sorted(kinds)))
        hint = "; --all lists every one" if len(shown) < len(changes) else ""
        click.echo(f"{len(changes)} values: {counts}{hint}")
    context.exit(1 if failed else 0)


def _diff_table(changes: list[Any]) -> Table:
    from patheval.leaderboard.tables import format_difference, format_value

    styles = {"worse": "bold red", "better": "green", "gone": "yellow", "not comparable": "yellow"}
    table = Table("", "model", "column", "before", "after", "change")
    for change in changes:
        unit = change.column.unit
        text = ", ".join(change.marks)
        if change.difference is not None:
            text = format_difference(change.difference, unit)
        table.add_row(
            Text(change.kind, style=styles.get(change.kind, "")),
            Text(change.model),
            Text(change.column.name),
            format_value(change.before, unit),
            format_value(change.after, unit),
            text,
        )
    return table
