"""`patheval zoo`: the small trained checkpoints that ship with patheval."""

import click

import patheval.zoo
from patheval.errors import CheckpointError

_TOLERANCE_NATS = 2e-3


@click.group()
def zoo() -> None:
    """Small trained checkpoints, used as `pretrained=zoo:NAME`."""


@zoo.command(name="list")
def list_() -> None:
    """List the names."""
    click.echo("\n".join(patheval.zoo.manifest()))


@zoo.command()
@click.argument("name", type=click.Choice(list(patheval.zoo.manifest())))
def path(name: str) -> None:
    """Print the folder of a checkpoint; its card.md tells what it can do."""
    click.echo(patheval.zoo.verify(name))


@zoo.command()
@click.argument("names", nargs=-1, type=click.Choice(list(patheval.zoo.manifest())))
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
