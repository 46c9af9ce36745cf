"""Where a measurement was made; stored in every row."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import torch

from patheval import _cpu_environment

_PACKAGES = ("patheval", "torch", "triton", "vllm", "flash-linear-attention", "fla-core")


def environment(commit: str | None = None) -> dict[str, Any]:
    """Card, driver, versions and commit.

    Args:
        commit: of the code that is measured; by default what git says of the source tree, None
            outside one.
    """
    card, driver = "cpu", None
    if torch.cuda.is_available():
        card, driver = torch.cuda.get_device_name(), _driver()
    return {
        "card": card,
        "driver": driver,
        "versions": {package: _cpu_environment.installed_version(package) for package in _PACKAGES},
        "commit": commit or _commit(),
    }


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return _output(query).partition("\n")[0] or None


def _commit() -> str | None:
    folder = str(Path(__file__).parent)
    commit = _output(["git", "-C", folder, "rev-parse", "HEAD"])
    is_changed = commit and _output(["git", "-C", folder, "status", "--porcelain", "-uno"])
    return f"{commit}+changes" if is_changed else commit or None


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
