"""Scored requests where the model is compiled and runs from CUDA graphs; `.ci/gpu` takes both
model runners.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from patheval.vllm_plugin.scoring import EXTENSION

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module", params=["path-fox-d64-gqa", "rope-d64"])
def engine(
    request: pytest.FixtureRequest, start_engine: Callable[..., Any], checkpoints: Path
) -> Any:
    engine = start_engine(
        checkpoints / request.param,
        dtype="bfloat16",
        enforce_eager=False,
        max_num_batched_tokens=1024,
        worker_extension_cls=EXTENSION,
    )
    engine.install_scoring()
    return engine


def test_scoring_needs_no_more_memory_than_sampling_for_a_full_batch(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    def peak() -> int:
        return int(engine.llm.collective_rpc("patheval_facts")[0]["peak_gpu_memory_bytes"])

    # The first test, since a peak stays. vLLM's memory profile computes as many tokens and samples
    # for as many sequences as it admits at once.
    num_sequences = engine.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
    prompts, others = (
        [make_prompt(4000, seed=first + i) for i in range(num_sequences)] for first in (0, 1000)
    )
    engine.llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(max_tokens=1),
        use_tqdm=False,
    )
    sampling = peak()
    engine.score(others, [range(3999)] * num_sequences)
    # Each score waits for its prompt's last step: a log-probability, a rank, and five numbers that
    # say which row of a step it was.
    assert 0 < peak() <= sampling + num_sequences * 3999 * (4 + 4 + 5 * 8)


def test_values_are_those_of_vllm_s_own_prompt_logprobs(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    for length in (2, 16, 255, 256, 257, 1500):
        prompt = make_prompt(length, seed=length)
        (wanted,) = engine.next_logprobs([prompt])
        ((logprobs, _),) = engine.score([prompt], [range(length - 1)])
        torch.testing.assert_close(torch.from_numpy(logprobs), wanted, rtol=0, atol=1e-2)


def test_choices_that_share_their_context_equal_each_alone(
    engine: Any, make_prompt: Callable[..., list[int]]
) -> None:
    context = make_prompt(1024, seed=1)
    choices = [[*context, *make_prompt(6, seed=30 + i)] for i in range(4)]

    def score(prompts: list[list[int]], *, read_prefix_cache: bool) -> np.ndarray:
        rows = [range(1024, 1029)] * len(prompts)
        scores = engine.score(prompts, rows, read_prefix_cache=read_prefix_cache)
        return np.stack([logprobs for logprobs, _ in scores])

    alone = np.concatenate([score([own], read_prefix_cache=False) for own in choices])
    engine.llm.reset_prefix_cache()
    together = score(choices, read_prefix_cache=True)
    # bf16: another batch rounds otherwise.
    np.testing.assert_allclose(together, alone, rtol=0, atol=0.1)
