"""The scorer and its client without an engine: values, memory bound, steps, and the wrapper for
runner V2.
"""

import pickle
from concurrent.futures import Future
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.v1.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    FinishReason,
)
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from patheval.errors import EngineError, UnsupportedError
from patheval.vllm_plugin import scoring_core
from patheval.vllm_plugin.scoring import (
    SCORES_KEY,
    Scorer,
    ScoringExtension,
    Span,
    _V2Worker,
    request_scores,
)
from patheval.vllm_plugin.scoring_client import Scores, ScoringClient, _unpack

VOCAB, HIDDEN = 37, 8


class Head:
    """An output matrix that records how many rows it was given."""

    def __init__(self) -> None:
        self.weight = torch.randn(HIDDEN, VOCAB, generator=torch.Generator().manual_seed(0))
        self.sizes: list[int] = []

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(hidden))
        return hidden @ self.weight


def settings_of(ticket: int, rows: Any, targets: Any) -> SamplingParams:
    """A scored request's settings, as far as a scorer reads them."""
    wanted = request_scores(ticket, np.array(rows), np.array(targets))
    return SamplingParams(prompt_logprobs=0, extra_args={SCORES_KEY: wanted})


def unpacked(packed: dict[str, LogprobsTensors]) -> dict[int, Scores]:
    """Scores of a step by ticket."""
    return {ticket: own for tensors in packed.values() for ticket, own in _unpack(tensors)}


class Request:
    """A prompt with random hidden states and random rows and targets."""

    def __init__(self, ticket: int, length: int, rng: np.random.Generator) -> None:
        self.ticket = ticket
        self.hidden = torch.from_numpy(rng.standard_normal((length, HIDDEN)).astype(np.float32))
        self.rows = rng.integers(0, length, size=rng.integers(1, 2 * length + 1))
        self.targets = rng.integers(0, VOCAB, size=len(self.rows))
        self.params = settings_of(ticket, self.rows, self.targets)

    def expected(self, head: Head) -> tuple[torch.Tensor, torch.Tensor]:
        logits = (self.hidden @ head.weight).double()
        own = torch.log_softmax(logits, dim=-1)[self.rows, self.targets]
        return own, logits.argmax(dim=-1)[self.rows] == torch.from_numpy(self.targets)

    def check(self, head: Head, got: Scores) -> None:
        logprobs, is_greedy = self.expected(head)
        torch.testing.assert_close(torch.from_numpy(got[0]), logprobs, rtol=0, atol=1e-5)
        assert got[1].tolist() == is_greedy.tolist()


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
    requests = [Request(i, length, rng) for i, length in enumerate(lengths)]
    for request in requests:
        assert scorer.add(str(request.ticket), request.params)
    done = dict.fromkeys(range(len(requests)), 0)
    got: dict[int, Scores] = {}
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
        packed = scorer.score(torch.cat(hidden), spans)
        finished = unpacked(packed)
        assert len(packed) == bool(finished)  # one set of tensors for all that end in a step
        assert not finished.keys() & got.keys()
        got |= finished
    for request in requests:
        request.check(head, got[request.ticket])
        assert str(request.ticket) not in scorer
    assert max(head.sizes) <= block
    # Each wanted row meets the output matrix once.
    assert sum(head.sizes) == sum(len(set(request.rows.tolist())) for request in requests)


def test_rows_in_cached_blocks_are_nan() -> None:
    rng = np.random.default_rng(1)
    head = Head()
    scorer = Scorer(head, 4)
    request = Request(7, 10, rng)
    request.rows, request.targets = np.array([3, 5, 9]), np.array([1, 2, 3])
    scorer.add("a", settings_of(7, request.rows, request.targets))
    scorer.add("b", settings_of(2, [0, 1], [1, 1]))
    spans = [Span("a", 0, 4, 6, prompt_len=10), Span("b", 6, 4, 6, prompt_len=10)]
    got = unpacked(scorer.score(torch.cat([request.hidden[4:]] * 2), spans))
    logprobs, _ = request.expected(head)
    own, is_greedy = got[7]
    assert np.isnan(own[0]) and not is_greedy[0]
    torch.testing.assert_close(torch.from_numpy(own[1:]), logprobs[1:], rtol=0, atol=1e-5)
    assert np.isnan(got[2][0]).all() and len(got[2][0]) == 2


def test_a_tie_at_the_top_is_greedy_for_both() -> None:
    scorer = Scorer(lambda hidden: hidden, 4)
    scorer.add("a", settings_of(0, [0, 0, 0], [1, 2, 0]))
    got = unpacked(scorer.score(torch.tensor([[0.0, 3.0, 3.0]]), [Span("a", 0, 0, 1, 1)]))
    assert got[0][1].tolist() == [True, True, False]


def test_other_requests_are_left_to_vllm() -> None:
    scorer = Scorer(Head(), 4)
    assert not scorer.add("a", SamplingParams(prompt_logprobs=1))
    assert not scorer.add("b", SamplingParams(extra_args={"other": 1}))
    assert scorer.score(torch.zeros(3, HIDDEN), [Span("a", 0, 0, 3, 3)]) == {}


class FakeCore:
    """Stands for vLLM's client of an engine core: every message goes through its serialiser."""

    def __init__(self) -> None:
        scoring_core.install()
        self.utility_results: dict[int, Future[Any]] = {}
        self.sizes: list[int] = []
        self.added: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.outputs: list[EngineCoreOutputs] = []

    def add_request(self, request: EngineCoreRequest, wave: int = 0) -> None:
        assert request.request_id != "refused", "no such request"
        self.added.append(request)

    def _send_input(self, request_type: EngineCoreRequestType, message: Any) -> None:
        assert request_type == EngineCoreRequestType.UTILITY
        _, call_id, name, arguments = MsgpackDecoder().decode(MsgpackEncoder().encode(message))
        method = MethodType(getattr(EngineCore, name), self)
        num_before = len(self.added)
        try:
            method(*EngineCoreProc._convert_msgspec_args(method, arguments))
            self.utility_results[call_id].set_result(None)
        except Exception as error:
            self.utility_results[call_id].set_exception(error)
        self.sizes.append(len(self.added) - num_before)

    def preprocess_add_request(self, request: EngineCoreRequest) -> tuple[EngineCoreRequest, int]:
        return request, 0

    def abort_requests(self, request_ids: list[str]) -> None:
        self.aborted += request_ids

    def get_output(self) -> EngineCoreOutputs:
        encoded = MsgpackEncoder().encode(self.outputs.pop(0))
        decoded: EngineCoreOutputs = MsgpackDecoder(EngineCoreOutputs).decode(encoded)
        return decoded

    def finish(self, packed: dict[str, LogprobsTensors], *request_ids: str) -> None:
        """Put out the ends of requests in the given order."""
        outputs = [
            EngineCoreOutput(
                request_id=request_id,
                new_token_ids=[1],
                finish_reason=FinishReason.LENGTH,
                new_prompt_logprobs_tensors=packed.get(request_id),
            )
            for request_id in request_ids
        ]
        self.outputs.append(EngineCoreOutputs(outputs=outputs))


def test_the_client_gives_each_request_its_own_scores() -> None:
    """Through vLLM's serialiser, in whatever order the core puts the ends of a step out."""
    rng = np.random.default_rng(3)
    head, core = Head(), FakeCore()
    client, scorer = ScoringClient(core), Scorer(head, 4)
    requests = [Request(ticket, length, rng) for ticket, length in enumerate((5, 1, 9, 3))]
    for request in requests:
        client.add_scored(
            f"request {request.ticket}",
            list(range(len(request.hidden))),
            request.rows,
            request.targets,
            read_prefix_cache=request.ticket == 1,
        )
    core.outputs.append(EngineCoreOutputs())
    client.get_output()
    assert core.sizes == [4]
    assert [own.sampling_params.skip_reading_prefix_cache for own in core.added] == [
        True, False, True, True
    ]  # fmt: skip
    spans, offset = [], 0
    for own, request in zip(core.added, requests, strict=True):
        assert own.prompt_token_ids == list(range(len(request.hidden)))
        assert scorer.add(own.request_id, own.sampling_params)
        length = len(request.hidden)
        spans.append(Span(own.request_id, offset, 0, length, length))
        offset += length
    packed = scorer.score(torch.cat([own.hidden for own in requests]), spans)
    assert list(packed) == ["request 0"]
    core.finish(packed, "vLLM's", "request 2", "request 3", "request 0")
    core.finish(packed, "request 1")  # as if what it came with had been lost
    seen = client.get_output()
    assert [own.request_id for own in seen.outputs] == [
        "vLLM's", "request 2", "request 3", "request 0"
    ]  # fmt: skip
    finished = client.take_scored()
    assert [request_id for request_id, _ in finished] == ["request 2", "request 3", "request 0"]
    for request_id, scores in finished:
        assert scores is not None
        requests[int(request_id[-1])].check(head, scores)
    assert client.take_scored() == []
    client.get_output()
    assert client.take_scored() == [("request 1", None)]


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_requests_that_the_client_dropped_are_forgotten(is_handed_over: bool) -> None:
    core = FakeCore()
    client = ScoringClient(core)
    client.add_scored("a", [1], np.array([0]), np.array([2]), read_prefix_cache=True)
    if is_handed_over:
        core.outputs.append(EngineCoreOutputs())
        client.get_output()
    client.abort()
    assert core.aborted == ["a"]
    core.finish({}, "a")
    client.get_output()
    assert client.take_scored() == []
    assert core.sizes == [1] * is_handed_over


@pytest.mark.parametrize(
    ("lengths", "sizes"), [([3] * 600, [256, 256, 88]), ([200_000] * 3, [2, 1])]
)
def test_much_is_handed_over_before_an_output_is_waited_for(
    lengths: list[int], sizes: list[int]
) -> None:
    rng = np.random.default_rng(4)
    core = FakeCore()
    client = ScoringClient(core)
    prompts = [rng.integers(0, 50_000, length).astype(np.uint32) for length in lengths]
    for i, prompt in enumerate(prompts):
        client.add_scored(str(i), prompt, np.array([i % 3]), np.array([i]), read_prefix_cache=True)
    assert core.sizes == sizes[:-1]
    core.outputs.append(EngineCoreOutputs())
    client.get_output()
    assert core.sizes == sizes
    for i, (prompt, own) in enumerate(zip(prompts, core.added, strict=True)):
        assert own.request_id == str(i)
        assert own.prompt_token_ids == prompt.tolist()
        assert own.sampling_params.extra_args == {
            SCORES_KEY: request_scores(i, np.array([i % 3]), np.array([i]))
        }


@pytest.mark.parametrize("in_process", [False, True])
def test_a_core_that_does_not_take_requests_is_an_error(in_process: bool) -> None:
    core = FakeCore()
    client = ScoringClient(SimpleNamespace(engine_core=core) if in_process else core)
    client.add_scored("refused", [1], np.array([0]), np.array([2]), read_prefix_cache=True)
    core.outputs.append(EngineCoreOutputs())
    with pytest.raises(EngineError, match="did not take scored requests"):
        client.get_output()


def test_nan_of_any_step_is_told_under_the_front_ends_own_name() -> None:
    core = FakeCore()
    client = ScoringClient(core)
    for name in ("a", "b"):
        client.add_request(
            EngineCoreRequest(
                request_id=f"{name}-1234", external_req_id=name, prompt_token_ids=[1],
                mm_features=None, sampling_params=SamplingParams(), pooling_params=None,
                arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
            )
        )  # fmt: skip
    steps = [EngineCoreOutput("a-1234", [5], num_nans_in_logits=7), EngineCoreOutput("b-1234", [5])]
    core.outputs.append(EngineCoreOutputs(outputs=steps))
    core.finish({}, "a-1234", "b-1234")
    client.get_output()
    client.get_output()
    assert [client.take_nan(name) for name in ("a", "b", "a")] == [True, False, False]


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
    rng = np.random.default_rng(2)
    head, original = Head(), OriginalV2()
    worker = _V2Worker(original, Scorer(head, 4))
    a, b = Request(0, 9, rng), Request(1, 5, rng)
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
    assert got.pop("plain") == "its own"
    scores = unpacked(got)
    a.check(head, scores[a.ticket])
    b.check(head, scores[b.ticket])
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
    runner = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4))
    worker: Any = SimpleNamespace(model_runner=runner)
    with pytest.raises(UnsupportedError, match="SimpleNamespace of vLLM"):
        ScoringExtension.patheval_install_scoring(worker)


def test_settings_reach_tensor_parallel_workers() -> None:
    core = FakeCore()
    client = ScoringClient(core)
    for row in (2, 0):
        client.add_scored(
            "a", [1, 2, 3], np.array([row]), np.array([70000]), read_prefix_cache=True
        )
    core.outputs.append(EngineCoreOutputs())
    client.get_output()
    first, second = (own.sampling_params for own in core.added)
    assert first.extra_args != second.extra_args
    scorer = Scorer(lambda hidden: torch.zeros(len(hidden), 80000), 4)
    assert scorer.add("a", pickle.loads(pickle.dumps(first)))
    scores = unpacked(scorer.score(torch.zeros(3, 2), [Span("a", 0, 0, 3, 3)]))
    assert scores[0][0] == pytest.approx([-np.log(80000)])
