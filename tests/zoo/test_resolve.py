import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patheval import zoo
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


def test_changed_and_missing_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(zoo.manifest()))
    shutil.copytree(zoo.CHECKPOINTS / name, tmp_path / name)
    shutil.copy(zoo.CHECKPOINTS / zoo.MANIFEST_NAME, tmp_path)
    monkeypatch.setattr(zoo, "CHECKPOINTS", tmp_path)
    config = tmp_path / name / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text())))
    with pytest.raises(CheckpointError, match=r"config\.json is not the file that was shipped"):
        zoo.resolve(f"zoo:{name}")
    config.unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        zoo.resolve(f"zoo:{name}")


def test_import_needs_no_torch() -> None:
    program = "import sys; sys.modules['torch'] = None; import patheval.zoo"
    subprocess.run([sys.executable, "-c", program], check=True)
