"""Small trained checkpoints that ship with patheval, loaded as ``zoo:NAME``."""

import hashlib
import json
from pathlib import Path

from patheval.errors import CheckpointError

PREFIX = "zoo:"
CHECKPOINTS = Path(__file__).parent / "checkpoints"
MANIFEST_NAME = "manifest.json"


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def manifest() -> dict[str, dict[str, str]]:
    """SHA-256 of every shipped file: checkpoint name -> file name -> digest.

    Raises:
        CheckpointError: The manifest is missing or damaged.
    """
    path = CHECKPOINTS / MANIFEST_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not content or not all(content[name].values() for name in content):
            raise ValueError("it names no files")
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"{path} cannot be read ({reason}); install patheval again"
        ) from error
    known: dict[str, dict[str, str]] = content
    return known


def verify(name: str) -> Path:
    """Checks every file of a shipped checkpoint.

    Args:
        name: a checkpoint of the manifest.

    Returns:
        Its folder.

    Raises:
        CheckpointError: there is no such checkpoint, or a file is missing or not as shipped.
    """
    known = manifest()
    if name not in known:
        raise CheckpointError(
            f"The zoo has no checkpoint {name!r}; choose from {', '.join(sorted(known))}."
        )
    folder = CHECKPOINTS / name
    for file_name, digest in known[name].items():
        path = folder / file_name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; install patheval again.")
        if sha256(path) != digest:
            raise CheckpointError(
                f"{path} is not the file that was shipped (its SHA-256 differs from "
                f"{MANIFEST_NAME}); install patheval again."
            )
    return folder


def resolve(name_or_path: str) -> str:
    """Turns ``zoo:NAME`` into the folder of that checkpoint; leaves other strings as they are.

    Args:
        name_or_path: what a user gave as ``pretrained``.
    """
    if not name_or_path.startswith(PREFIX):
        return name_or_path
    return str(verify(name_or_path.removeprefix(PREFIX)))
