"""The scorer without an engine: values, memory bound, steps, and the wrapper for runner V2."""

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.outputs import LogprobsTensors

from patheval.vllm_plugin.scoring import (
    Scorer,
    ScoringExtension,
    Span,
    _V2Worker,
    read_scores,
    scored_params,
)

VOCAB, HIDDEN = 37, 8


class Head:
    """An output matrix that records how many rows it was given."""

    def __init__(self) -> None:
        self.weight = torch.randn(HIDDEN, VOCAB, generator=torch.Generator().manual_seed(0))
        self.sizes: list[int] = []

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(hidden))
        return hidden @ self.weight


class Request:
    """A prompt with random hidden states and random rows and targets."""

    def __init__(self, request_id: str, length: int, rng: np.random.Generator) -> None:
        self.request_id = request_id
        self.hidden = torch.from_numpy(rng.standard_normal((length, HIDDEN)).astype(np.float32))
        self.rows = rng.integers(0, length, size=rng.integers(1, 2 * length + 1))
        self.targets = rng.integers(0, VOCAB, size=len(self.rows))
        self.params = scored_params(self.rows, self.targets, read_prefix_cache=True)

    def expected(self, head: Head) -> tuple[torch.Tensor, torch.Tensor]:
        logits = (self.hidden @ head.weight).double()
        own = torch.log_softmax(logits, dim=-1)[self.rows, self.targets]
        return own, logits.argmax(dim=-1)[self.rows] == torch.from_numpy(self.targets)

    def check(self, head: Head, got: LogprobsTensors) -> None:
        logprobs, is_greedy = self.expected(head)
        torch.testing.assert_close(got.logprobs[:, 0].double(), logprobs, rtol=0, atol=1e-5)
        assert (got.selected_token_ranks == 1).tolist() == is_greedy.tolist()
        assert got.logprob_token_ids[:, 0].tolist() == self.targets.tolist()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    step=st.integers(1, 24),
    block=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_steps_and_blocks_give_the_whole_distribution_s_values(
    lengths: list[int], step: int, block: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    head = Head()
    scorer = Scorer(head, block)
    requests = [Request(str(i), length, rng) for i, length in enumerate(lengths)]
    for request in requests:
        assert scorer.add(request.request_id, request.params)
    done = dict.fromkeys(range(len(requests)), 0)
    got: dict[str, LogprobsTensors] = {}
    while len(got) < len(requests):
        spans, hidden, room = [], [], step
        for i, request in enumerate(requests):
            num_tokens = min(room, len(request.hidden) - done[i])
            if num_tokens:
                spans.append(
                    Span(str(i), step - room, done[i], num_tokens, prompt_len=len(request.hidden))
                )
                hidden.append(request.hidden[done[i] : done[i] + num_tokens])
                done[i] += num_tokens
                room -= num_tokens
        finished = scorer.score(torch.cat(hidden), spans)
        assert not finished.keys() & got.keys()
        got |= finished
    for request in requests:
        request.check(head, got[request.request_id])
        assert request.request_id not in scorer
    assert max(head.sizes) <= block
    # Each wanted row meets the output matrix once.
    assert sum(head.sizes) == sum(len(set(request.rows.tolist())) for request in requests)


def test_rows_in_cached_blocks_are_nan() -> None:
    rng = np.random.default_rng(1)
    head = Head()
    scorer = Scorer(head, 4)
    request = Request("a", 10, rng)
    request.rows, request.targets = np.array([3, 5, 9]), np.array([1, 2, 3])
    scorer.add("a", scored_params(request.rows, request.targets, read_prefix_cache=True))
    (got,) = scorer.score(request.hidden[4:], [Span("a", 0, 4, 6, prompt_len=10)]).values()
    logprobs, _ = request.expected(head)
    assert got.logprobs[0].isnan().all() and got.selected_token_ranks[0] == 2
    torch.testing.assert_close(got.logprobs[1:, 0].double(), logprobs[1:], rtol=0, atol=1e-5)

    scorer.add("b", scored_params(np.array([0, 1]), np.array([1, 1]), read_prefix_cache=True))
    (got,) = scorer.score(request.hidden[4:], [Span("b", 0, 4, 6, prompt_len=10)]).values()
    assert got.logprobs.isnan().all()


def test_a_tie_at_the_top_is_greedy_for_both() -> None:
    scorer = Scorer(lambda hidden: hidden, 4)
    scorer.add("a", scored_params(np.array([0, 0, 0]), np.array([1, 2, 0]), read_prefix_cache=True))
    (got,) = scorer.score(torch.tensor([[0.0, 3.0, 3.0]]), [Span("a", 0, 0, 1, 1)]).values()
    assert got.selected_token_ranks.tolist() == [1, 1, 2]


def test_other_requests_are_left_to_vllm() -> None:
    from vllm import SamplingParams

    scorer = Scorer(Head(), 4)
    assert not scorer.add("a", SamplingParams(prompt_logprobs=1))
    assert not scorer.add("b", SamplingParams(extra_args={"other": 1}))
    assert scorer.score(torch.zeros(3, HIDDEN), [Span("a", 0, 0, 3, 3)]) == {}


def test_scores_are_read_as_the_engine_core_hands_them_out() -> None:
    tensors = LogprobsTensors(
        torch.tensor([[5], [6]]), torch.tensor([[-1.5], [-2.5]]), torch.tensor([1, 2])
    )
    logprobs, is_greedy = read_scores(tensors, 2)
    assert (logprobs.tolist(), is_greedy.tolist()) == ([-1.5, -2.5], [True, False])
    for lost in (tensors, None):
        assert np.isnan(read_scores(lost, 3)[0]).all()


class OriginalV2:
    """Stands for vLLM's worker of runner V2: records what it is given."""

    def __init__(self) -> None:
        self.uses_prompt_logprobs = np.ones(8, dtype=bool)
        self.added: list[str] = []
        self.removed: list[str] = []

    def add_request(self, req_id: str, req_idx: int, params: Any) -> None:
        self.added.append(req_id)

    def remove_request(self, req_id: str) -> None:
        self.removed.append(req_id)

    def compute_prompt_logprobs(self, *args: Any) -> dict[str, Any]:
        return {"plain": "its own"}

    def compute_prompt_token_id_logprobs(self, *args: Any) -> dict[str, Any]:
        return {"ids": args}


def batch_v2(*requests: tuple[str, int, int, int, int]) -> SimpleNamespace:
    """A step of runner V2: (id, state index, start, tokens, prefill length) of each request."""
    ids, states, starts, counts, prefills = zip(*requests, strict=True)
    return SimpleNamespace(
        req_ids=list(ids),
        idx_mapping_np=np.array(states),
        num_computed_prefill_tokens_np=np.array(starts),
        num_scheduled_tokens=np.array(counts),
        prefill_len_np=np.array(prefills),
        query_start_loc_np=np.concatenate([[0], np.cumsum(counts)]),
    )


def test_runner_v2_scores_its_own_and_passes_the_rest_on() -> None:
    from vllm import SamplingParams

    rng = np.random.default_rng(2)
    head, original = Head(), OriginalV2()
    worker = _V2Worker(original, Scorer(head, 4))
    a, b = Request("a", 9, rng), Request("b", 5, rng)
    worker.add_request("plain", 3, SamplingParams(prompt_logprobs=1))
    worker.add_request("a", 1, a.params)
    worker.add_request("b", 0, b.params)
    assert original.added == ["plain"]
    assert original.uses_prompt_logprobs.tolist()[:4] == [False, False, True, True]

    prompt_lens = np.array([5, 9, 0, 4])
    state = (torch.zeros(1), torch.zeros(1), prompt_lens)
    # First the plain request's decoding step, then the beginning of a.
    step = batch_v2(("plain", 3, 4, 1, 4), ("a", 1, 0, 6, 9))
    hidden = torch.cat([torch.zeros(1, HIDDEN), a.hidden[:6]])
    assert worker.compute_prompt_logprobs(head, hidden, step, *state) == {"plain": "its own"}
    step = batch_v2(("b", 0, 0, 5, 5), ("a", 1, 6, 3, 9))
    got = worker.compute_prompt_logprobs(head, torch.cat([b.hidden, a.hidden[6:]]), step, *state)
    a.check(head, got["a"])
    b.check(head, got["b"])
    # A request that was preempted behind its prompt must not give its scores twice.
    worker.add_request("a", 1, a.params)
    step = batch_v2(("a", 1, 0, 10, 10))
    assert "a" not in worker.compute_prompt_logprobs(head, torch.zeros(10, HIDDEN), step, *state)
    worker.remove_request("a")
    assert original.removed == ["a"]
    assert worker.compute_prompt_token_id_logprobs(1, 2) == {"ids": (1, 2)}


def test_v2_names_in_use_are_vllm_s() -> None:
    """The names that the wrapper takes from vLLM, in the installed version's source."""
    import inspect

    from vllm.v1.worker.gpu.sample import prompt_logprob

    source = inspect.getsource(prompt_logprob.PromptLogprobsWorker)
    for name in vars(batch_v2(("a", 0, 0, 1, 1))):
        assert f"input_batch.{name}" in source
    parameters = inspect.signature(prompt_logprob.PromptLogprobsWorker.compute_prompt_logprobs)
    wrapped = inspect.signature(_V2Worker.compute_prompt_logprobs)
    assert list(wrapped.parameters)[: len(parameters.parameters)] == list(parameters.parameters)


def test_unknown_runners_are_refused() -> None:
    from patheval.errors import UnsupportedError

    runner = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4))
    worker: Any = SimpleNamespace(model_runner=runner)
    with pytest.raises(UnsupportedError, match="SimpleNamespace of vLLM"):
        ScoringExtension.patheval_install_scoring(worker)


def test_settings_reach_an_engine_in_another_process() -> None:
    """By vLLM's own serialiser; there they are plain settings."""
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    params = scored_params(np.array([2, 0]), np.array([70000, 1]), read_prefix_cache=True)
    other = scored_params(np.array([1]), np.array([7]), read_prefix_cache=True)
    assert other.extra_args != params.extra_args
    assert pickle.loads(pickle.dumps(params)) == params  # as to tensor-parallel workers
    request = EngineCoreRequest(
        request_id="a",
        prompt_token_ids=[1, 2, 3],
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    decoded = MsgpackDecoder(EngineCoreRequest).decode(MsgpackEncoder().encode(request))
    got = decoded.sampling_params
    assert type(got) is SamplingParams and not got.skip_reading_prefix_cache
    scorer = Scorer(lambda hidden: torch.zeros(len(hidden), 80000), 4)
    assert scorer.add("a", got)
    (scores,) = scorer.score(torch.zeros(3, 2), [Span("a", 0, 0, 3, 3)]).values()
    assert scores.logprob_token_ids[:, 0].tolist() == [70000, 1]
