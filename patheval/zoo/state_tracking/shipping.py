"""From the runs of the state-tracking family to what ships, and to the file of all errors."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from patheval.errors import CheckpointError
from patheval.leaderboard import states
from patheval.leaderboard.states import StateRow
from patheval.zoo import logprobs, sha256, shipping
from patheval.zoo.models import CONFIG_NAME, WEIGHTS_NAME
from patheval.zoo.recipes import LONG_CONTEXT
from patheval.zoo.state_tracking import card, recipes
from patheval.zoo.state_tracking.recipes import TESTS, TRAINING
from patheval.zoo.state_tracking.training import RESULTS_NAME
from patheval.zoo.tokenizer import TOKENIZER_CONFIG_NAME, TOKENIZER_NAME
from patheval.zoo.train import LOG_NAME

# Seeds from 1 on are trained with.
_UNUSED_SEED = 0
_FILES = (CONFIG_NAME, WEIGHTS_NAME, TOKENIZER_NAME, TOKENIZER_CONFIG_NAME, LOG_NAME)


def collect(runs: Path, checkpoints: Path, errors: Path) -> list[str]:
    """Writes the file of all errors, ships one seed of each model, and writes the manifest anew.

    Args:
        runs: What `family.make` left.
        checkpoints: The folder that ships.
        errors: The file of all errors.

    Returns:
        Names of the checkpoints that ship.

    Raises:
        CheckpointError: A model was not tested on whole tasks, or more ships than may.
    """
    rows = read_errors(runs)
    chosen = choose(rows)
    rows = [
        StateRow(**(vars(row) | {"zoo": chosen.get(_folder_name(row))}))
        for row in sorted(rows, key=_reading_order)
    ]
    for family, attention in itertools.product(TRAINING, LONG_CONTEXT):
        shutil.rmtree(checkpoints / f"{family}-{attention}", ignore_errors=True)
    for run, name in chosen.items():
        target = checkpoints / name
        target.mkdir(parents=True)
        for file_name in _FILES:
            shutil.copyfile(runs / run / file_name, target / file_name)
        own = next(row for row in rows if row.zoo == name)
        siblings = [
            row for row in rows if row.family == own.family and row.attention == own.attention
        ]
        log = read_log(runs / run)
        (target / "card.md").write_text(card.write(name, own, siblings, log))
        logprobs.record(target, _text(own.family))
    shipping.write_manifest(checkpoints)
    states.write(rows, errors)
    return list(chosen.values())


def read_errors(runs: Path) -> list[StateRow]:
    """Reads the errors of all runs; a model that was tested twice has those of the last time.

    Args:
        runs: What `family.make` left.

    Raises:
        CheckpointError: There are none, a model is not there or lacks a test, or not all sequences
            were asked.
    """
    path = runs / RESULTS_NAME
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing; pass the folder that `patheval zoo train states` wrote"
        )
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        entries[entry["model"], entry["task"]] = entry
    rows = [_row(runs, entry) for entry in entries.values()]
    for model in dict.fromkeys(model for model, _ in entries):
        family = next(row.family for row in rows if _folder_name(row) == model)
        for source in TESTS[family]:
            entry = entries.get((model, f"path_{source.task}"), {"sequences": 0})
            if entry["sequences"] != source.num_samples:
                raise CheckpointError(
                    f"{model} was tested on {entry['sequences']} of the {source.num_samples} "
                    f"sequences of path_{source.task}; run `patheval zoo train states` without "
                    "--limit"
                )
    return rows


def choose(rows: Sequence[StateRow]) -> dict[str, str]:
    """Chooses what ships: run -> name in the zoo.

    That is every task that some attention kind has learned with all seeds, for all kinds, but of
    the MQRAR tasks the first one alone, since the others' models are as large; of other tasks the
    errors alone are kept. Of each kind the fewest layers with which all seeds learn the
    task, or the most that were tried if none do; of the seeds the one in the middle by its worst
    error.

    Args:
        rows: Errors of all runs.
    """
    chosen: dict[str, str] = {}
    models: dict[str, dict[str, dict[int, list[StateRow]]]] = {}
    for row in sorted(rows, key=_reading_order):
        kinds = models.setdefault(row.family, {})
        kinds.setdefault(row.attention, {}).setdefault(row.num_layers, []).append(row)
    for family, kinds in models.items():
        enough = {
            attention: [n for n, own in layers.items() if states.is_learned(own)]
            for attention, layers in kinds.items()
        }
        if not any(enough.values()) or (_is_mqrar(family) and any(map(_is_mqrar, chosen.values()))):
            continue
        for attention, layers in kinds.items():
            num_layers = (enough[attention] or list(layers)[-1:])[0]
            worst: dict[str, float] = {}
            for row in layers[num_layers]:
                run = _folder_name(row)
                worst[run] = max(row.error, worst.get(run, 0.0))
            ranked = sorted(worst, key=lambda run: (worst[run], run))
            chosen[ranked[(len(ranked) - 1) // 2]] = f"{family}-{attention}"
    return chosen


def _is_mqrar(name: str) -> bool:
    """Whether a task, or a model by its name, is one of multi-query repeated associative recall."""
    return name.startswith("mqrar")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Reads the training log of a run or of a shipped checkpoint.

    Args:
        folder: Its folder.
    """
    return [json.loads(line) for line in (folder / LOG_NAME).read_text().splitlines()]


def _row(runs: Path, entry: dict[str, Any]) -> StateRow:
    folder = runs / entry["model"]
    if not (folder / LOG_NAME).is_file():
        raise CheckpointError(
            f"{RESULTS_NAME} has errors of {entry['model']}, which is not in {runs}; copy the "
            "whole folder"
        )
    start, *log = read_log(folder)
    recipe = start["recipe"]
    (planned,) = recipes.find(recipe["task"], [recipe["attention"]], recipe["num_layers"])
    return StateRow(
        family=recipe["task"],
        attention=recipe["attention"],
        num_layers=recipe["num_layers"],
        seed=recipe["seeds"][0],
        task=entry["task"],
        error=entry["wrong"] / entry["labels"],
        wrong=entry["wrong"],
        labels=entry["labels"],
        sequences=entry["sequences"],
        steps=entry["steps"],
        planned_steps=planned.num_steps,
        seconds=log[-1]["seconds"],
        route=entry["route"],
        device=start["device"],
        torch=start["torch"],
        weights_sha256=sha256(folder / WEIGHTS_NAME),
        zoo=None,
    )


def _folder_name(row: StateRow) -> str:
    return f"{row.family}-{row.attention}-{row.num_layers}-seed{row.seed}"


def _reading_order(row: StateRow) -> tuple[int, int, int, int, int]:
    families = list(TRAINING)
    attentions: list[str] = list(LONG_CONTEXT)
    tasks = [f"path_{source.task}" for source in TESTS[row.family]]
    return (
        families.index(row.family),
        attentions.index(row.attention),
        row.num_layers,
        row.seed,
        tasks.index(row.task),
    )


def _text(family: str) -> str:
    """Symbols that identify the weights, from a stream that nothing is trained on."""
    symbols: list[str] = []
    index = 0
    while len(symbols) < logprobs.NUM_LOGPROBS:
        symbols += TRAINING[family].training_sequence(_UNUSED_SEED, index).symbols
        index += 1
    return " ".join(symbols)
