"""Where tasks get real data from: pinned files and data sets of the Hugging Face hub, or a folder.

A data folder mirrors the hub: what belongs to the data set OWNER/NAME lies in OWNER/NAME below it,
exactly as `hf download --local-dir` puts it there. It is given as `data_dir` in `--metadata` or as
the environment variable PATHEVAL_DATA, and is then the only place that is looked at. Without one,
data come from the hub, or from the local cache of it.
"""

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from patheval.errors import PrerequisiteError, UnsupportedError

DATA_DIR = "PATHEVAL_DATA"


class Fetched(NamedTuple):
    """Data that are there.

    Attributes:
        path: The file.
        sha256: Its SHA-256 in hexadecimal digits.
    """

    path: Path
    sha256: str


class Rows(NamedTuple):
    """Rows of a data set that are there.

    Attributes:
        rows: A `datasets.Dataset`.
        sha256: SHA-256 over the values of all rows, in hexadecimal digits.
    """

    rows: Any
    sha256: str


@dataclass(frozen=True)
class SourceFile:
    """One file, known by its checksum.

    Attributes:
        name: What it is, as error messages call it.
        folder: Its folder below the data folder: the id of its data set on the hub if it has one.
        path: The file inside that folder, and inside the hub's repository.
        sha256: SHA-256 of the content, in hexadecimal digits.
        revision: Commit of the hub's data set; empty for a file from elsewhere.
        url: Where a file from elsewhere is. With neither, nobody hosts the file, and another source
            takes its place where it is missing.
    """

    name: str
    folder: str
    path: str
    sha256: str
    revision: str = ""
    url: str = ""

    def fetch(self, metadata: Mapping[str, Any]) -> Fetched:
        """Finds the file and checks it.

        Args:
            metadata: The task's metadata. `data_dir` names the data folder; `own_data` accepts
                files of other content there.

        Raises:
            PrerequisiteError: The file is missing; the message holds the command that fetches it.
            UnsupportedError: The file has other content.
        """
        folder = data_folder(metadata)
        path = self._from_hub() if folder is None else folder / self.folder / self.path
        if not path.is_file():
            raise PrerequisiteError(
                f"{self.name} is missing: there is no {path}; run `{self._command(folder)}`"
            )
        sha256 = _sha256(path, path.stat().st_mtime_ns)
        if sha256 != self.sha256 and not (folder and _accepts_own(metadata)):
            raise UnsupportedError(
                f"{path} is not {self.name}: its SHA-256 is {sha256} instead of {self.sha256}; "
                f"run `{self._command(folder)}`, or use the file as it is with "
                """--metadata '{"own_data": true}'"""
            )
        return Fetched(path, sha256)

    def is_in(self, folder: Path | None) -> bool:
        """Whether a data folder holds a file in the source's place."""
        return folder is not None and (folder / self.folder / self.path).is_file()

    def _command(self, folder: Path | None) -> str:
        place = _quoted((folder or Path(f"${DATA_DIR}")) / self.folder / self.path)
        if self.url:
            return f"curl -L --create-dirs -o {place} {self.url}"
        if not self.revision:
            return f"rm {place}"
        return _hub_command(self.folder, self.revision, folder, self.path)

    def _from_hub(self) -> Path:
        if self.url:
            raise PrerequisiteError(
                f"{self.name} is not on the hub and no data folder is given; run "
                f"`export {DATA_DIR}=FOLDER; {self._command(None)}`"
            )
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            return Path(
                hf_hub_download(self.folder, self.path, repo_type="dataset", revision=self.revision)
            )
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
            raise PrerequisiteError(
                f"{self.name} could not be loaded from the hub ({_first_line(error)}); where "
                f"there is a network run `{self._command(None)}`, or copy it to "
                f"{DATA_DIR}/{self.folder}/{self.path}"
            ) from error


@dataclass(frozen=True)
class SourceRows:
    """One split of a data set on the hub, at a pinned commit.

    Attributes:
        name: What it is, as error messages call it.
        repository: Id of the data set, OWNER/NAME; also its folder below the data folder.
        revision: Commit.
        split: Name of the split.
        config: Name of the configuration, if the data set has several.
        files: Files of the configuration inside the repository, as a glob; needed where the
            repository's own description does not say it.
        sha256: SHA-256 over the values of all rows if known.
        columns: The columns to keep, where others are large or hold pictures; all if empty.
    """

    name: str
    repository: str
    revision: str
    split: str
    config: str | None = None
    files: str | None = None
    sha256: str | None = None
    columns: tuple[str, ...] = ()

    def load(self, metadata: Mapping[str, Any]) -> Rows:
        """Loads the rows and checks them.

        Args:
            metadata: The task's metadata; `data_dir` and `own_data` as for `SourceFile.fetch`.

        Raises:
            PrerequisiteError: The data set is missing; the message holds the command that
                fetches it.
            UnsupportedError: The rows have other content.
        """
        from datasets import load_dataset

        folder = data_folder(metadata)
        command = _hub_command(self.repository, self.revision, folder, self.files)
        options: dict[str, Any] = {"split": self.split}
        if self.files:
            options["data_files"] = {self.split: self.files}
        if folder is None:
            options["revision"] = self.revision
        elif not (folder / self.repository).is_dir():
            raise PrerequisiteError(
                f"{self.name} is missing: there is no {folder / self.repository}; run `{command}`"
            )
        place = self.repository if folder is None else str(folder / self.repository)
        copy = f", or copy it to {DATA_DIR}/{self.repository}" if folder is None else ""
        try:
            rows = load_dataset(place, self.config, **options)
            if self.columns:
                rows = rows.select_columns(list(self.columns))
        except (OSError, ValueError) as error:
            raise PrerequisiteError(
                f"{self.name} could not be loaded from {place} ({_first_line(error)}); "
                f"run `{command}`{copy}"
            ) from error
        sha256 = rows_sha256(rows)
        if self.sha256 not in (None, sha256) and not (folder and _accepts_own(metadata)):
            raise UnsupportedError(
                f"{place} is not {self.name}: the SHA-256 of its rows is {sha256} instead of "
                f"{self.sha256}; run `{command}`, or use the data as they are with "
                """--metadata '{"own_data": true}'"""
            )
        return Rows(rows, sha256)


def data_folder(metadata: Mapping[str, Any]) -> Path | None:
    """Returns the data folder that is given, if one is.

    Args:
        metadata: The task's metadata; its `data_dir` wins over the environment.

    Raises:
        PrerequisiteError: The folder does not exist.
    """
    given = metadata.get("data_dir") or os.environ.get(DATA_DIR)
    if not given:
        return None
    folder = Path(str(given)).expanduser().absolute()
    if not folder.is_dir():
        raise PrerequisiteError(
            f"the data folder {folder} does not exist; create it, or correct data_dir in "
            f"--metadata or {DATA_DIR}"
        )
    return folder


def rows_sha256(rows: Any) -> str:
    """Returns the SHA-256 over the values of rows, whatever file format they came from.

    Args:
        rows: A `datasets.Dataset`.
    """
    import json

    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _accepts_own(metadata: Mapping[str, Any]) -> bool:
    accepts = metadata.get("own_data", False)
    if not isinstance(accepts, bool):
        raise UnsupportedError(f"own_data is {accepts!r} and must be true or false")
    return accepts


def _hub_command(
    repository: str, revision: str, folder: Path | None, files: str | None = None
) -> str:
    words = ["hf", "download", repository, "--repo-type", "dataset", "--revision", revision]
    if files:
        words[3:3] = ["--include", files] if "*" in files else [files]
    if folder is not None:
        words += ["--local-dir", str(folder / repository)]
    return shlex.join(words)


def _quoted(path: Path) -> str:
    return str(path) if str(path).startswith("$") else shlex.quote(str(path))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@cache
def _sha256(path: Path, mtime_ns: int) -> str:
    del mtime_ns  # Part of the key: a file that changed is read again.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
