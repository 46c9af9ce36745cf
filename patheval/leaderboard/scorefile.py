"""Per-prompt scores of a board, kept so that two boards can be compared prompt by prompt."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from patheval.errors import ResultsError

from .board import Board
from .collect import score_key

NAME = "scores.jsonl.gz"


class StoredScores(NamedTuple):
    """Values of one row.

    Attributes:
        prompts: Hash of the prompts, in the order of the values.
        values: [n], as in `samples.Scores`.
    """

    prompts: str
    values: NDArray[np.float64]


StoredKey = tuple[str, str, str, str]
"""Model, task, metric, filter."""


def write(board: Board, folder: Path) -> None:
    """Writes the scores of all shown rows."""
    lines = []
    for row in board.rows:
        own = board.scores.get(score_key(row))
        if row.status != "shown" or own is None:
            continue
        order = np.argsort(own.keys)
        prompts = hashlib.sha256("\n".join(sorted(own.keys)).encode()).hexdigest()
        values = [float(f"{value:.9g}") for value in own.values[order]]
        key = [row.model, row.task, row.metric, row.filter]
        lines.append(json.dumps({"key": key, "prompts": prompts, "values": values}))
    content = "".join(f"{line}\n" for line in lines).encode()
    # Without a time in it, so that the same board is the same file.
    (folder / NAME).write_bytes(gzip.compress(content, mtime=0))


def read(folder: Path) -> dict[StoredKey, StoredScores]:
    """Reads the scores of a board; none if it has no such file.

    Raises:
        ResultsError: The file is damaged.
    """
    path = folder / NAME
    if not path.is_file():
        return {}
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        records = [json.loads(line) for line in lines]
        return {
            tuple(r["key"]): StoredScores(r["prompts"], np.asarray(r["values"], dtype=np.float64))
            for r in records
        }
    except (EOFError, KeyError, OSError, TypeError, ValueError) as error:
        raise ResultsError(f"{path} is damaged ({error}); build the board again") from error
