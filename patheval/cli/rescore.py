"""`patheval rescore`: scores from samples files, without a model or a GPU."""

import dataclasses
import json
import logging
from pathlib import Path

import click
from rich.console import Console
from rich.table import Column, Table

from patheval._autoload import task_folder
from patheval.samplefile import refuse_results, task_of

_ANY_WIDTH = 10_000


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--task", help="The task, where a file's name does not hold it.")
@click.option(
    "--include_path",
    type=click.Path(exists=True, file_okay=False),
    help="Further folder with task definitions.",
)
@click.option(
    "--tokenizer", help="Where the run's tokenizer is now; only for scorers that read prompts."
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as a JSON list.")
def rescore(
    files: tuple[Path, ...],
    task: str | None,
    include_path: str | None,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Score the answers in samples FILES anew with the installed scorers.

    FILES are those that `lm_eval --log_samples` wrote (samples_TASK_DATE.jsonl). Neither a model
    nor a data set is loaded. The column `recorded` is the mean of the values in the file.
    """
    for path in files:
        refuse_results(path)
    from lm_eval.tasks import TaskManager

    from patheval.rebuilding import Rebuilder
    from patheval.rescoring import rescore as rescore_file

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # It warns of what is done on purpose.
    folders = [task_folder(), *([include_path] if include_path else [])]
    scores = []
    with Console(stderr=True).status("Loading tasks") as status:
        manager = TaskManager(include_path=folders, include_defaults=False)
        wanted = {task or task_of(path) for path in files}
        if wanted - {None, *manager.all_subtasks}:
            # lm-eval's own tasks; indexing them takes half a minute.
            manager = TaskManager(include_path=folders)
        for path in files:
            status.update(f"Scoring {path.name}")
            rebuild = Rebuilder(path, task, tokenizer, include_path)
            scores += rescore_file(path, manager, rebuild, task)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(score) for score in scores], indent=2))
        return
    console = Console()
    # In a file or a pipe a name stands in one line, however long.
    is_wide = not console.is_terminal
    names = [
        Column(name, overflow="fold", no_wrap=is_wide) for name in ("task", "metric", "filter")
    ]
    table = Table(*names, "value", "stderr", "recorded", "samples")
    for score in scores:
        numbers = [
            "" if number is None else f"{number:.4f}"
            for number in (score.value, score.stderr, score.recorded)
        ]
        table.add_row(score.task, score.metric, score.filter, *numbers, str(score.num_samples))
    if is_wide:
        unbounded = console.options.update(width=_ANY_WIDTH)
        console.width = max(console.width, console.measure(table, options=unbounded).maximum)
    console.print(table)
