import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patheval import zoo
from patheval.cli.main import main
from patheval.errors import CheckpointError


def test_other_strings_stay_as_they_are() -> None:
    assert zoo.resolve("fla-hub/transformer-340M-10B") == "fla-hub/transformer-340M-10B"
    assert zoo.resolve("./zoo") == "./zoo"


@pytest.mark.parametrize("name", zoo.manifest())
def test_shipped_checkpoint_resolves_to_its_folder(name: str) -> None:
    folder = Path(zoo.resolve(f"zoo:{name}"))
    assert {path.name for path in folder.iterdir()} == set(zoo.manifest()[name])
    assert (folder / "model.safetensors").stat().st_size < 8 * 2**20


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint 'rop'; choose from .*rope"):
        zoo.resolve("zoo:rop")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of one checkpoint, rope, that a test may damage."""
    shutil.copytree(zoo.CHECKPOINTS / "rope", tmp_path / "rope")
    manifest = {"rope": zoo.manifest()["rope"]}
    (tmp_path / zoo.MANIFEST_NAME).write_text(json.dumps(manifest))
    monkeypatch.setattr(zoo, "CHECKPOINTS", tmp_path)
    return tmp_path


def fail(*arguments: str) -> None:
    """Runs `patheval zoo`, which has to end with exit status 2."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as exit_:
        patch.setattr(sys, "argv", ["patheval", "zoo", *arguments])
        main()
    assert exit_.value.code == 2


def test_changed_and_missing_files_are_refused(copy: Path) -> None:
    config = copy / "rope" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text())))
    with pytest.raises(CheckpointError, match=r"config\.json is not the file that was shipped"):
        zoo.resolve("zoo:rope")
    config.unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        zoo.resolve("zoo:rope")


@pytest.mark.parametrize("arguments", [("verify",), ("verify", "rope"), ("path", "rope")])
def test_truncated_weights_are_named(
    arguments: tuple[str, ...], copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / "rope" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4096])
    fail(*arguments)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"error: {path} is not the file that was shipped (its SHA-256")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"rope": {}}', '{"rope": 3}'])
@pytest.mark.parametrize("arguments", [("list",), ("verify",), ("path", "rope")])
def test_missing_or_damaged_manifest_is_one_line(
    arguments: tuple[str, ...],
    text: str | None,
    copy: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = copy / zoo.MANIFEST_NAME
    manifest.unlink() if text is None else manifest.write_text(text)
    fail(*arguments)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"error: {manifest} cannot be read (")
    assert output.err.endswith("); install patheval again\n")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../checkpoints/rope", "rope/", "/rope", "ROPE", "rope\n", "zoo:rope"]
)
def test_nothing_but_a_shipped_name_is_a_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        zoo.resolve(f"zoo:{name}")
    fail("path", name)
    output = capsys.readouterr()
    assert output.out == ""
    assert f"has no checkpoint {name!r}; choose from " in output.err


def test_import_needs_no_torch() -> None:
    program = "import sys; sys.modules['torch'] = None; import patheval.zoo"
    subprocess.run([sys.executable, "-c", program], check=True)
