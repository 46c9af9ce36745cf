"""Steps in which requests depend on one another's pages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["path-fox-d64-gqa", "fox-d64"])
def engine(
    request: pytest.FixtureRequest, start_engine: Callable[..., Any], checkpoints: Path
) -> Any:
    """Steps large enough to admit four long prompts at once."""
    return start_engine(
        checkpoints / request.param, max_num_batched_tokens=4096, num_gpu_blocks_override=40
    )


def test_four_continuations_of_one_context_admitted_in_one_step(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    context = make_prompt(800, seed=1)
    prompts = [context + make_prompt(n, seed=10 + n) for n in (1, 5, 31, 200)]
    expected = engine.greedy(prompts, 6, use_prefix_cache=False)
    engine.llm.reset_prefix_cache()
    got = engine.greedy(prompts, 6)
    # All but the first start behind pages that the first fills in the same step.
    assert [out.num_cached_tokens for out in got] == [0, 768, 768, 768]
    for one, want in zip(got, expected, strict=True):
        assert one.tokens == want.tokens
        torch.testing.assert_close(one.logprobs, want.logprobs, rtol=0, atol=1e-4)


def test_long_prefill_beside_decoding_requests(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    prompts = [make_prompt(n, seed=50 + n) for n in (3, 3000, 40, 2000)]
    together = engine.greedy(prompts, 30, use_prefix_cache=False)
    for prompt, got in zip(prompts, together, strict=True):
        (alone,) = engine.greedy([prompt], 30, use_prefix_cache=False)
        assert got.tokens == alone.tokens
        torch.testing.assert_close(got.logprobs, alone.logprobs, rtol=0, atol=1e-4)
