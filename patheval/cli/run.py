"""`patheval run`: lm-eval's own command, with patheval's models and tasks registered."""

import contextlib
import sys

import click
from rich.console import Console

from patheval import _autoload
from patheval.cli import _run_checks
from patheval.cli._stopping import resumable


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
    asks_for_help = not arguments or bool({"-h", "--help"} & set(arguments))
    model = ""
    if not asks_for_help:
        with Console(stderr=True).status("Checking"):
            model = _run_checks.check(arguments)
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm_eval", "run", *arguments]
    keeps = model in _autoload.OWN_MODELS
    with resumable("finished answers") if keeps else contextlib.nullcontext():
        try:
            cli_evaluate()
        except ValueError as error:
            _, separator, missing = str(error).partition("Tasks not found: ")
            if not separator:
                raise
            from lm_eval.tasks import TaskManager

            own = TaskManager(include_path=_autoload.task_folder(), include_defaults=False)
            raise _run_checks.no_such_task(missing, own.all_tasks) from None
