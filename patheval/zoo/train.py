"""Training one model of the zoo on one GPU, with a log, a resumable state and probes."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from patheval.zoo import mixture, models, probes
from patheval.zoo.recipes import Recipe
from patheval.zoo.tokenizer import TOKENIZER_NAME

LOG_NAME = "training.jsonl"
_STATE_NAME = "state.pt"
_NUM_LOGS = 100
_NUM_PROBES = 10
_NUM_PROMPTS = 64
_NUM_FINAL_PROMPTS = 256


def shard_folder(data: Path, stage: int) -> Path:
    """Where the shards of a stage lie, under the folder of the tokenizer."""
    return data / f"stage-{stage}"


def run_folder(runs: Path, name: str, stage: int) -> Path:
    """Where a run leaves its log, state and checkpoint."""
    return runs / f"stage-{stage}" / name


class Trainer:
    """One run of a recipe.

    Args:
        recipe: what to train.
        data: folder of the tokenizer and of one folder of shards for each stage; all of it may
            still be in the making.
        runs: folder of the runs; this one gets ``stage-N/NAME`` for its log, state and checkpoint.
    """

    def __init__(self, recipe: Recipe, data: Path, runs: Path) -> None:
        self.recipe = recipe
        self.data = data
        self.out = run_folder(runs, recipe.name, recipe.stage)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model: PreTrainedModel = models.build(recipe).to(self.device)
        if recipe.stage > 1:
            models.load(self.model, run_folder(runs, recipe.name, recipe.stage - 1))
        self.optimizer = _optimizer(self.model, recipe, fused=self.device.type == "cuda")
        self.step = 0
        self.seconds = 0.0
        self.out.mkdir(parents=True, exist_ok=True)

    def compile(self) -> None:
        """Runs one forward and backward pass, so that every kernel is compiled; keeps nothing."""
        shape = (self.recipe.batch_size, self.recipe.seq_len)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(3, self.recipe.vocab_size, shape, generator=generator)
        self._loss(ids.to(self.device)).backward()
        self.optimizer.zero_grad()
        self._next_logits(ids.to(self.device))

    def resume(self) -> None:
        """Goes on from the last saved state, if there is one."""
        path = self.out / _STATE_NAME
        if not path.exists():
            return
        state = torch.load(path, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        log = self.out / LOG_NAME
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(s for s in lines if json.loads(s).get("step", 0) <= self.step))

    def run(self, deadline: float = float("inf")) -> bool:
        """Trains to the end of the recipe or to the deadline.

        Args:
            deadline: seconds since the epoch at which to save the state and stop.

        Returns:
            Whether the recipe is finished; only then is the checkpoint written.
        """
        if self.step == 0:
            self._log(
                recipe=asdict(self.recipe),
                num_parameters=sum(parameter.numel() for parameter in self.model.parameters()),
                torch=torch.__version__,
                device=torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            )
        log_every = max(1, self.recipe.num_steps // _NUM_LOGS)
        probe_every = max(1, self.recipe.num_steps // _NUM_PROBES)
        begun = time.monotonic() - self.seconds
        losses: list[Tensor] = []
        for batch in self._batches():
            loss, grad_norm = self._update(batch)
            losses.append(loss)
            self.step += 1
            if self.step % log_every == 0 or self.step == self.recipe.num_steps:
                self.seconds = time.monotonic() - begun
                self._log(
                    step=self.step,
                    tokens=self.step * self.recipe.batch_size * self.recipe.seq_len,
                    loss=round(torch.stack(losses).mean().item(), 4),
                    learning_rate=round(self.recipe.learning_rate(self.step - 1), 7),
                    grad_norm=round(grad_norm.item(), 3),
                    seconds=round(self.seconds, 1),
                )
                losses.clear()
                if time.time() > deadline and self.step < self.recipe.num_steps:
                    self._save_state()
                    return False
            if self.step % probe_every == 0 and self.step < self.recipe.num_steps:
                self._log(step=self.step, probes=self._probe(_NUM_PROMPTS))
                self._save_state()
        self._finish()
        return True

    def _batches(self) -> Iterator[Tensor]:
        for tokens in mixture.read_batches(
            shard_folder(self.data, self.recipe.stage),
            batch_size=self.recipe.batch_size,
            first_step=self.step,
            num_steps=self.recipe.num_steps,
        ):
            yield torch.from_numpy(tokens.astype("int64")).to(self.device)

    def _next_logits(self, ids: Tensor) -> Tensor:
        self.model.eval()
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        self.model.train()
        return logits

    def _loss(self, ids: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.model(input_ids=ids, use_cache=False).logits
        return cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    def _update(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(self.step)
        loss = self._loss(ids)
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.recipe.max_grad_norm
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), grad_norm

    def _probe(self, num_prompts: int) -> dict[str, float]:
        tokenizer = Tokenizer.from_file(str(self.data / TOKENIZER_NAME))
        results = {}
        for kind in ("phonebook", "needle"):
            for length in probes.LENGTHS:
                if length > self.recipe.seq_len:
                    continue
                samples = list(probes.prompts(kind, tokenizer, length, num_prompts))
                share = probes.exact_match(
                    self._next_logits,
                    samples,
                    batch_size=self.recipe.batch_size,
                    seq_len=self.recipe.seq_len,
                    device=self.device,
                )
                results[f"{kind}_{length}"] = round(share, 4)
        return results

    def _finish(self) -> None:
        """Rounds the weights to what is shipped, writes them and probes them once more."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(parameter.bfloat16())
        models.save(self.model, self.recipe, self.out)
        self._log(step=self.step, final_probes=self._probe(_NUM_FINAL_PROMPTS))
        (self.out / _STATE_NAME).unlink(missing_ok=True)

    def _save_state(self) -> None:
        partial = self.out / f"{_STATE_NAME}.partial"
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(state, partial)
        partial.rename(self.out / _STATE_NAME)

    def _log(self, **entry: Any) -> None:
        with (self.out / LOG_NAME).open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _optimizer(model: PreTrainedModel, recipe: Recipe, *, fused: bool) -> torch.optim.AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=recipe.peak_lr,
        betas=(recipe.beta1, recipe.beta2),
        weight_decay=recipe.weight_decay,
        fused=fused,
    )
