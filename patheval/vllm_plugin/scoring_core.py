"""Scored requests enter vLLM's engine core many at a time.

A message for each would have the core's second thread, which takes messages in, fight with its
first for the interpreter: with short prompts that took longer than the steps.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import numpy as np
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore

from .scoring import SCORES_KEY

METHOD = "patheval_add_scored"

# vLLM checks settings when they are made, so that they are made once and copied.
_PARAMS = {
    read_prefix_cache: SamplingParams(
        temperature=0,
        max_tokens=1,
        ignore_eos=True,
        detokenize=False,
        prompt_logprobs=0,
        flat_logprobs=True,
        skip_reading_prefix_cache=not read_prefix_cache,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    for read_prefix_cache in (False, True)
}


def install() -> None:
    """Give engine cores the method `patheval_add_scored`, which clients call as a utility."""
    setattr(EngineCore, METHOD, add_scored)


def add_scored(
    core: EngineCore,
    request_ids: Sequence[str],
    prompt_lens: Sequence[int],
    prompts: bytes,
    scores: Sequence[bytes],
    read_prefix_cache: Sequence[bool],
) -> None:
    """Adds prompts of which log-probabilities are wanted.

    Args:
        core: The engine core.
        request_ids: [n], names that no open request has.
        prompt_lens: [n], tokens of each prompt.
        prompts: Token ids of all prompts, one after the other, as int32.
        scores: [n], what is wanted of each, see `scoring.request_scores`.
        read_prefix_cache: [n], whether it may be read for each.
    """
    token_ids = np.frombuffer(prompts, dtype=np.int32).tolist()
    arrival_time, start = time.time(), 0
    for request_id, prompt_len, wanted, reads_cache in zip(
        request_ids, prompt_lens, scores, read_prefix_cache, strict=True
    ):
        params = copy.copy(_PARAMS[reads_cache])
        params.extra_args = {SCORES_KEY: wanted}
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=token_ids[start : start + prompt_len],
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=arrival_time,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        core.add_request(*core.preprocess_add_request(request))
        start += prompt_len
