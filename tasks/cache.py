"""Generated samples on disk, shared by all runs and all models with the same tokenizer.

Each sample is a file of its own, named by its index, in a folder named by everything that its
content depends on. A file appears complete or not at all, whoever else writes it and whenever a
process dies; two processes that build the same sample write the same content.
"""

import gzip
import hashlib
import inspect
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from patheval.errors import PrerequisiteError

CACHE = "PATHEVAL_CACHE"
OFF = "off"

# Packages whose word lists samples are made of.
_WORD_PACKAGES = ("names", "wonderwords")


class SampleCache:
    """The samples of one task at one length for one tokenizer.

    Args:
        folder: Where they are; made when the first one is stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of(cls, task: str, *key: object, made_by: Callable[..., object]) -> Self | None:
        """Returns the cache of a task's samples, or None if PATHEVAL_CACHE is `off`.

        Args:
            task: Name of the task without its length.
            *key: What the samples depend on: anything that JSON can hold.
            made_by: The function that makes them. The source code of its folder and of the
                modules here is part of the key, and so are the versions of the word lists.
        """
        root = cache_folder()
        if root is None:
            return None
        code = _code_digest(Path(inspect.getfile(inspect.unwrap(made_by))).parent)
        packages = [version(name) for name in _WORD_PACKAGES]
        text = json.dumps([task, key, code, packages], sort_keys=True)
        return cls(root / "samples" / task / hashlib.sha256(text.encode()).hexdigest()[:32])

    def holds(self, index: int) -> bool:
        """Whether there is a file for the sample at `index`."""
        return self._path(index).is_file()

    def load(self, index: int) -> dict[str, Any] | None:
        """Returns the sample at `index`, or None if it is not there or damaged."""
        try:
            sample = json.loads(gzip.decompress(self._path(index).read_bytes()))
        except (OSError, EOFError, ValueError, zlib.error):
            return None
        return sample if isinstance(sample, dict) else None

    def store(self, index: int, sample: Mapping[str, Any]) -> None:
        """Writes the sample at `index`.

        Raises:
            PrerequisiteError: The folder cannot be written.
        """
        content = gzip.compress(json.dumps(sample).encode(), compresslevel=1, mtime=0)
        path = self._path(index)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
                try:
                    file.write(content)
                    file.close()
                    os.replace(file.name, path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError as error:
            raise PrerequisiteError(
                f"samples cannot be stored in {path.parent} ({error.strerror}); set {CACHE} to a "
                f"folder with room that you may write, or to {OFF!r}"
            ) from error

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.json.gz"


def cache_folder() -> Path | None:
    """Returns the folder of all that patheval caches, or None if caching is off.

    PATHEVAL_CACHE names it, else it is `patheval` in the user's cache folder.
    """
    given = os.environ.get(CACHE)
    if given == OFF:
        return None
    if given:
        return Path(given).expanduser().absolute()
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user_cache).expanduser() / "patheval"


@cache
def _code_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), *sorted(folder.glob("*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
