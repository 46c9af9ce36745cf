"""Settings of every test; set here, before anything imports torch or vLLM."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_ON_CPU = {
    "TORCHDYNAMO_DISABLE": "1",
    # Triton's kernels run in its interpreter.
    "TRITON_INTERPRET": "1",
}

for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    # The models are tiny: a second thread only waits, and threads bound to shared cores wait long.
    "OMP_NUM_THREADS": "1",
    "PATHEVAL_CACHE": "off",
    # No test may be answered by what an earlier one stored.
    "PATHEVAL_RESUME": "off",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    **({} if shutil.which("nvidia-smi") else _ON_CPU),
}.items():
    os.environ.setdefault(_name, _value)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where there is none."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs an NVIDIA GPU")


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Run code in a fresh interpreter, outside the source tree, and return what it prints."""

    def run(code: str, *, python: Path | str = sys.executable, **variables: str) -> str:
        process = subprocess.run(
            [python, "-c", code],
            cwd=tmp_path,
            env=os.environ | variables,
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()

    return run
