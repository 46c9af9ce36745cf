"""Every option of every checkpoint kind in a real engine, against the reference model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_checkpoint import save_random_checkpoint

from patheval.checkpoint.reader import open_checkpoint
from patheval.reference_model import ReferenceModel

PATH, FOX, ROPE = (
    {"model_type": name} for name in ("path_attn", "forgetting_transformer", "transformer")
)
VARIANTS: dict[str, dict[str, Any]] = {
    "path-d16-tied-sharded": PATH | {"tie_word_embeddings": True, "num_shards": 3},
    "path-d32-one-kv-head-full-w": PATH
    | {"num_heads": 2, "num_kv_heads": 1, "use_low_rank_w": False, "fused_mlp": True},
    "path-fox-d128-gqa-no-conv": PATH
    | {
        "hidden_size": 512,
        "num_kv_heads": 2,
        "use_forget_gate": True,
        "use_w_shortconv": False,
        "max_position_embeddings": 64,
    },
    "fox-d24-gate-norm-bias-gqa": FOX
    | {
        "hidden_size": 96,
        "num_kv_heads": 2,
        "use_output_gate": True,
        "qk_norm": True,
        "qkv_bias": True,
    },
    "rope-d32-norm-bias-gqa-theta": ROPE
    | {
        "hidden_size": 128,
        "num_kv_heads": 2,
        "qk_norm": True,
        "qkv_bias": True,
        "rope_theta": 500000.0,
        "max_position_embeddings": 4096,
        "fused_mlp": True,
    },
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("variant", VARIANTS)
def test_logprobs_and_decoding_equal_the_reference(
    variant: str,
    tmp_path: Path,
    start_engine: Callable[..., Any],
    make_prompt: Callable[..., list[int]],
) -> None:
    folder = save_random_checkpoint(tmp_path / variant, **VARIANTS[variant])
    engine = start_engine(folder, max_model_len=1024, num_gpu_blocks_override=40)
    prompts = [make_prompt(n, seed=n) for n in (5, 300, 600)]
    decoded = engine.greedy(prompts, 40)
    sequences = [p + out.tokens for p, out in zip(prompts, decoded, strict=True)]
    model = ReferenceModel(open_checkpoint(folder), device="cpu", dtype=torch.float64)
    scored = engine.next_logprobs(sequences)
    for prompt, out, sequence, got in zip(prompts, decoded, sequences, scored, strict=True):
        hidden, _ = model.prefill(sequence)
        logprobs = torch.log_softmax(model.logits(hidden), dim=-1)
        expected = logprobs[:-1].gather(1, torch.tensor(sequence[1:])[:, None])[:, 0]
        torch.testing.assert_close(got, expected.double(), rtol=0, atol=2e-3)
        decoding = expected[len(prompt) - 1 :].double()
        torch.testing.assert_close(out.logprobs, decoding, rtol=0, atol=2e-3)
