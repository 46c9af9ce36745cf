"""Scored requests in a real engine: chunked, shared, preempted, and beside generation."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patheval.vllm_plugin.scoring import EXTENSION

NAME = "path-fox-d64-gqa"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., Any], checkpoints: Path) -> Any:
    """Chunks of 64 tokens a step, and a cache in which three long sequences do not fit."""
    engine = start_engine(
        checkpoints / NAME, num_gpu_blocks_override=18, worker_extension_cls=EXTENSION
    )
    for _ in range(2):  # a second installation changes nothing
        assert engine.install_scoring() in ("V1", "V2")
    return engine


def test_scores_equal_the_fp64_truth(engine: Any, golden: Callable[[str], Any]) -> None:
    cases = list(golden(NAME).values())
    prompts = [case["input_ids"][:-1] for case in cases]
    rows = [range(first, len(own)) for first, own in zip((0, 255, 2000), prompts, strict=True)]
    for case, own, prompt, (logprobs, is_greedy) in zip(
        cases, rows, prompts, engine.score(prompts, rows), strict=True
    ):
        inside = slice(own[0], len(prompt) - 1)  # the last target is not the text's
        wanted = np.array(case["fp64_next_logprob"])[inside]
        assert np.abs(logprobs[:-1] - wanted).max() < 2e-3
        clear = np.array(case["fp64_margin"])[inside] > 0.01
        is_argmax = np.array(case["fp64_argmax"])[inside] == np.array(prompt)[own[0] + 1 :]
        assert (is_greedy[:-1] == is_argmax)[clear].all()


def test_the_last_row_is_what_the_sampler_sees(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    for length in (1, 5, 64, 256, 300):
        prompt = make_prompt(length, seed=length)
        (greedy,) = engine.greedy([prompt], 1)
        (token,) = greedy.tokens
        client = engine.llm.llm_engine.engine_core
        client.add_scored(
            "0", prompt, np.array([length - 1]), np.array([token]), read_prefix_cache=True
        )
        while not (finished := client.take_scored()):
            engine.llm.llm_engine.step()
        ((_, (logprobs, is_greedy)),) = finished
        assert is_greedy.all()
        torch.testing.assert_close(torch.from_numpy(logprobs), greedy.logprobs, rtol=0, atol=1e-4)


def test_choices_admitted_together_share_their_context(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    for length in (511, 512, 513):
        context = make_prompt(length, seed=10 + length)
        choices = [[*context, *make_prompt(6, seed=30 + i)] for i in range(4)]
        rows = [range(length, length + 6)] * 4
        alone = [engine.score([own], [range(length, length + 6)])[0] for own in choices]
        engine.llm.reset_prefix_cache()
        together = engine.score(choices, rows, read_prefix_cache=True)
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_allclose(one[0], other[0], rtol=0, atol=1e-4)


def test_a_row_in_a_cached_block_is_nan_and_never_a_number(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    prompt = make_prompt(530, seed=50)
    engine.llm.reset_prefix_cache()
    engine.score([prompt], [range(529)], read_prefix_cache=True)
    logprobs, _ = engine.score([prompt], [range(500, 529)], read_prefix_cache=True)[0]
    assert np.isnan(logprobs[: 512 - 500]).all()
    assert np.isfinite(logprobs[512 - 500 :]).all()


def test_generation_in_the_same_batch_is_not_disturbed(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    from vllm import SamplingParams

    prompts = [make_prompt(n, seed=60 + n) for n in (40, 90, 130)]
    (alone,) = engine.greedy([prompts[1]], 12)
    (expected,) = engine.score([prompts[0]], [range(39)])
    plain = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    old_way = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprobs=0)
    outputs: list[Any] = []
    (got,) = engine.score(
        [prompts[0]],
        [range(39)],
        beside=lambda: outputs.extend(engine._run(prompts[1:], [plain, old_way])),
    )
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=1e-4)
    assert list(outputs[0].outputs[0].token_ids) == alone.tokens
    (own,) = engine.score([prompts[2]], [range(129)])
    theirs = [
        row[token].logprob
        for row, token in zip(outputs[1].prompt_logprobs[1:], prompts[2][1:], strict=True)
    ]
    np.testing.assert_allclose(own[0], theirs, rtol=0, atol=1e-4)


def test_preempted_generations_beside_scored_prompts(
    engine: Any, make_prompt: Callable[..., list[int]], preemptions: list[str]
) -> None:
    from vllm import SamplingParams

    prompts = [make_prompt(n, seed=200 + n) for n in (500, 505, 507, 509, 510, 508, 495)]
    scored = make_prompt(520, seed=3)
    (expected,) = engine.score([scored], [range(519)])
    engine.llm.reset_prefix_cache()
    params: list[Any] = [
        SamplingParams(temperature=0, max_tokens=70, ignore_eos=True, detokenize=False)
    ] * len(prompts)
    both = engine.score(
        [scored, scored], [range(519)] * 2, beside=lambda: engine._run(prompts, params)
    )
    assert preemptions
    for got in both:
        np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=1e-4)


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
