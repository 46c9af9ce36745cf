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
    """SHA-256 of every shipped file: checkpoint name -> file name -> digest."""
    content: dict[str, dict[str, str]] = json.loads((CHECKPOINTS / MANIFEST_NAME).read_text())
    return content


def verify(name: str) -> Path:
    """Checks every file of a shipped checkpoint.

    Args:
        name: a checkpoint of the manifest.

    Returns:
        Its folder.
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
