"""Scored requests straight to vLLM's engine core, their scores as they come, and word of NaN.

What vLLM's front end does for a prompt of text and a generation is most of its work for a few
tokens, and so is sending tensors for each request where one set for each step says the same.
`scoring_core` is the engine core's side, `scoring` the workers'.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType
from vllm.v1.outputs import LogprobsTensors

from patheval.errors import EngineError

from . import scoring_core
from .scoring import request_scores

Scores = tuple[NDArray[np.float64], NDArray[np.bool_]]

# How often to look whether the core's process is alive while nothing comes.
_LIVENESS_S = 0.5
# Of scored requests that are handed over together.
_MAX_REQUESTS = 256
_MAX_TOKENS = 1 << 18


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
        self._waiting: list[tuple[str, NDArray[np.int32], bytes, bool]] = []
        self._num_waiting_tokens = 0
        self._handed_over: list[Future[None]] = []
        self._finished: list[tuple[str, Scores | None]] = []
        self._inner_ids: dict[str, str] = {}
        self._nan: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def add_scored(
        self,
        request_id: str,
        prompt: Sequence[int] | NDArray[np.integer[Any]],
        rows: NDArray[np.integer[Any]],
        targets: NDArray[np.integer[Any]],
        *,
        read_prefix_cache: bool,
    ) -> None:
        """Adds a prompt of which log-probabilities are wanted.

        Args:
            request_id: Not that of an open request.
            prompt: Token ids below the model's vocabulary size, at least one and fewer than the
                engine's max_model_len, which counts the token that vLLM always generates.
            rows: [n], numbers of the prompt's tokens, from 0; the last one is allowed.
            targets: [n], the token whose log-probability is wanted behind each row, likewise below
                the vocabulary size.
            read_prefix_cache: Take what it can from the prefix cache. Rows that lie in cached
                blocks come back as NaN.

        Raises:
            EngineError: The core did not take requests.
        """
        ticket = next(self._tickets)
        self._open[request_id] = ticket
        own = np.asarray(prompt, dtype=np.int32)
        self._waiting.append(
            (request_id, own, request_scores(ticket, rows, targets), read_prefix_cache)
        )
        self._num_waiting_tokens += len(own)
        if len(self._waiting) >= _MAX_REQUESTS or self._num_waiting_tokens >= _MAX_TOKENS:
            self._hand_over()

    def add_request(self, request: EngineCoreRequest) -> None:
        """Passes on a request of vLLM's front end."""
        self._inner_ids[request.external_req_id or request.request_id] = request.request_id
        self._client.add_request(request)

    def get_output(self) -> Any:
        """What the engine core has put out, for vLLM's front end; keeps what is scored.

        Raises:
            EngineDeadError: The core's process has ended, in whatever way.
            EngineError: The core did not take scored requests.
        """
        self._hand_over()
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
        self._waiting.clear()
        self._num_waiting_tokens = 0
        self._handed_over.clear()
        self._finished.clear()
        self._inner_ids.clear()
        self._nan.clear()

    def _hand_over(self) -> None:
        """Give the core what waits, without waiting for the end of the step that it is in."""
        if not self._waiting:
            return
        request_ids, prompts, wanted, reads_cache = zip(*self._waiting, strict=True)
        self._waiting.clear()
        self._num_waiting_tokens = 0
        arguments = (
            request_ids,
            [len(prompt) for prompt in prompts],
            np.concatenate(prompts).tobytes(),
            wanted,
            reads_cache,
        )
        if hasattr(self._client, "engine_core"):  # in this process
            try:
                scoring_core.add_scored(self._client.engine_core, *arguments)
            except Exception as error:  # as a core's own process reports whatever a method raises
                raise _not_taken(error) from error
            return
        call_id = uuid.uuid1().int >> 64
        done: Future[None] = Future()
        self._client.utility_results[call_id] = done
        self._handed_over.append(done)
        message = (0, call_id, scoring_core.METHOD, arguments)
        self._client._send_input(EngineCoreRequestType.UTILITY, message)

    def _check_handed_over(self) -> None:
        done = [own for own in self._handed_over if own.done()]
        self._handed_over = [own for own in self._handed_over if not own.done()]
        for own in done:
            if error := own.exception():
                raise _not_taken(error)

    def _await_output(self) -> None:
        """Wait while the core lives: vLLM itself waits for ever if its process was killed."""
        self._check_handed_over()
        outputs = getattr(self._client, "outputs_queue", None)  # None: the core is in this process
        while outputs is not None and outputs.empty():
            self._client.ensure_alive()
            self._check_handed_over()
            with outputs.not_empty:
                outputs.not_empty.wait_for(lambda: len(outputs.queue), timeout=_LIVENESS_S)


def _not_taken(error: BaseException) -> EngineError:
    return EngineError(
        f"vLLM's engine core did not take scored requests ({error}; if it says more, that is "
        "above); answers so far are kept unless resume is off: run the same command again"
    )


def _unpack(packed: LogprobsTensors) -> Iterator[tuple[int, Scores]]:
    """The scores of a step, by ticket; see `scoring.Scorer.score`."""
    tickets = packed.logprob_token_ids[:, 0].numpy()
    logprobs = packed.logprobs[:, 0].numpy().astype(np.float64)
    is_greedy = packed.selected_token_ranks.numpy() == 1
    firsts = np.flatnonzero(np.diff(tickets, prepend=-1)).tolist()
    for first, last in itertools.pairwise([*firsts, len(tickets)]):
        yield int(tickets[first]), (logprobs[first:last], is_greedy[first:last])
