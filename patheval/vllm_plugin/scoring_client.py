"""Scored requests straight to vLLM's engine core, their scores as they come, and word of NaN.

What vLLM's front end does for a prompt of text and a generation is most of its work for a few
tokens, and so is sending tensors for each request where one set for each step says the same.
`scoring` is the workers' side.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.outputs import LogprobsTensors

from .scoring import request_scores

Scores = tuple[NDArray[np.float64], NDArray[np.bool_]]

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


# How often to look whether the core's process is alive while nothing comes.
_LIVENESS_S = 0.5


class ScoringClient:
    """vLLM's client of the engine core, which also takes requests that the front end never sees.

    It stands in the client's place; the front end passes over outputs that it does not know.

    Args:
        client: The client (`vllm.v1.engine.core_client`) of an engine whose workers have run
            `patheval_install_scoring`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._tickets = itertools.count()
        self._open: dict[str, int] = {}
        self._finished: list[tuple[str, Scores | None]] = []
        self._inner_ids: dict[str, str] = {}
        self._nan: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def add_scored(
        self,
        request_id: str,
        prompt: list[int],
        rows: NDArray[np.integer[Any]],
        targets: NDArray[np.integer[Any]],
        *,
        read_prefix_cache: bool,
    ) -> None:
        """Adds a prompt of which log-probabilities are wanted.

        Args:
            request_id: Not that of an open request.
            prompt: Token ids below the model's vocabulary size, at least one.
            rows: [n], numbers of the prompt's tokens, from 0; the last one is allowed.
            targets: [n], the token whose log-probability is wanted behind each row, likewise below
                the vocabulary size.
            read_prefix_cache: Take what it can from the prefix cache. Rows that lie in cached
                blocks come back as NaN.
        """
        ticket = next(self._tickets)
        self._open[request_id] = ticket
        self._client.add_request(
            EngineCoreRequest(
                request_id=request_id,
                prompt_token_ids=prompt,
                mm_features=None,
                sampling_params=_scored_params(
                    ticket, rows, targets, read_prefix_cache=read_prefix_cache
                ),
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
        )

    def add_request(self, request: EngineCoreRequest) -> None:
        """Passes on a request of vLLM's front end."""
        self._inner_ids[request.external_req_id or request.request_id] = request.request_id
        self._client.add_request(request)

    def get_output(self) -> Any:
        """What the engine core has put out, for vLLM's front end; keeps what is scored.

        Raises:
            EngineDeadError: The core's process has ended, in whatever way.
        """
        self._await_output()
        outputs = self._client.get_output()
        self._nan |= {own.request_id for own in outputs.outputs if own.num_nans_in_logits}
        own = [output for output in outputs.outputs if output.request_id in self._open]
        scores: dict[int, Scores] = {}
        for output in own:
            if output.new_prompt_logprobs_tensors is not None:
                scores.update(_unpack(output.new_prompt_logprobs_tensors))
        for output in own:
            ticket = self._open.pop(output.request_id)
            self._nan.discard(output.request_id)
            self._finished.append((output.request_id, scores.get(ticket)))
        return outputs

    def take_scored(self) -> list[tuple[str, Scores | None]]:
        """Requests that have finished since the last call.

        Returns:
            For each its id and, in the order of its rows, [n] natural-log probabilities, NaN where
            a row was not computed, and [n] whether no token was more probable; None instead of both
            if a runner lost them.
        """
        finished, self._finished = self._finished, []
        return finished

    def take_nan(self, request_id: str) -> bool:
        """Whether a finished request of the front end met NaN, if vLLM looks for them."""
        inner_id = self._inner_ids.pop(request_id, request_id)
        met = inner_id in self._nan
        self._nan.discard(inner_id)
        return met

    def abort(self) -> None:
        """Drops all scored requests and forgets the others."""
        self._client.abort_requests(list(self._open))
        self._open.clear()
        self._finished.clear()
        self._inner_ids.clear()
        self._nan.clear()

    def _await_output(self) -> None:
        """Wait while the core lives: vLLM itself waits for ever if its process was killed."""
        outputs = getattr(self._client, "outputs_queue", None)  # None: the core is in this process
        while outputs is not None and outputs.empty():
            self._client.ensure_alive()
            with outputs.not_empty:
                outputs.not_empty.wait_for(lambda: len(outputs.queue), timeout=_LIVENESS_S)


def _scored_params(
    ticket: int,
    rows: NDArray[np.integer[Any]],
    targets: NDArray[np.integer[Any]],
    *,
    read_prefix_cache: bool,
) -> SamplingParams:
    params = copy.copy(_PARAMS[read_prefix_cache])
    params.extra_args = request_scores(ticket, rows, targets)
    return params


def _unpack(packed: LogprobsTensors) -> Iterator[tuple[int, Scores]]:
    """The scores of a step, by ticket; see `scoring.Scorer.score`."""
    tickets = packed.logprob_token_ids[:, 0].numpy()
    logprobs = packed.logprobs[:, 0].numpy().astype(np.float64)
    is_greedy = packed.selected_token_ranks.numpy() == 1
    firsts = np.flatnonzero(np.diff(tickets, prepend=-1)).tolist()
    for first, last in itertools.pairwise([*firsts, len(tickets)]):
        yield int(tickets[first]), (logprobs[first:last], is_greedy[first:last])
