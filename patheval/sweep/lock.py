"""One sweep at a time writes to a folder."""

import contextlib
import datetime
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from patheval.errors import PrerequisiteError

LOCK_NAME = ".sweep.lock"

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder, which is made if need be; the system lets go of it when the process ends.

    The lock is POSIX's, which no child process inherits: an engine that outlives a killed sweep
    does not hold the folder.

    Raises:
        PrerequisiteError: Another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_NAME).open("a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise PrerequisiteError(
                f"{folder} is being written by {holder}; wait for it, stop it, or name another "
                "folder with --out"
            ) from None
        except OSError as error:
            _logger.warning(
                "%s is on a file system without locks (%s): start no second sweep into it",
                folder,
                error.strerror,
            )
        file.truncate(0)
        now = datetime.datetime.now().isoformat(" ", "seconds")
        file.write(f"the sweep of process {os.getpid()} on {socket.gethostname()} (since {now})\n")
        file.flush()
        yield


def check_free(folder: Path) -> None:
    """Checks, without making anything, that no other process holds a folder.

    Raises:
        PrerequisiteError: Another process holds it.
    """
    if (folder / LOCK_NAME).is_file():
        with contextlib.suppress(OSError), locked(folder):
            pass
