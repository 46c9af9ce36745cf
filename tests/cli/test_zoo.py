"""`patheval zoo` on the shipped checkpoints."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import patheval.zoo
from patheval.cli.main import cli
from patheval.errors import CheckpointError, PrerequisiteError
from patheval.zoo import making
from patheval.zoo.logprobs import LOGPROBS_NAME, NUM_LOGPROBS, largest_difference


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["zoo", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_list_and_path() -> None:
    names = invoke("list").split()
    assert {"fox", "path", "path-fox", "rope"} <= set(names)
    assert names == sorted(names)
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


def test_training_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["model", "path", "--stage", "1", "--data", "data", "--out", "runs"]
    find_spec = importlib.util.find_spec

    def without(name: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda own: None if own == name else find_spec("json")
        )

    without("fla")
    with pytest.raises(PrerequisiteError, match=r"pip install 'patheval\[zoo\]'$"):
        invoke("train", *arguments)
    without("nothing")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(PrerequisiteError, match=r"trains on GPUs only and torch .* sees none"):
        invoke("train", *arguments)
    without("torch")
    with pytest.raises(PrerequisiteError, match=r"needs torch.*pip install 'patheval\[zoo\]'$"):
        invoke("train", *arguments)


def test_help_of_training_names_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        making.main(["--help"], "patheval zoo train")
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert all(step in text for step in ("prepare", "model", "states", "collect-states"))
