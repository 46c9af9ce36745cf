"""`patheval run`: lm-eval's own command, with patheval's models and tasks registered."""

import sys

import click

from patheval import _autoload


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
    cli_evaluate()
