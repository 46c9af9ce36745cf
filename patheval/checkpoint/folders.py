"""Names of folders that are not there."""

import difflib
from pathlib import Path

from patheval.errors import PrerequisiteError

_STARTS_OF_PATHS = ("./", "../", "/", "~")


def local(name: str) -> str:
    """Expands ~ in a name that can only be a place on this machine; leaves others as they are.

    Args:
        name: Folder or Hugging Face id.

    Raises:
        PrerequisiteError: It can only be a place, and nothing is there.
    """
    if name not in (".", "..") and not name.startswith(_STARTS_OF_PATHS) and name[-1:] != "/":
        return name
    place = Path(name).expanduser()
    if not place.exists():
        raise PrerequisiteError(
            f"there is no folder {name}{nearest(place)}; correct pretrained= or tokenizer=, or "
            "pass zoo:NAME or a Hugging Face id"
        )
    return str(place)


def nearest(folder: Path) -> str:
    """A question that names the folder of the most similar name beside a missing one, or ""."""
    if not folder.parent.is_dir():
        return ""
    siblings = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()]
    near = difflib.get_close_matches(folder.name, siblings, n=1)
    return f" (did you mean {folder.parent / near[0]}?)" if near else ""
