"""Log-probabilities of chosen tokens behind chosen prefixes of a prompt, and of nothing else.

vLLM's own prompt log-probabilities take every position of a prompt through the whole vocabulary. A
scored request names the *rows* that it wants instead: row r of a prompt is the distribution after
its tokens 0..r. The scorer acts on each worker, behind the model's forward pass and so outside of
compiled code and CUDA graphs: it takes the hidden states of the wanted rows of all requests of a
step, multiplies a bounded number of them at a time by the output matrix, and hands back as many
values as were asked for.

This is the workers' side; `scoring_client` is the front end's, `scoring_core` the engine core's.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from vllm import SamplingParams
from vllm.v1.outputs import LogprobsTensors

from patheval.errors import UnsupportedError
from patheval.kernels.transfer import to_device

EXTENSION = f"{__name__}.ScoringExtension"

SCORES_KEY = "patheval_scoring"
# Rows of vocabulary size that are held at once; fewer where vLLM's memory profile, which samples
# max_num_seqs rows, has seen fewer.
_MAX_BLOCK_ROWS = 512
# In an engine's own process another thread takes requests in. Each operation on tensors gives the
# interpreter up, and would wait for up to Python's own 5 ms to get it back.
_SWITCH_INTERVAL_S = 2e-4


def request_scores(
    ticket: int, rows: NDArray[np.integer[Any]], targets: NDArray[np.integer[Any]]
) -> bytes:
    """What is wanted of a request, the value of `SCORES_KEY` in its `SamplingParams.extra_args`.

    Args:
        ticket: What its scores are handed out under, from 0 to 2^31 - 1.
        rows: [n], numbers of the prompt's tokens, from 0.
        targets: [n], the token that is looked up in each row.
    """
    # One value, since vLLM looks at each when it makes the settings and again when it reads them.
    return np.concatenate([[ticket], rows, targets]).astype(np.int32).tobytes()


class Span(NamedTuple):
    """Part of a prompt that a step computes.

    Attributes:
        request_id: The request.
        offset: Its first row in the step's hidden states.
        start: Number of the prompt's token in that row.
        num_tokens: Rows that belong to it, generated tokens included.
        prompt_len: Tokens of the prompt.
    """

    request_id: str
    offset: int
    start: int
    num_tokens: int
    prompt_len: int


@dataclass
class _Wanted:
    ticket: int
    rows: NDArray[np.int64]
    targets: NDArray[np.int64]
    parts: list[_Part] = field(default_factory=list)

    def is_whole(self) -> bool:
        """Whether one step gave all scores."""
        return len(self.parts) == 1 and len(self.parts[0].indices) == len(self.rows)


@dataclass
class _Part:
    """Scores of one step: which of the wanted, and their slice of the step's values."""

    indices: NDArray[np.int64]
    values: _StepValues
    slice: slice


@dataclass(frozen=True, eq=False)
class _StepValues:
    """[n] each: natural-log probability, fp32, and 1 + whether another token is more probable."""

    logprobs: torch.Tensor
    ranks: torch.Tensor


class Scorer:
    """Collects the scores of requests over the steps of their prefill.

    Args:
        compute_logits: Maps hidden states [rows, hidden_size] to logits [rows, vocab_size].
        max_block_rows: Most rows of logits to hold at once.
    """

    def __init__(
        self, compute_logits: Callable[[torch.Tensor], torch.Tensor], max_block_rows: int
    ) -> None:
        self._compute_logits = compute_logits
        self._max_block_rows = max_block_rows
        self._wanted: dict[str, _Wanted] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._wanted

    def add(self, request_id: str, params: SamplingParams) -> bool:
        """Take a request on if it is one to be scored, and tell whether it is."""
        own = (params.extra_args or {}).get(SCORES_KEY)
        if own is None or params.prompt_logprobs is None:
            return False
        numbers = np.frombuffer(own, dtype=np.int32).astype(np.int64)
        num_rows = len(numbers) // 2
        rows, targets = numbers[1 : 1 + num_rows], numbers[1 + num_rows :]
        self._wanted[request_id] = _Wanted(int(numbers[0]), rows, targets)
        return True

    def remove(self, request_id: str) -> None:
        """Forget a request."""
        self._wanted.pop(request_id, None)

    def retain(self, request_ids: Any) -> None:
        """Forget all requests but those in a container."""
        for request_id in [own for own in self._wanted if own not in request_ids]:
            self.remove(request_id)

    def score(self, hidden: torch.Tensor, spans: Sequence[Span]) -> dict[str, LogprobsTensors]:
        """Score a step.

        Args:
            hidden: [rows, hidden_size], output of the model's last layer.
            spans: The requests of the step; those that were not added are ignored.

        Returns:
            The scores of all requests whose prompts end in this step, under the id of one of them:
            the front end pays for each set of tensors. `logprob_token_ids` [n, 1] holds the ticket
            of the request that each value belongs to, in its order; `logprobs` [n, 1] and
            `selected_token_ranks` [n] are on the CPU. On a GPU the copies may be under way: wait
            for the current stream before reading.
        """
        rows: list[NDArray[np.int64]] = []
        targets: list[NDArray[np.int64]] = []
        parts: list[tuple[_Wanted, NDArray[np.int64]]] = []
        finished = []
        for span in spans:
            wanted = self._wanted.get(span.request_id)
            if wanted is None:
                continue
            stop = min(span.start + span.num_tokens, span.prompt_len)
            if span.start == 0 and stop == span.prompt_len:
                indices = np.arange(len(wanted.rows))
            else:
                indices = np.flatnonzero((wanted.rows >= span.start) & (wanted.rows < stop))
            if indices.size:
                rows.append(wanted.rows[indices] + (span.offset - span.start))
                targets.append(wanted.targets[indices])
                parts.append((wanted, indices))
            if stop == span.prompt_len:
                finished.append(span.request_id)
        if rows:
            values = self._values(hidden, np.concatenate(rows), np.concatenate(targets))
            first = 0
            for wanted, indices in parts:
                wanted.parts.append(_Part(indices, values, slice(first, first + len(indices))))
                first += len(indices)
        if not finished:
            return {}
        ended = [self._wanted.pop(request_id) for request_id in finished]
        return {finished[0]: _pack(ended, hidden.device)}

    def _values(
        self, hidden: torch.Tensor, rows: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> _StepValues:
        """Score targets behind rows of `hidden`, each row multiplied once."""
        distinct, which = np.unique(rows, return_inverse=True)
        order = np.argsort(which, kind="stable")  # by row, so that a block's targets are a slice
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        starts = np.arange(0, len(distinct), self._max_block_rows)
        firsts = np.searchsorted(which[order], [*starts, len(distinct)])
        columns = (distinct, which[order] % self._max_block_rows, targets[order], place)
        on_device = to_device(torch.from_numpy(np.concatenate(columns)), hidden.device)
        own_rows, local, own_targets, original = on_device.split([len(own) for own in columns])
        logprobs, ranks = [], []
        for start, first, last in zip(starts, firsts, firsts[1:], strict=False):
            block = own_rows[start : start + self._max_block_rows]
            logits = self._compute_logits(hidden.index_select(0, block)).float()
            inside = local[first:last]
            own = logits[inside, own_targets[first:last]]
            best = logits.amax(dim=-1)
            # A tie at the top counts as the most probable, as in lm-eval's own adapter.
            ranks.append(1 + (best[inside] > own).to(torch.int32))
            # In place: the block of logits is all that is held.
            log_total = logits.sub_(best[:, None]).exp_().sum(dim=-1).log_()
            logprobs.append(own - (best + log_total)[inside])
        return _StepValues(torch.cat(logprobs)[original], torch.cat(ranks)[original])


def _pack(ended: Sequence[_Wanted], device: torch.device) -> LogprobsTensors:
    """The scores of requests, one after the other; see `Scorer.score`."""
    segments: list[tuple[_StepValues, slice]] = []
    for wanted in ended:
        values, own = _collect(wanted, device)
        if segments and segments[-1][0] is values and segments[-1][1].stop == own.start:
            own = slice(segments.pop()[1].start, own.stop)
        segments.append((values, own))
    tickets = np.repeat(
        np.array([wanted.ticket for wanted in ended], dtype=np.int32),
        [len(wanted.rows) for wanted in ended],
    )
    return LogprobsTensors(
        torch.from_numpy(tickets)[:, None],
        torch.cat([values.logprobs[own] for values, own in segments]).to("cpu", non_blocking=True)[
            :, None
        ],
        torch.cat([values.ranks[own] for values, own in segments]).to("cpu", non_blocking=True),
    )


def _collect(wanted: _Wanted, device: torch.device) -> tuple[_StepValues, slice]:
    """Where the scores of one request lie in its own order; NaN where there are none."""
    if wanted.is_whole():
        (part,) = wanted.parts
        return part.values, part.slice
    num_wanted = len(wanted.rows)
    whole = _StepValues(
        torch.full((num_wanted,), math.nan, device=device),
        torch.full((num_wanted,), 2, dtype=torch.int32, device=device),
    )
    for part in wanted.parts:
        indices = to_device(torch.from_numpy(part.indices), device)
        whole.logprobs[indices] = part.values.logprobs[part.slice]
        whole.ranks[indices] = part.values.ranks[part.slice]
    return whole, slice(0, num_wanted)


class ScoringExtension:
    """What vLLM mixes into each of its workers (`worker_extension_cls`)."""

    def patheval_install_scoring(self: Any) -> str:
        """Put the scorer in the way of the runner's prompt log-probabilities, once.

        Infinite logits become NaN, which vLLM counts for each request: their softmax is NaN too.

        Returns:
            `V1` or `V2`, the kind of runner.

        Raises:
            UnsupportedError: The runner is of neither kind.
        """
        if multiprocessing.parent_process() is not None:
            sys.setswitchinterval(_SWITCH_INTERVAL_S)
        runner = self.model_runner
        limit = min(_MAX_BLOCK_ROWS, runner.scheduler_config.max_num_seqs)
        if hasattr(runner, "prompt_logprobs_worker"):
            _install_v2(runner, limit)
            return "V2"
        if hasattr(runner, "_get_prompt_logprobs_dict"):
            _install_v1(runner, limit)
            return "V1"
        import vllm

        raise UnsupportedError(
            f"the model runner {type(runner).__name__} of vLLM {vllm.__version__} cannot be "
            "scored; install a version that patheval supports (`patheval doctor` names them)"
        )

    def patheval_facts(self: Any) -> dict[str, Any]:
        """What computed: `kernel_impl` and `peak_gpu_memory_bytes` (None on a CPU)."""
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        on_gpu = torch.cuda.is_available()
        return {
            "kernel_impl": ", ".join(sorted({_kernel_impl(layer) for layer in layers})),
            "peak_gpu_memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        }


def _show_infinite_logits(model: Any) -> None:
    """Make each row of logits that has an infinite one NaN."""
    original = model.compute_logits

    def compute_logits(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        logits: torch.Tensor | None = original(*args, **kwargs)
        if logits is None:  # not the rank that samples
            return None
        return logits.masked_fill_(logits.amax(dim=-1, keepdim=True).isposinf(), math.nan)

    model.compute_logits = compute_logits


def _kernel_impl(layer: Any) -> str:
    return str(getattr(layer, "kernel_impl", None) or layer.get_attn_backend().get_name())


def _install_v1(runner: Any, max_block_rows: int) -> None:
    """Wrap one bound method of Model Runner V1 (`vllm.v1.worker.gpu_model_runner`)."""
    original = runner._get_prompt_logprobs_dict
    if getattr(original, "is_patheval", False):
        return
    scorer = Scorer(runner.model.compute_logits, max_block_rows)

    def scored(
        hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
    ) -> dict[str, LogprobsTensors | None]:
        for request_id in list(runner.num_prompt_logprobs):
            if scorer.add(request_id, runner.requests[request_id].sampling_params):
                del runner.num_prompt_logprobs[request_id]
        scorer.retain(runner.requests)
        out: dict[str, LogprobsTensors | None] = original(hidden_states, num_scheduled_tokens)
        spans = [
            Span(
                request_id,
                offset=int(
                    runner.query_start_loc.np[runner.input_batch.req_id_to_index[request_id]]
                ),
                start=runner.requests[request_id].num_computed_tokens,
                num_tokens=num_tokens,
                prompt_len=len(runner.requests[request_id].prompt_token_ids),
            )
            for request_id, num_tokens in num_scheduled_tokens.items()
            if request_id in scorer
        ]
        own = scorer.score(hidden_states, spans)
        if own:
            runner._sync_device()
        return out | own

    scored.is_patheval = True  # type: ignore[attr-defined]
    runner._get_prompt_logprobs_dict = scored
    _show_infinite_logits(runner.model)


def _install_v2(runner: Any, max_block_rows: int) -> None:
    """Wrap the prompt log-probability worker of Model Runner V2 (`vllm.v1.worker.gpu`)."""
    worker = runner.prompt_logprobs_worker
    if worker is None or isinstance(worker, _V2Worker):  # None: not the last pipeline stage
        return
    scorer = Scorer(runner.model.compute_logits, max_block_rows)
    runner.prompt_logprobs_worker = _V2Worker(worker, scorer)
    _show_infinite_logits(runner.model)


class _V2Worker:
    """Takes scored requests out of the original's hands and passes everything else on."""

    def __init__(self, original: Any, scorer: Scorer) -> None:
        self._original = original
        self._scorer = scorer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def add_request(
        self, req_id: str, req_idx: int, sampling_params: SamplingParams, *args: Any, **kwargs: Any
    ) -> None:
        if self._scorer.add(req_id, sampling_params):
            self._original.uses_prompt_logprobs[req_idx] = False
        else:
            self._original.add_request(req_id, req_idx, sampling_params, *args, **kwargs)

    def remove_request(self, req_id: str, *args: Any, **kwargs: Any) -> None:
        self._scorer.remove(req_id)
        self._original.remove_request(req_id, *args, **kwargs)

    def compute_prompt_logprobs(
        self,
        logits_fn: Callable[[torch.Tensor], torch.Tensor],
        hidden_states: torch.Tensor,
        input_batch: Any,
        all_token_ids: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        prompt_lens: NDArray[np.int32],
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, LogprobsTensors]:
        out: dict[str, LogprobsTensors] = self._original.compute_prompt_logprobs(
            logits_fn,
            hidden_states,
            input_batch,
            all_token_ids,
            num_computed_tokens,
            prompt_lens,
            *args,
            **kwargs,
        )
        columns = (
            input_batch.query_start_loc_np,
            input_batch.num_computed_prefill_tokens_np,
            input_batch.num_scheduled_tokens,
            prompt_lens[input_batch.idx_mapping_np],
            input_batch.prefill_len_np,
        )
        spans = []
        for req_id, offset, start, num_tokens, prompt_len, prefill_len in zip(
            input_batch.req_ids, *(column.tolist() for column in columns), strict=False
        ):
            if req_id not in self._scorer:
                continue
            if start >= prompt_len or prompt_len < prefill_len:
                # Past its prompt, or resumed behind it: the scores have gone out already.
                self._scorer.remove(req_id)
                continue
            spans.append(Span(req_id, offset, start, num_tokens, prompt_len))
        return out | self._scorer.score(hidden_states, spans)
