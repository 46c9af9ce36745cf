"""The Triton kernels compile for GPUs, which the interpreter cannot show, and fit them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "compile_kernels.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "shared_bytes", "kinds"),
    [("89", 101_376, ["path"]), ("80", 166_912, ["path-fox"]), ("90", 232_448, ["fox", "path"])],
    ids=["Ada", "Ampere", "Hopper"],
)
def test_kernels_fit_a_gpu(
    capability: str, shared_bytes: int, kinds: list[str], tmp_path: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, SCRIPT, capability, str(shared_bytes), *kinds],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.returncode == 0
    compiled = [json.loads(line) for line in process.stdout.splitlines()]
    assert {entry["kernel"] for entry in compiled} >= {"_attend", "_close"}
    assert max(entry["shared"] for entry in compiled) <= shared_bytes
