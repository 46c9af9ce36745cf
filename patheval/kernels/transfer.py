"""Numbers of the host on the way to a GPU that is at work."""

from __future__ import annotations

import torch


def to_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy `host` without waiting for the work that a GPU has been given, as PyTorch would.

    From pageable memory a copy waits for the whole stream, and the host's next step with it.
    """
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
