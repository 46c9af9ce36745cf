"""`patheval zoo`: the small trained checkpoints that ship with patheval."""

import importlib.util

import click
from click.shell_completion import CompletionItem

import patheval.zoo
from patheval.errors import CheckpointError, PrerequisiteError

_TOLERANCE_NATS = 2e-3


def _names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(name) for name in patheval.zoo.manifest() if name.startswith(incomplete)]


@click.group()
def zoo() -> None:
    """Small trained checkpoints, used as `pretrained=zoo:NAME`."""


@zoo.command(name="list")
def list_() -> None:
    """List the names."""
    click.echo("\n".join(patheval.zoo.manifest()))


@zoo.command()
@click.argument("name", shell_complete=_names)
def path(name: str) -> None:
    """Print the folder of a checkpoint; its card.md tells what it can do."""
    click.echo(patheval.zoo.verify(name))


@zoo.command()
@click.argument("names", nargs=-1, shell_complete=_names)
def verify(names: tuple[str, ...]) -> None:
    """Reload checkpoints, all by default: SHA-256 of each file, then 200 log-probabilities."""
    from patheval.zoo.logprobs import largest_difference

    for name in names or patheval.zoo.manifest():
        difference = largest_difference(patheval.zoo.verify(name))
        if not difference <= _TOLERANCE_NATS:
            raise CheckpointError(
                f"zoo:{name} differs from its stored log-probabilities by {difference:.2g} nats "
                f"(at most {_TOLERANCE_NATS}); install patheval and its torch again"
            )
        click.echo(f"{name}: files as shipped, log-probabilities within {difference:.1e} nats")


@zoo.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="STEP OPTIONS",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="")
def train(arguments: tuple[str, ...]) -> None:
    """Train the checkpoints anew, step by step; needs a GPU and `patheval[zoo]`.

    Steps and options: `patheval zoo train --help`.
    """
    if importlib.util.find_spec("torch") is None:
        raise PrerequisiteError(
            "training needs torch, which is not installed; run pip install 'patheval[zoo]'"
        )
    from patheval.zoo import making

    making.main(arguments or ["--help"], "patheval zoo train")
