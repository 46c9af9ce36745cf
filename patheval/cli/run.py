"""`patheval run`: lm-eval's own command, with patheval's models and tasks registered."""

import difflib
import sys

import click

from patheval import _autoload
from patheval.errors import UnsupportedError


@click.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="LM_EVAL_OPTIONS",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="")
def run(arguments: tuple[str, ...]) -> None:
    """Run lm-eval with patheval's models and tasks.

    Takes the options of `lm_eval run`, and works where Python skips start-up files.
    """
    _autoload.install()
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm_eval", "run", *arguments]
    try:
        cli_evaluate()
    except ValueError as error:
        _, separator, missing = str(error).partition("Tasks not found: ")
        if not separator:
            raise
        raise UnsupportedError(_no_such_task(missing)) from None


def _no_such_task(missing: str) -> str:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=_autoload.task_folder(), include_defaults=False)
    near = difflib.get_close_matches(missing.split(", ")[0], manager.all_tasks, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return (
        f"there is no task {missing}{hint} `patheval tasks` lists patheval's own; any length is "
        """a task ..._any with --metadata '{"length": N}'"""
    )
