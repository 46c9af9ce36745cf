"""Every attention kind in a real engine: golden log-probabilities, decode, batches, prefix cache,
preemption.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

KINDS = ["path-d64", "path-fox-d64-gqa", "fox-d64", "rope-d64"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(name: str, start_engine: Callable[..., Any], checkpoints: Path) -> Any:
    """Chunks of 64 tokens a step, and a cache so small that three long sequences do not fit."""
    return start_engine(checkpoints / name, num_gpu_blocks_override=18)


def test_golden_logprobs_of_three_prompts_together(
    engine: Any, name: str, golden: Callable[[str], Any]
) -> None:
    cases = golden(name).values()
    results = engine.next_logprobs([case["input_ids"] for case in cases])
    errors = torch.cat(
        [
            got - torch.tensor(case["fp64_next_logprob"], dtype=torch.float64)
            for got, case in zip(results, cases, strict=True)
        ]
    )
    assert errors.abs().max() < 2e-3
    assert errors.square().mean().sqrt() < 2e-4


def test_decoding_along_the_golden_prompt_picks_its_argmax(
    engine: Any, name: str, golden: Callable[[str], Any]
) -> None:
    case = golden(name)["a"]
    lengths = [1, 2, 3, 31, 32, 33, 64, 255, 256, 257, 511, 512, 513, 700]
    outputs = engine.greedy([case["input_ids"][:n] for n in lengths], 1, use_prefix_cache=False)
    for n, out in zip(lengths, outputs, strict=True):
        if case["fp64_margin"][n - 1] > 0.01:
            assert out.tokens == [case["fp64_argmax"][n - 1]], n


def test_decode_equals_prefill_at_every_split(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    lengths = [1, 2, 31, 32, 33, 63, 223, 250, 255, 256, 257, 480, 500]
    prompts = [make_prompt(n, seed=n) for n in lengths]
    decoded = engine.greedy(prompts, 70)
    whole = engine.next_logprobs([p + out.tokens for p, out in zip(prompts, decoded, strict=True)])
    for n, out, logprobs in zip(lengths, decoded, whole, strict=True):
        torch.testing.assert_close(out.logprobs, logprobs[n - 1 :], rtol=0, atol=1e-4, msg=str(n))


def test_prompts_together_equal_each_alone(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    prompts = [make_prompt(n, seed=100 + n) for n in (1, 40, 300, 7, 256)]
    together = engine.next_logprobs(prompts)
    for prompt, got in zip(prompts, together, strict=True):
        (alone,) = engine.next_logprobs([prompt])
        torch.testing.assert_close(got, alone, rtol=0, atol=1e-4)


def test_prefix_cache_changes_nothing(engine: Any, make_prompt: Callable[..., list[int]]) -> None:
    shared = make_prompt(700, seed=1)
    prompts = [
        shared,
        shared + make_prompt(50, seed=2),
        shared[:512] + make_prompt(30, seed=3),  # branches at a page's border
        shared[:600] + make_prompt(30, seed=4),  # branches inside a page
        shared[:512],  # cached whole
        shared[:513],
        shared,
    ]
    expected = engine.greedy(prompts, 8, use_prefix_cache=False)
    engine.llm.reset_prefix_cache()
    # One after another, so that each finds what the earlier ones left.
    for prompt, want in zip(prompts, expected, strict=True):
        (got,) = engine.greedy([prompt], 8)
        assert got.tokens == want.tokens
        torch.testing.assert_close(got.logprobs, want.logprobs, rtol=0, atol=1e-4)
        if prompt is not prompts[0]:
            assert got.num_cached_tokens >= 256
    # And a cached prefix that was written by decoding steps.
    (first,) = engine.greedy([shared[:200]], 80)
    continued = shared[:200] + first.tokens[:70]
    (cached,) = engine.greedy([continued], 10)
    assert cached.num_cached_tokens == 256
    (fresh,) = engine.greedy([continued], 10, use_prefix_cache=False)
    torch.testing.assert_close(cached.logprobs, fresh.logprobs, rtol=0, atol=1e-4)


def test_preempted_requests_are_recomputed(
    engine: Any, make_prompt: Callable[..., list[int]], preemptions: list[str]
) -> None:
    prompts = [make_prompt(n, seed=200 + n) for n in (500, 505, 507, 509, 510, 508, 495)]
    expected = [engine.greedy([p], 70, use_prefix_cache=False)[0] for p in prompts]
    engine.llm.reset_prefix_cache()
    assert not preemptions
    # Seven requests of two pages fit; their third pages do not.
    got = engine.greedy(prompts, 70, use_prefix_cache=False)
    assert preemptions
    for one, want in zip(got, expected, strict=True):
        assert one.tokens == want.tokens
        torch.testing.assert_close(one.logprobs, want.logprobs, rtol=0, atol=1e-4)


@pytest.fixture
def preemptions(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Ids of the requests that the scheduler preempts."""
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    seen: list[str] = []
    original = scheduler._preempt_request

    def record(request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(request.request_id)
        return original(request, *args, **kwargs)

    monkeypatch.setattr(scheduler, "_preempt_request", record)
    yield seen
