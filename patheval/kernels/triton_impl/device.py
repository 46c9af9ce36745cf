"""What launches are chosen by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class DeviceFacts:
    """A GPU.

    Attributes:
        num_processors: multiprocessors.
        shared_bytes: shared memory that one block can have, in bytes.
        has_bulk_copies: whether it has the bulk copies of Hopper and later.
    """

    num_processors: int
    shared_bytes: int
    has_bulk_copies: bool


@cache
def device_facts(device: torch.device) -> DeviceFacts:
    """Facts of `device`; a CPU, where Triton's interpreter runs, counts as one small processor."""
    if device.type == "cpu":
        return DeviceFacts(num_processors=1, shared_bytes=100_000, has_bulk_copies=False)
    properties = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        num_processors=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]
        has_bulk_copies=properties.major >= 9,
    )
