"""From finished runs to shipped checkpoints: files, cards and the manifest."""

import json
import shutil
from pathlib import Path

from patheval.zoo import MANIFEST_NAME, card, sha256
from patheval.zoo.tokenizer import CONFIG_NAME, TOKENIZER_NAME
from patheval.zoo.train import LOG_NAME

DATA_NAME = "data.json"


def collect(runs: Path, data: Path, checkpoints: Path) -> None:
    """Copies every finished run into the folder that ships, writes its card, then the manifest.

    Args:
        runs: one folder for each trained model, as training left it.
        data: folder of the tokenizer and of the facts about the data.
        checkpoints: the folder that ships.
    """
    facts = json.loads((data / DATA_NAME).read_text())
    for run in sorted(path.parent for path in runs.glob("*/model.safetensors")):
        target = checkpoints / run.name
        target.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "model.safetensors", LOG_NAME):
            shutil.copyfile(run / name, target / name)
        for name in (TOKENIZER_NAME, CONFIG_NAME):
            shutil.copyfile(data / name, target / name)
        log = [json.loads(line) for line in (run / LOG_NAME).read_text().splitlines()]
        (target / "card.md").write_text(card.write(run.name, log, facts))
    write_manifest(checkpoints)


def write_manifest(checkpoints: Path) -> None:
    """Writes the SHA-256 of every file of every checkpoint."""
    content = {
        folder.name: {path.name: sha256(path) for path in sorted(folder.iterdir())}
        for folder in sorted(checkpoints.iterdir())
        if folder.is_dir()
    }
    (checkpoints / MANIFEST_NAME).write_text(json.dumps(content, indent=1) + "\n")
