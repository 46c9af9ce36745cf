"""Canonical, checked tensors out of stored ones."""

from collections.abc import Iterable, Iterator

import torch

from patheval.checkpoint.config import ModelConfig
from patheval.checkpoint.layout import EMBEDDINGS, LM_HEAD, Ledger
from patheval.errors import CheckpointError


def map_weights(
    config: ModelConfig,
    weights: Iterable[tuple[str, torch.Tensor]],
    source: str = "the checkpoint",
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every tensor of `layout.expected_shapes(config)` exactly once.

    Fused MLP matrices are split and older spellings renamed; a stored output matrix that the config
    calls tied is compared with the embeddings and dropped. Yielded tensors may be views.

    Args:
        config: The checkpoint's architecture.
        weights: Pairs of stored name and tensor, in any order.
        source: Where they come from, for messages.

    Raises:
        CheckpointError: A tensor is missing, unknown, mis-shaped, stored twice, not floating point
            or not finite, or a tied output matrix differs from the embeddings.
    """
    ledger = Ledger(config, source)
    tied: dict[str, torch.Tensor] = {}
    for name, tensor in finite(weights, source):
        dtype = str(tensor.dtype).removeprefix("torch.")
        parts = ledger.claim(name, tuple(tensor.shape), dtype)
        if config.tie_word_embeddings and name in (EMBEDDINGS, LM_HEAD):
            tied[name] = tensor
            if len(tied) == 2:
                _check_tied(tied[EMBEDDINGS], tied[LM_HEAD], source)
            if name == LM_HEAD:
                continue
        for part in parts:
            yield part.name, tensor if part.rows is None else tensor[slice(*part.rows)]
    ledger.finish()


def finite(
    weights: Iterable[tuple[str, torch.Tensor]], source: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields tensors as they are, each after a look at every value.

    Args:
        weights: Pairs of name and tensor.
        source: Where they come from, for messages.

    Raises:
        CheckpointError: A floating-point tensor holds NaN or infinity.
    """
    for name, tensor in weights:
        num_bad = tensor.numel() - int(torch.isfinite(tensor).sum())
        if num_bad:
            raise CheckpointError(
                f"{name} in {source} holds {num_bad} NaN or infinite values of {tensor.numel()}; "
                "export the checkpoint again from an earlier training step"
            )
        yield name, tensor


def _check_tied(embeddings: torch.Tensor, lm_head: torch.Tensor, source: str) -> None:
    if not torch.equal(embeddings, lm_head):
        raise CheckpointError(
            f"tie_word_embeddings is true but {LM_HEAD} in {source} differs from {EMBEDDINGS}; "
            "set tie_word_embeddings to false in config.json or remove the tensor"
        )
