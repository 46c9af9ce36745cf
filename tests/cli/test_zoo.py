"""`patheval zoo` on the shipped checkpoints."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import patheval.zoo
from patheval.cli.main import cli
from patheval.errors import CheckpointError
from patheval.zoo.logprobs import LOGPROBS_NAME, NUM_LOGPROBS, largest_difference


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["zoo", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_list_and_path() -> None:
    names = invoke("list").split()
    assert names == ["fox", "path", "path-fox", "rope"]
    for name in names:
        assert (Path(invoke("path", name).strip()) / "card.md").is_file()


def test_verify_reloads_every_checkpoint() -> None:
    lines = invoke("verify").splitlines()
    assert [line.partition(":")[0] for line in lines] == list(patheval.zoo.manifest())


def test_verify_notices_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "path"
    shutil.copytree(patheval.zoo.CHECKPOINTS / "path", folder)
    stored = json.loads((folder / LOGPROBS_NAME).read_text())
    assert len(stored["next_logprobs"]) == NUM_LOGPROBS
    shutil.copy(patheval.zoo.CHECKPOINTS / "rope" / LOGPROBS_NAME, folder)
    assert largest_difference(folder) > 0.1
    monkeypatch.setattr(patheval.zoo, "verify", lambda name: folder)
    with pytest.raises(CheckpointError, match="zoo:path differs"):
        invoke("verify", "path")
