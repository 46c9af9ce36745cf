"""What each checkpoint of the zoo is trained with, fixed before any run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from patheval.errors import CheckpointError

Attention = Literal["rope", "fox", "path", "path-fox"]

_FIRST_SHARES = {
    "books": 0.32,
    "needles": 0.26,
    "chains": 0.07,
    "stories": 0.07,
    "counting": 0.03,
    "code": 0.13,
    "prose": 0.12,
}
_SECOND_SHARES = {
    "facts": 0.5,
    "books": 0.2,
    "needles": 0.05,
    "chains": 0.06,
    "stories": 0.06,
    "counting": 0.03,
    "code": 0.05,
    "prose": 0.05,
}


@dataclass(frozen=True)
class Recipe:
    """One stage of the training of a checkpoint.

    Attributes:
        name: name of the checkpoint.
        attention: the only thing in which the models of the long-context family differ.
        stage: counted from 1; a later stage starts from the weights of the one before.
        vocab_size: entries of the tokenizer and rows of the tied embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the gated MLP.
        num_layers: number of blocks.
        num_heads: number of query and key-value heads.
        seq_len: tokens of a training sequence.
        batch_size: sequences of a step.
        num_steps: optimizer steps; the learning-rate schedule ends with the last.
        warmup_steps: steps of linear warm-up.
        peak_lr: highest learning rate.
        final_lr_ratio: last learning rate as a share of the highest.
        weight_decay: AdamW's, on matrices only.
        beta1: AdamW's decay of the first moment.
        beta2: AdamW's decay of the second moment.
        max_grad_norm: gradients are scaled down to this norm.
        seed: of the weights.
        data_seed: of the data and its order.
        shares: weight of each kind of document in the data.
        ramp: share of the steps in which the longest document grows to ``seq_len``.
    """

    name: str
    attention: Attention
    stage: int = 1
    vocab_size: int = 1920
    hidden_size: int = 256
    intermediate_size: int = 512
    num_layers: int = 4
    num_heads: int = 4
    seq_len: int = 2048
    batch_size: int = 32
    num_steps: int = 5000
    warmup_steps: int = 200
    peak_lr: float = 2e-3
    final_lr_ratio: float = 0.05
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    max_grad_norm: float = 1.0
    seed: int = 1
    data_seed: str = "train"
    shares: Mapping[str, float] = field(default_factory=lambda: _FIRST_SHARES)
    ramp: float = 0.2

    @property
    def num_sequences(self) -> int:
        """Sequences seen in the whole run; none is seen twice."""
        return self.num_steps * self.batch_size

    @property
    def num_tokens(self) -> int:
        """Tokens seen in the whole run."""
        return self.num_sequences * self.seq_len

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then a cosine from the peak to the final rate.

        Args:
            step: counted from 0.
        """
        if step < self.warmup_steps:
            return self.peak_lr * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / (self.num_steps - self.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.peak_lr * (self.final_lr_ratio + (1 - self.final_lr_ratio) * cosine)


def _stages(attention: Attention) -> tuple[Recipe, ...]:
    first = Recipe(name=attention, attention=attention)
    second = replace(
        first,
        stage=2,
        num_steps=800,
        warmup_steps=40,
        peak_lr=1e-3,
        data_seed="train-2",
        shares=_SECOND_SHARES,
        ramp=0.0,
    )
    return first, second


_ATTENTIONS: tuple[Attention, ...] = ("rope", "fox", "path", "path-fox")

LONG_CONTEXT = {attention: _stages(attention) for attention in _ATTENTIONS}


def find(name: str, stage: int) -> Recipe:
    """One stage of a checkpoint's training.

    Args:
        name: a key of ``LONG_CONTEXT``.
        stage: counted from 1.
    """
    if name not in LONG_CONTEXT:
        known = ", ".join(LONG_CONTEXT)
        raise CheckpointError(f"No recipe is named {name!r}; choose from {known}.")
    return LONG_CONTEXT[name][stage - 1]
