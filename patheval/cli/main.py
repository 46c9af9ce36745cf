"""The command `patheval` and its error boundary."""

import sys

import click

import patheval
from patheval.cli.bench import bench
from patheval.cli.doctor import doctor
from patheval.cli.golden import golden
from patheval.cli.leaderboard import leaderboard
from patheval.cli.prepare import prepare
from patheval.cli.rescore import rescore
from patheval.cli.run import run
from patheval.cli.samples import samples
from patheval.cli.sweep import sweep
from patheval.cli.tasks import tasks
from patheval.cli.zoo import zoo
from patheval.errors import PathEvalError


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Shell completion: `eval "$(_PATHEVAL_COMPLETE=bash_source patheval)"`, or zsh, fish.',
)
@click.version_option(patheval.__version__, prog_name="patheval")
def cli() -> None:
    """Evaluate PaTH-attention language models through lm-evaluation-harness and vLLM."""


cli.add_command(run)
cli.add_command(rescore)
cli.add_command(samples)
cli.add_command(tasks)
cli.add_command(prepare)
cli.add_command(doctor)
cli.add_command(golden)
cli.add_command(zoo)
cli.add_command(sweep)
cli.add_command(leaderboard)
cli.add_command(bench)


def main() -> None:
    """Run the command line; an error that the user can act on is one line and exit status 2."""
    try:
        cli(prog_name="patheval")
    except PathEvalError as error:
        click.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
