"""What Ctrl-C says of a run that the same command goes on with."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

_STATUS_OF_SIGINT = 130


@contextmanager
def resumable(what: str) -> Iterator[None]:
    """Ends the command in one line if it is interrupted.

    Args:
        what: What is kept.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.secho(
            f"\nstopped: {what} are kept, and the same command goes on from there",
            fg="yellow",
            err=True,
        )
        raise click.exceptions.Exit(_STATUS_OF_SIGINT) from None
