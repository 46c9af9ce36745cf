"""A SQLite database of answers, one file for each model as it is run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patheval.errors import PrerequisiteError
from patheval.store.identity import canonical_json, fingerprint

SUFFIX = ".sqlite3"

# SQLite notices damage to its own structure only, so each row has a digest of its content.
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS model (facts TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS checked_scores (key BLOB PRIMARY KEY, logprobs BLOB NOT NULL, "
    "is_greedy BLOB NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS checked_texts (key BLOB PRIMARY KEY, text TEXT NOT NULL, "
    "num_tokens INTEGER NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID",
)
_DIGEST_BYTES = 8
# Another run that writes to the same file holds it for milliseconds.
_LOCK_TIMEOUT_S = 60.0
_LOCK_RETRY_S = 0.01
# What SQLite calls a full disk, a quota or a limit of the file's size.
_DISK_ERRORS = ("SQLITE_FULL", "SQLITE_IOERR_WRITE")

_logger = logging.getLogger(__name__)

ScoreRow = tuple[NDArray[np.float64], NDArray[np.bool_]]
TextRow = tuple[str, int]


def check_folder(folder: Path) -> None:
    """Makes a folder for stores, so that a fault shows before a model is loaded.

    Raises:
        PrerequisiteError: It cannot be made or written.
    """
    reason = "it is read-only, or another user's"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return
    except OSError as error:
        reason = str(error)
    raise PrerequisiteError(
        f"answers cannot be kept in {folder} ({reason}); pass resume=FOLDER that you may write, or "
        "resume=off, in --model_args"
    )


class AnswerStore:
    """The answers that one model gave.

    Several runs may use a store at once. Each call that writes is one transaction: after it, a kill
    of the process loses nothing. What is stored is never replaced.

    Args:
        folder: Where the files are; made if missing.
        facts: All that the answers depend on besides the request, as JSON values. Their SHA-256
            names the file, and the file repeats them: answers of other facts cannot be read.

    Attributes:
        path: The file.

    Raises:
        PrerequisiteError: The folder cannot be written or locked, or the file is damaged or
            another model's.
    """

    def __init__(self, folder: Path, facts: Mapping[str, object]) -> None:
        self.path = folder / f"{fingerprint(facts)[:32]}{SUFFIX}"
        self._facts = canonical_json(facts)
        self._open()

    def _open(self) -> None:
        with self._reporting("opened"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path,
                timeout=_LOCK_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,  # a model may be used from one thread after another
            )
            mode = self._log_ahead()
            self._connection.execute("PRAGMA synchronous=NORMAL")
            with self._transaction():
                for statement in _SCHEMA:
                    self._connection.execute(statement)
                row = self._connection.execute("SELECT facts FROM model").fetchone()
                if row is None:
                    self._connection.execute("INSERT INTO model VALUES (?)", (self._facts,))
            self._file = self.path.stat().st_ino
        if mode != "wal":
            raise PrerequisiteError(
                f"{self.path} is on a file system without shared memory, where runs cannot share "
                "it; pass resume=FOLDER on a local disk, or resume=off, in --model_args"
            )
        if row is not None and row[0] != self._facts:
            raise PrerequisiteError(
                f"{self.path} holds answers of another model ({_difference(row[0], self._facts)}); "
                "delete it, or pass another resume=FOLDER in --model_args"
            )

    def scores(self, keys: Sequence[bytes]) -> dict[bytes, ScoreRow]:
        """Stored scores of requests: log-probabilities, fp64, and flags, of each token."""
        return {
            key: (
                np.frombuffer(logprobs, dtype="<f8").astype(np.float64),
                np.frombuffer(is_greedy, dtype=np.uint8).astype(np.bool_),
            )
            for key, logprobs, is_greedy in self._select("checked_scores", keys)
        }

    def texts(self, keys: Sequence[bytes]) -> dict[bytes, TextRow]:
        """Stored texts of requests, with their number of tokens."""
        return {
            key: (text, num_tokens) for key, text, num_tokens in self._select("checked_texts", keys)
        }

    def add_scores(self, rows: Iterable[tuple[bytes, ScoreRow]]) -> None:
        """Stores scores in one transaction."""
        self._insert(
            "checked_scores",
            (
                (key, logprobs.astype("<f8").tobytes(), is_greedy.astype(np.uint8).tobytes())
                for key, (logprobs, is_greedy) in rows
            ),
        )

    def add_texts(self, rows: Iterable[tuple[bytes, TextRow]]) -> None:
        """Stores texts in one transaction."""
        self._insert("checked_texts", ((key, *own) for key, own in rows))

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def _select(self, table: str, keys: Sequence[bytes]) -> Iterator[tuple[Any, ...]]:
        with self._reporting("read"):
            for key in keys:
                row = self._connection.execute(
                    f"SELECT * FROM {table} WHERE key = ?", (key,)
                ).fetchone()
                if row is None:
                    continue
                *content, digest = row
                if digest != _digest(content):
                    raise sqlite3.DatabaseError("an answer is not the one that was written")
                yield tuple(content)

    def _insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        if not self._is_in_place():
            _logger.warning(
                "%s was deleted while it was in use; answers from now on are in a new one",
                self.path,
            )
            self.close()
            self._open()
        with self._reporting("written"), self._transaction():
            self._connection.executemany(
                f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?, ?)",
                ((*row, _digest(row)) for row in rows),
            )

    def _is_in_place(self) -> bool:
        """Whether the open file is still the one that the next run will find."""
        try:
            return self.path.stat().st_ino == self._file
        except OSError:
            return False

    def _log_ahead(self) -> str:
        """Has the file written ahead; returns its mode, "wal" unless its file system cannot."""
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                # SQLite does not wait for a new file's mode when another run is setting it too.
                mode = self._connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_RETRY_S)
            else:
                return str(mode)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:  # not where a full disk has ended it
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _reporting(self, action: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if _is_busy(error):
                raise PrerequisiteError(
                    f"the store of answers {self.path} cannot be {action}: another process has "
                    f"held it for {_LOCK_TIMEOUT_S:.0f} s; end that process, or pass "
                    "resume=FOLDER or resume=off in --model_args"
                ) from error
            fix = "delete it and the files beside it with its name if it is damaged, or pass"
            if getattr(error, "sqlite_errorname", "").startswith(_DISK_ERRORS):
                fix = "make room on its disk, or pass"
            raise PrerequisiteError(
                f"the store of answers {self.path} cannot be {action} ({error}); {fix} "
                "resume=FOLDER on another disk, or resume=off, in --model_args"
            ) from error


def _is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def _digest(row: Sequence[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for value in row:
        content = value if isinstance(value, bytes) else str(value).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.digest()


def _difference(stored: str, own: str) -> str:
    left, right = json.loads(stored), json.loads(own)
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    return ", ".join(f"{name}: {left.get(name)!r} is not {right.get(name)!r}" for name in names)
