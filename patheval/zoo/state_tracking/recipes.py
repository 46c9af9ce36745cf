"""What each model of the state-tracking family is trained with."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from patheval.checkpoint.config import AttentionKind
from patheval.errors import CheckpointError
from patheval.tasks.fflm import sequences as fflm
from patheval.tasks.mqrar import sequences as mqrar
from patheval.tasks.sequences import SequenceSource
from patheval.tasks.word_problem import sequences as word_problem

ATTENTIONS: tuple[AttentionKind, ...] = ("rope", "path", "fox", "path-fox")

_INTERMEDIATE_MULTIPLE = 64


@dataclass(frozen=True)
class StateRecipe:
    """Training of one small model, for several seeds at once.

    Attributes:
        task: Key of `TRAINING`: what is learned.
        attention: Kind of attention of every layer.
        num_layers: Number of blocks.
        hidden_size: Width of the residual stream.
        num_heads: Number of query and key-value heads.
        batch_size: Sequences of a step, for each seed.
        num_steps: Optimizer steps.
        warmup_steps: Steps of linear warm-up of the learning rate.
        decay_share: Share of the steps, the last ones, in which it falls linearly to 0.
        peak_lr: Highest learning rate.
        weight_decay: AdamW's, on matrices only.
        beta1: AdamW's decay of the first moment.
        beta2: AdamW's decay of the second moment.
        max_grad_norm: Each seed's gradients are scaled down to this norm.
        first_labels: Labels of each sequence that count at first; None for all. A seed gets one
            more whenever its accuracy reaches `accuracy_to_grow` over one part of the data.
        accuracy_to_grow: See `first_labels`.
        growing_share: Share of the steps after which all labels count in any case.
        seeds: One model for each; a seed draws weights and names the stream of training data.
    """

    task: str
    attention: AttentionKind
    num_layers: int
    hidden_size: int
    num_heads: int
    batch_size: int
    num_steps: int
    warmup_steps: int = 200
    decay_share: float = 0.3
    peak_lr: float = 1e-3
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.98
    max_grad_norm: float = 1.0
    first_labels: int | None = None
    accuracy_to_grow: float = 0.9
    growing_share: float = 0.7
    seeds: tuple[int, ...] = (1, 2, 3)

    @property
    def name(self) -> str:
        """Such as `fflm-path-1`: task, attention, layers."""
        return f"{self.task}-{self.attention}-{self.num_layers}"

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads

    @property
    def intermediate_size(self) -> int:
        """Width of the gated MLP: 8/3 of the residual stream, rounded up."""
        width = self.hidden_size * 8 / 3
        return -int(-width // _INTERMEDIATE_MULTIPLE) * _INTERMEDIATE_MULTIPLE

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then constant, then a linear fall to 0 behind the last step.

        Args:
            step: Counted from 0.
        """
        rise = (step + 1) / self.warmup_steps
        fall = (self.num_steps - step) / max(1, round(self.decay_share * self.num_steps))
        return self.peak_lr * min(1.0, rise, fall)


TRAINING: dict[str, SequenceSource] = {
    "fflm": fflm.IID,
    "a5": word_problem.A5,
    **{f"mqrar{n_back}": source for n_back, source in mqrar.N_BACK.items()},
}
"""What each task trains on."""

TESTS: dict[str, tuple[SequenceSource, ...]] = {
    "fflm": (fflm.IID, fflm.SPARSE, fflm.DENSE),
    "a5": (word_problem.A5,),
    **{f"mqrar{n_back}": (source,) for n_back, source in mqrar.N_BACK.items()},
}
"""What each task is tested on."""

LAYER_COUNTS: dict[str, tuple[int, ...]] = {
    "fflm": (1,),
    "a5": (1, 2, 3, 4),
    **{f"mqrar{n_back}": (2,) for n_back in mqrar.N_BACK},
}
"""Numbers of layers that each task is tried with, in order, until all seeds have learned it."""

_FFLM = StateRecipe(
    "fflm",
    "rope",
    num_layers=1,
    hidden_size=64,
    num_heads=2,
    batch_size=32,
    num_steps=4000,
    peak_lr=2e-3,
)
_A5 = StateRecipe(
    "a5",
    "rope",
    num_layers=1,
    hidden_size=128,
    num_heads=4,
    batch_size=256,
    num_steps=8000,
    peak_lr=3e-3,
    first_labels=2,
)
_MQRAR = StateRecipe(
    "mqrar1",
    "rope",
    num_layers=2,
    hidden_size=128,
    num_heads=2,
    batch_size=16,
    num_steps=3000,
    peak_lr=2e-3,
)


def find(task: str, attentions: Iterable[AttentionKind], num_layers: int) -> list[StateRecipe]:
    """The recipes of a task that see the same data, step by step.

    Args:
        task: A key of `TRAINING`.
        attentions: Kinds of attention.
        num_layers: Number of blocks.
    """
    bases = {"fflm": _FFLM, "a5": _A5} | {
        name: replace(_MQRAR, task=name) for name in TRAINING if name.startswith("mqrar")
    }
    if task not in bases:
        raise CheckpointError(f"No task is named {task!r}; choose from {', '.join(bases)}.")
    return [
        replace(bases[task], attention=attention, num_layers=num_layers) for attention in attentions
    ]
