"""What a user sees of a damaged checkpoint on the command line."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "path-d64"
TASK = ["--tasks", "path_phonebook_256", "--limit", "1"]


@pytest.fixture
def truncated(tmp_path: Path) -> Path:
    folder = tmp_path / "truncated"
    shutil.copytree(CHECKPOINT, folder)
    byte_tokenizer().save_pretrained(folder)
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("model", ["path", "path-ref"])
@pytest.mark.parametrize(("command", "status"), [("lm_eval", 1), ("patheval", 2)])
def test_one_line_names_the_file_and_no_score_is_printed(
    command: str, status: int, model: str, truncated: Path, tmp_path: Path
) -> None:
    start = time.monotonic()
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name(command)),
            "run",
            "--model",
            model,
            "--model_args",
            f"pretrained={truncated}",
            "--output_path",
            str(tmp_path / "results"),
            *TASK,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr[-2000:]
    assert str(truncated / "model.safetensors") in done.stderr.strip().splitlines()[-1]
    assert "exact_match" not in done.stdout
    assert not (tmp_path / "results").exists()
    assert time.monotonic() - start < 60
