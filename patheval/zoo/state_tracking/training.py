"""Training the models of the state-tracking family that see the same data, and testing them."""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import Progress
from torch import Tensor

from patheval.zoo.state_tracking import data
from patheval.zoo.state_tracking.model import StackedModel
from patheval.zoo.state_tracking.recipes import TESTS, StateRecipe
from patheval.zoo.train import LOG_NAME

RESULTS_NAME = "errors.jsonl"

_WARMUP_CALLS = 3
_PARTS_MEASURED = 3


def model_folder(runs: Path, recipe: StateRecipe, seed: int) -> Path:
    """Where the checkpoint of one seed goes."""
    return runs / f"{recipe.name}-seed{seed}"


class Trainer:
    """One recipe's models with their optimizer.

    On a GPU the whole step is recorded once and replayed, since it consists of many small kernels,
    and on a stream of its own, so that the small kernels of several trainers run at the same time.

    Args:
        recipe: What to train.
        device: Where.
    """

    def __init__(self, recipe: StateRecipe, device: torch.device) -> None:
        self.recipe = recipe
        self.device = device
        self.model = StackedModel(recipe, data.vocab_size(recipe.task)).to(device)
        self.step = 0
        self.seconds = 0.0
        self.num_labels: list[int | None] = [recipe.first_labels for _ in recipe.seeds]
        self._stream = torch.cuda.Stream() if device.type == "cuda" else None
        matrices = {name for name in self.model.weights() if not _is_vector(name)}
        groups: list[dict[str, Any]] = [
            {"params": [own for name, own in self.model.weights().items() if name in matrices]},
            {
                "params": [
                    own for name, own in self.model.weights().items() if name not in matrices
                ],
                "weight_decay": 0.0,
            },
        ]
        self._learning_rate = torch.tensor(recipe.peak_lr, device=device)
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=self._learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            weight_decay=recipe.weight_decay,
            capturable=self._stream is not None,
            foreach=self._stream is not None,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ids = self._labels = self._recorded = torch.empty(0)
        self._results: list[Tensor] = []
        self._begun = 0.0

    def limit_steps(self, most: float) -> None:
        """Shortens the recipe, and with it the learning-rate schedule, unless it is as short.

        Args:
            most: Steps, those already taken included; rounded down, infinity for no limit.
        """
        num_steps = max(self.step, int(min(most, self.recipe.num_steps)))
        self.recipe = replace(self.recipe, num_steps=num_steps)

    def train(self, part: data.Batch) -> tuple[Tensor, Tensor]:
        """Trains on the batches of some steps; see `start` and `finish`."""
        self.start(part)
        return self.finish()

    def start(self, part: data.Batch) -> None:
        """Begins to train on the batches of some steps; on a GPU without waiting for it.

        Args:
            part: Arrays [num_steps, num_models, batch, seq_len].
        """
        self._begun = time.monotonic()
        self._results = []
        with self._on_stream():
            all_ids = torch.from_numpy(part.ids).to(self.device)
            all_labels = torch.from_numpy(self._first_labels(part.labels)).to(self.device)
            for ids, labels in zip(all_ids, all_labels, strict=True):
                if self.step == self.recipe.num_steps:
                    break
                self._learning_rate.fill_(self.recipe.learning_rate(self.step))
                self._results.append(self._run(ids.long(), labels.long()).clone())
                self.step += 1

    def finish(self) -> tuple[Tensor, Tensor]:
        """Waits for the steps that were begun.

        Returns:
            Mean loss in nats and share of the labels named, each [num_models].
        """
        with self._on_stream():
            losses, accuracies = torch.stack(self._results).mean(0).cpu()
        self.seconds += time.monotonic() - self._begun
        self._grow(accuracies.tolist())
        return losses, accuracies

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _first_labels(self, labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Drops the labels that do not count yet, [num_steps, num_models, batch, seq_len]."""
        if self.step >= self.recipe.growing_share * self.recipe.num_steps:
            self.num_labels = [None for _ in self.num_labels]
        kept = labels.copy()
        for index, count in enumerate(self.num_labels):
            if count is not None:
                is_late = np.cumsum(labels[:, index] != data.NO_LABEL, axis=-1) > count
                kept[:, index][is_late] = data.NO_LABEL
        return kept

    def _grow(self, accuracies: Sequence[float]) -> None:
        for index, accuracy in enumerate(accuracies):
            count = self.num_labels[index]
            if count is not None and accuracy >= self.recipe.accuracy_to_grow:
                self.num_labels[index] = count + 1

    def _run(self, ids: Tensor, labels: Tensor) -> Tensor:
        if self._stream is None:
            return self._update(ids, labels)
        if self._graph is None:
            self._record(ids, labels)
        assert self._graph is not None
        self._ids.copy_(ids)
        self._labels.copy_(labels)
        self._graph.replay()
        return self._recorded

    def _record(self, ids: Tensor, labels: Tensor) -> None:
        """Records one step; weights and optimizer are as before afterwards."""
        self._ids, self._labels = ids.clone(), labels.clone()
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        for _ in range(_WARMUP_CALLS):
            self._update(self._ids, self._labels)
        self._graph = torch.cuda.CUDAGraph()
        # On the trainer's own stream, whose matrix products have a workspace of their own: the
        # graphs of several trainers run at the same time.
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._recorded = self._update(self._ids, self._labels)
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), before, strict=True):
                parameter.copy_(value)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def _update(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Takes one step; returns losses and accuracies before it, [2, num_models]."""
        self.optimizer.zero_grad(set_to_none=True)
        logprobs = torch.log_softmax(self.model(ids), dim=-1)
        is_labelled = labels != data.NO_LABEL
        num_labels = is_labelled.sum(dim=(1, 2))
        own = logprobs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        losses = -(own * is_labelled).sum(dim=(1, 2)) / num_labels
        losses.sum().backward()
        _clip(list(self.model.parameters()), self.recipe.max_grad_norm)
        self.optimizer.step()
        is_right = (logprobs.detach().argmax(dim=-1) == labels) & is_labelled
        return torch.stack([losses.detach(), is_right.sum(dim=(1, 2)) / num_labels])


def _is_vector(name: str) -> bool:
    return name.endswith(("norm.weight", ".bias", "conv1d.weight"))


def _clip(parameters: Sequence[Tensor], max_norm: float) -> None:
    """Scales down the gradients of each of the stacked models by themselves."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = torch.stack([grad.flatten(1).square().sum(dim=1) for grad in grads]).sum(dim=0)
    scale = (max_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(scale.view(-1, *[1] * (grad.ndim - 1)))


def train_group(
    recipes: Sequence[StateRecipe],
    runs: Path,
    *,
    seconds: float,
    pool: Pool,
) -> list[Trainer]:
    """Trains models of one task side by side, each on the same sequences in the same order.

    Writes a checkpoint with tokenizer and log for each seed.

    Args:
        recipes: Equal in all but attention.
        runs: Folder of the runs.
        seconds: Time to train them in, infinity for no limit; the recipes' steps are cut to what
            fits, as their first steps show.
        pool: The processes that make training data.

    Returns:
        The trainers, with weights as stored.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainers = [Trainer(recipe, device) for recipe in recipes]
    logs: list[list[dict[str, Any]]] = [[] for _ in trainers]
    label = f"{recipes[0].task}, {recipes[0].num_layers} layers"
    with Progress() as progress:
        bar = progress.add_task(label, total=recipes[0].num_steps)
        begun = time.monotonic()
        for number, part in enumerate(data.training_parts(recipes[0], pool)):
            if number == 1:
                begun_warm = time.monotonic()
            elif number == _PARTS_MEASURED + 1:
                now = time.monotonic()
                per_step = (now - begun_warm) / (_PARTS_MEASURED * data.STEPS_PER_PART)
                affordable = trainers[0].step + (seconds - (now - begun)) / per_step
                for trainer in trainers:
                    trainer.limit_steps(affordable)
                progress.update(bar, total=trainers[0].recipe.num_steps)
            if trainers[0].step == trainers[0].recipe.num_steps:
                break
            counts = []
            for trainer in trainers:
                trainer.start(part)
                counts.append(list(trainer.num_labels))
            for trainer, log, counted in zip(trainers, logs, counts, strict=True):
                losses, accuracies = trainer.finish()
                log.append(
                    {
                        "step": trainer.step,
                        "labels_counted": counted,
                        "loss": _rounded(losses, 6),
                        "accuracy": _rounded(accuracies, 6),
                        "seconds": round(trainer.seconds, 1),
                    }
                )
            progress.update(bar, completed=trainers[0].step)
    for trainer, log in zip(trainers, logs, strict=True):
        trainer.model.round_to_bfloat16()
        for index, seed in enumerate(trainer.recipe.seeds):
            folder = model_folder(runs, trainer.recipe, seed)
            trainer.model.save(index, folder)
            data.save_tokenizer(trainer.recipe.task, folder)
            start = {
                "recipe": {**asdict(trainer.recipe), "seeds": [seed]},
                "num_parameters": sum(p[0].numel() for p in trainer.model.parameters()),
                "torch": torch.__version__,
                "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            }
            entries = [start, *(_of_one(entry, index) for entry in log)]
            (folder / LOG_NAME).write_text("".join(json.dumps(e) + "\n" for e in entries))
    return trainers


def _rounded(values: Tensor, digits: int) -> list[float]:
    return [round(value, digits) for value in values.tolist()]


def _of_one(entry: dict[str, Any], index: int) -> dict[str, Any]:
    """A log entry of all seeds, for one of them."""
    return {key: value[index] if isinstance(value, list) else value for key, value in entry.items()}


@torch.inference_mode()
def count_errors(model: StackedModel, parts: Iterable[data.Batch]) -> tuple[NDArray[np.int64], int]:
    """Counts the labels that are not what greedy decoding gives.

    Args:
        model: The models.
        parts: Test sequences, [batch, seq_len] each.

    Returns:
        Wrong labels of each model, [num_models], and the number of labels.
    """
    device = next(model.parameters()).device
    num_models = len(model.recipe.seeds)
    wrong = torch.zeros(num_models, dtype=torch.int64, device=device)
    num_labels = 0
    for part in parts:
        ids = torch.from_numpy(part.ids).long().to(device)
        labels = torch.from_numpy(part.labels).long().to(device)
        best = model(ids.expand(num_models, *ids.shape)).argmax(dim=-1)
        is_labelled = labels != data.NO_LABEL
        wrong += ((best != labels) & is_labelled).sum(dim=(1, 2))
        num_labels += int((part.labels != data.NO_LABEL).sum())
    return wrong.cpu().numpy(), num_labels


def test_group(
    trainers: Sequence[Trainer], runs: Path, *, limit: int | None, pool: Pool
) -> list[dict[str, Any]]:
    """Tests trained models on the tasks' own test sequences, and appends to `errors.jsonl`.

    Args:
        trainers: Of one task.
        runs: Folder of the runs.
        limit: First sequences of each test to take; None for all.
        pool: The processes that make test data.

    Returns:
        What was appended: one entry for each model and test.
    """
    task = trainers[0].recipe.task
    tokenizer = model_folder(runs, trainers[0].recipe, trainers[0].recipe.seeds[0])
    entries = []
    for source in TESTS[task]:
        parts = list(data.test_parts(task, source, tokenizer, limit, pool))
        for trainer in trainers:
            wrong, num_labels = count_errors(trainer.model, parts)
            own = [
                {
                    "model": model_folder(runs, trainer.recipe, seed).name,
                    "task": f"path_{source.task}",
                    "route": "batched float32 logits of the stored weights, without lm-eval",
                    "sequences": sum(len(part.ids) for part in parts),
                    "labels": num_labels,
                    "wrong": num_wrong,
                    "error": num_wrong / num_labels,
                    "steps": trainer.step,
                }
                for seed, num_wrong in zip(trainer.recipe.seeds, wrong.tolist(), strict=True)
            ]
            with (runs / RESULTS_NAME).open("a") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in own)
            entries += own
    return entries
