"""The whole family: every task with every kind of attention, with as many layers as it takes."""

import math
import multiprocessing
from collections.abc import Sequence
from pathlib import Path

from patheval.checkpoint.config import AttentionKind
from patheval.errors import CheckpointError
from patheval.leaderboard.states import REQUIRED_ACCURACY
from patheval.zoo.state_tracking import recipes, training


def make(
    runs: Path,
    tasks: Sequence[str],
    attentions: Sequence[AttentionKind],
    *,
    layers: Sequence[int] | None = None,
    seconds: float = math.inf,
    limit: int | None = None,
    num_processes: int = 1,
) -> None:
    """Trains and tests; whatever is finished stays in the folder of the runs.

    An attention kind gets no more layers once each of its seeds has reached `REQUIRED_ACCURACY` on
    every test of the task.

    Args:
        runs: Folder for one checkpoint of each model, and for `errors.jsonl`.
        tasks: Keys of `recipes.LAYER_COUNTS`.
        attentions: Kinds of attention.
        layers: Numbers of layers, of those in `recipes.LAYER_COUNTS`; None for all.
        seconds: Training time of the models of one task with one number of layers.
        limit: First sequences of each test to take; None for all.
        num_processes: Processes that make data.

    Raises:
        CheckpointError: a task has no recipe with any of the layers.
    """
    counts = {
        task: [n for n in recipes.LAYER_COUNTS[task] if layers is None or n in layers]
        for task in tasks
    }
    for task, own in counts.items():
        if not own:
            planned = ", ".join(map(str, recipes.LAYER_COUNTS[task]))
            asked = ", ".join(map(str, layers or ()))
            raise CheckpointError(
                f"{task} has recipes with {planned} layers, none with {asked}; leave it out of "
                "--tasks."
            )
    runs.mkdir(parents=True, exist_ok=True)
    # Forked before torch starts threads or a GPU; the processes run no torch.
    with multiprocessing.get_context("fork").Pool(num_processes) as pool:
        for task in tasks:
            remaining = list(attentions)
            for num_layers in counts[task]:
                if not remaining:
                    break
                group = recipes.find(task, remaining, num_layers)
                trainers = training.train_group(group, runs, seconds=seconds, pool=pool)
                entries = training.test_group(trainers, runs, limit=limit, pool=pool)
                for entry in entries:
                    print(f"{entry['model']:28} {entry['task']:18} error {entry['error']:.6f}")  # noqa: T201
                for recipe in group:
                    prefix = f"{recipe.name}-seed"
                    errors = [own["error"] for own in entries if own["model"].startswith(prefix)]
                    if max(errors) <= 1 - REQUIRED_ACCURACY:
                        remaining.remove(recipe.attention)
