"""From finished runs to shipped checkpoints: files, cards and the manifest."""

import json
import shutil
from pathlib import Path

from patheval.errors import CheckpointError
from patheval.zoo import MANIFEST_NAME, card, logprobs, recipes, sha256
from patheval.zoo.models import CONFIG_NAME, WEIGHTS_NAME
from patheval.zoo.tokenizer import TOKENIZER_CONFIG_NAME, TOKENIZER_NAME
from patheval.zoo.train import LOG_NAME, run_folder, shard_folder

DATA_NAME = "data.json"
MAX_BYTES = 8 * 2**20
MAX_TOTAL_BYTES = 32 * 2**20


def collect(runs: Path, data: Path, checkpoints: Path) -> None:
    """Copies the last stage of every checkpoint, writes log and card, then the manifest.

    Args:
        runs: folder of the runs.
        data: folder of the tokenizer and of the facts about the data of each stage.
        checkpoints: the folder that ships.
    """
    for name, stages in recipes.LONG_CONTEXT.items():
        target = checkpoints / name
        target.mkdir(parents=True, exist_ok=True)
        for file_name in (CONFIG_NAME, WEIGHTS_NAME):
            shutil.copyfile(run_folder(runs, name, len(stages)) / file_name, target / file_name)
        for file_name in (TOKENIZER_NAME, TOKENIZER_CONFIG_NAME):
            shutil.copyfile(data / file_name, target / file_name)
        log = "".join(
            (run_folder(runs, name, recipe.stage) / LOG_NAME).read_text() for recipe in stages
        )
        facts = [
            json.loads((shard_folder(data, recipe.stage) / DATA_NAME).read_text())
            for recipe in stages
        ]
        entries = [json.loads(line) for line in log.splitlines()]
        (target / LOG_NAME).write_text(log)
        (target / "card.md").write_text(card.write(name, entries, facts))
        logprobs.record(target)
    write_manifest(checkpoints)


def write_manifest(checkpoints: Path) -> None:
    """Writes the SHA-256 of every file of every checkpoint.

    Args:
        checkpoints: the folder that ships.

    Raises:
        CheckpointError: a checkpoint, or all of them together, are larger than may ship.
    """
    sizes = {
        folder.name: sum(path.stat().st_size for path in folder.iterdir())
        for folder in checkpoints.iterdir()
        if folder.is_dir()
    }
    for label, size, limit in [
        *((f"the checkpoint {name}", size, MAX_BYTES) for name, size in sizes.items()),
        ("all checkpoints together", sum(sizes.values()), MAX_TOTAL_BYTES),
    ]:
        if size >= limit:
            raise CheckpointError(
                f"{label} would take {size / 2**20:.1f} MiB of at most {limit / 2**20:.0f}; ship "
                "fewer or smaller models"
            )
    content = {
        folder.name: {path.name: sha256(path) for path in sorted(folder.iterdir())}
        for folder in sorted(checkpoints.iterdir())
        if folder.is_dir()
    }
    (checkpoints / MANIFEST_NAME).write_text(json.dumps(content, indent=1) + "\n")
