"""`patheval tasks`: the names to give to `lm_eval --tasks`."""

import fnmatch

import click

from patheval._autoload import task_folder
from patheval.suggestions import did_you_mean


@click.command()
@click.argument("pattern", default="*")
@click.option(
    "--kind",
    type=click.Choice(["tasks", "groups", "tags"]),
    help="List only these; groups and tags each stand for several tasks.",
)
def tasks(pattern: str, kind: str | None) -> None:
    """List the tasks, groups and tags.

    With PATTERN, a glob such as 'path_ruler_*', only those whose name matches.
    """
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=task_folder(), include_defaults=False)
    names = {
        None: manager.all_tasks,
        "tasks": manager.all_subtasks,
        "groups": manager.all_groups,
        "tags": manager.all_tags,
    }[kind]
    matches = fnmatch.filter(names, pattern)
    if not matches:
        hint = did_you_mean(pattern, names)
        raise click.BadParameter(
            f"no name matches {pattern!r}; {hint}`patheval tasks` lists all {len(names)}.",
            param_hint="PATTERN",
        )
    click.echo("\n".join(matches))
