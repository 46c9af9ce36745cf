"""Safetensors headers: what a file claims to hold, checked against its size."""

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from patheval.errors import CheckpointError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
_TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a safetensors header.

    Attributes:
        dtype: Torch's name for bfloat16, float16 and float32, otherwise the file's code (`I64`).
        shape: Shape.
        begin: First byte, counted from the end of the header.
        end: Last-plus-one byte.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def load_json_object(text: str, source: str) -> dict[str, object]:
    """Parses a JSON object in which no key occurs twice.

    Args:
        text: JSON text.
        source: Where it came from, for messages.

    Raises:
        CheckpointError: The text is not JSON, not an object, or repeats a key.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result: dict[str, object] = {}
        for key, value in pairs:
            if key in result:
                raise CheckpointError(f"{source} has the key {key!r} twice; remove one of them")
            result[key] = value
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{source} is not valid JSON ({error}); copy the file again from its origin"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{source} holds a JSON {type(value).__name__}, not an object; copy the file again "
            "from its origin"
        )
    return value


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Reads and checks the header of one safetensors file.

    Args:
        path: The file.

    Returns:
        Each tensor's entry under its stored name, in the order of the data.

    Raises:
        CheckpointError: The file is truncated, or its header is damaged or disagrees with its size.
    """
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(_LENGTH_BYTES)
        if len(prefix) < _LENGTH_BYTES:
            raise _damaged(path, f"has {file_bytes} bytes, too few for a safetensors header")
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > min(file_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise _damaged(
                path, f"claims a header of {header_bytes} bytes but has {file_bytes} bytes in all"
            )
        raw = file.read(header_bytes)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(path, f"has a header that is not UTF-8 ({error.reason})") from error
    header = load_json_object(text, f"the header of {path}")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value) for name, value in header.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_extent(path, entries, file_bytes - _LENGTH_BYTES - header_bytes)
    return entries


def _entry(path: Path, name: str, value: object) -> TensorEntry:
    if not isinstance(value, Mapping) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"has the header entry {value!r} for {name}")
    dtype, shape, offsets = str(value["dtype"]), value["shape"], value["data_offsets"]
    if dtype not in _ITEM_BYTES:
        raise _damaged(path, f"gives {name} the unknown dtype {dtype!r}")
    if not _are_sizes(shape):
        raise _damaged(path, f"gives {name} the shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"gives {name} the data_offsets {offsets!r}")
    begin, end = offsets
    num_bytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != num_bytes:
        raise _damaged(
            path, f"gives {name} the data_offsets {offsets!r} but its shape takes {num_bytes} bytes"
        )
    return TensorEntry(_TORCH_NAMES.get(dtype, dtype), tuple(shape), begin, end)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_extent(path: Path, entries: Mapping[str, TensorEntry], data_bytes: int) -> None:
    """Checks that the tensors, in order of offset, tile the file's data exactly."""
    position = 0
    for name, entry in entries.items():
        if entry.begin != position:
            relation = "overlaps" if entry.begin < position else "leaves a gap after"
            raise _damaged(
                path,
                f"starts {name} at byte {entry.begin}, which {relation} the tensor before it "
                f"(ending at {position})",
            )
        position = entry.end
    if position != data_bytes:
        raise _damaged(path, f"holds {data_bytes} bytes of weights but its header lists {position}")


def _damaged(path: Path, finding: str) -> CheckpointError:
    return CheckpointError(
        f"{os.fspath(path)} is truncated or damaged: it {finding}; copy the file again from its "
        "origin"
    )
