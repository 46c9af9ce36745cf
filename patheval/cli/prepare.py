"""`patheval prepare`: the samples of tasks, before a model is loaded."""

import json
import os
import time
from typing import TYPE_CHECKING

import click

from patheval._autoload import task_folder
from patheval.suggestions import did_you_mean

if TYPE_CHECKING:
    from patheval.preparation import Plan


@click.command()
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@click.option(
    "--tokenizer", required=True, help="Folder, zoo:NAME or Hugging Face id of the tokenizer."
)
@click.option("--metadata", help="JSON object, as for `lm_eval run`; such as '{\"length\": 3000}'.")
@click.option("--limit", type=click.IntRange(1), help="Build only the first N samples of each.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="all cores",
    help="Processes.",
)
def prepare(
    tasks: tuple[str, ...], tokenizer: str, metadata: str | None, limit: int | None, workers: int
) -> None:
    """Build the samples of tasks, groups, tags or patterns such as 'path_ruler_*_4k'.

    Fetches what they are made of and fills the cache (PATHEVAL_CACHE, else patheval in the user's
    cache folder), so that a later run with the same tokenizer starts at once. Samples that are
    there are kept: a run that was interrupted goes on where it was.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from patheval import preparation
    from patheval.errors import PrerequisiteError

    if os.environ.get("PATHEVAL_CACHE") == "off":
        raise PrerequisiteError(
            "there is nothing to prepare: PATHEVAL_CACHE is off; unset it or name a folder"
        )
    start = time.monotonic()
    console = Console(stderr=True)
    values = _object(metadata) | {"tokenizer": tokenizer}
    names = [name for names in tasks for name in names.split(",")]
    with console.status("Loading tasks and sources"):
        plan = _plan(names, values, limit)
    done = preparation.build(plan.chunks, min(workers, len(plan.chunks) or 1))
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task(
            "Building samples", total=sum(len(chunk.indices) for chunk in plan.chunks)
        )
        for chunk in done:
            progress.update(bar, advance=len(chunk.indices), description=chunk.task)
    click.echo(
        f"{plan.num_samples} samples of {plan.num_tasks} tasks are ready "
        f"after {time.monotonic() - start:.0f} s"
    )


def _plan(names: list[str], metadata: dict[str, object], limit: int | None) -> "Plan":
    from patheval import preparation

    try:
        return preparation.plan(names, metadata, limit)
    except KeyError as error:
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=task_folder(), include_defaults=False)
        hint = did_you_mean(str(error.args[0]), manager.all_tasks)
        raise click.BadParameter(
            f"no task, group or tag is called {error}; {hint}`patheval tasks` lists them.",
            param_hint="TASK",
        ) from error


def _object(text: str | None) -> dict[str, object]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise click.BadParameter(f"no JSON ({error}).", param_hint="--metadata") from error
    if not isinstance(value, dict):
        raise click.BadParameter("no JSON object.", param_hint="--metadata")
    return value
