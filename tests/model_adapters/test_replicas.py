"""Two engines that share the work: equal answers, also when one of them is killed."""

import gc
import itertools
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance

from patheval.errors import (
    CheckpointError,
    EngineError,
    PrerequisiteError,
    RequestError,
    UnsupportedError,
)
from patheval.model_adapters import _engine, _replica, _replicas
from patheval.model_adapters._jobs import GenerationJob, Scores, tokens
from patheval.model_adapters._replica import Ready
from patheval.model_adapters.path_ref import PathRefLM
from patheval.model_adapters.path_vllm import PathLM

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"


def instances(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=own, idx=i) for i, own in enumerate(arguments)
    ]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    folder = tmp_path_factory.mktemp("checkpoints") / "path"
    shutil.copytree(CHECKPOINTS / "path-d64", folder)
    byte_tokenizer().save_pretrained(folder)
    arguments = {"pretrained": str(folder), "max_length": 512, "dtype": "float32"}
    lm = PathLM.create_from_arg_obj(
        arguments | {"data_parallel_size": 2, "max_num_seqs": 2}, {"batch_size": 1}
    )
    yield lm, PathRefLM.create_from_arg_obj(arguments, {"device": "cpu"})
    lm.close()


def pids(lm: Any) -> list[int]:
    return [replica.process._process.pid for replica in lm._engine._replicas]


GENERATIONS = [(f"{i} {'word ' * (i % 7)}", {"until": [], "max_gen_toks": 8}) for i in range(40)]
PAIRS = [(f"{'context ' * 8}{i // 4}", f" {'abcd'[i % 4]}{'e' * (i % 3)}") for i in range(40)]


@pytest.mark.slow
def test_two_engines_answer_as_one_also_when_one_is_killed(pair: tuple[Any, Any]) -> None:
    lm, reference = pair
    wanted = reference.generate_until(instances("generate_until", GENERATIONS))
    before = pids(lm)
    assert len(set(before)) == 2
    original, killed = lm._run, []

    def killing(*args: Any) -> Iterator[Any]:
        for number, answers in enumerate(original(*args)):
            if number == 4:
                os.kill(pids(lm)[1], signal.SIGKILL)
                killed.append(number)
            yield answers

    lm._run = killing
    try:
        got = lm.generate_until(instances("generate_until", GENERATIONS))
    finally:
        del lm._run
    assert killed and pids(lm)[0] == before[0] and pids(lm)[1] != before[1]
    # vLLM leaves out a character whose bytes are not complete at the end.
    assert [text.rstrip("\ufffd") for text in got] == [text.rstrip("\ufffd") for text in wanted]

    scored = instances("loglikelihood", PAIRS)
    for one, other in zip(lm.loglikelihood(scored), reference.loglikelihood(scored), strict=True):
        assert one[0] == pytest.approx(other[0], abs=1e-3) and one[1] == other[1]
    info = lm.get_model_info()
    assert info["data_parallel_size"] == 2 and info["backend"] == "vllm"
    assert info["peak_gpu_memory_bytes"] is None


@pytest.mark.slow
def test_a_refused_request_ends_the_run_and_not_the_engines(pair: tuple[Any, Any]) -> None:
    lm, _ = pair
    job = GenerationJob(tokens(range(600)), 8, lm._engine_settings(_generation()))
    with pytest.raises(RequestError, match="600 tokens"):
        list(lm._engine.run([job], [[0]]))
    before = pids(lm)
    (text,) = lm.generate_until(instances("generate_until", GENERATIONS[:1]))
    assert text and pids(lm) == before


def _generation() -> Any:
    from patheval.model_adapters._answering import Generation

    return Generation(tokens([1, 2]), 8, [], {})


class InThreads:
    """A launcher whose replicas are threads with a given engine."""

    def launch(self, rank: int) -> tuple[Any, Any]:
        ours, theirs = Pipe()

        def run() -> None:
            with theirs, socket.socket(fileno=os.dup(theirs.fileno())) as end:
                with suppress(EngineError):  # A process would end with it, and its socket too.
                    _replica.serve(theirs)
                end.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=run)
        thread.start()
        return ours, SimpleNamespace(wait=lambda: thread.join() or "ended")


def do_nothing() -> None:
    """A check that all is as it should be."""


def test_a_vllm_error_at_the_start_is_the_caller_s(monkeypatch: pytest.MonkeyPatch) -> None:
    class VLLMError(ValueError):
        """Not importable by the other side."""

    def engine(arguments: Any) -> None:
        raise VLLMError(f"no {arguments['model']}")

    monkeypatch.setattr(_engine, "Engine", engine)
    monkeypatch.setattr(_replicas, "_launcher", lambda *_: InThreads())
    with pytest.raises(ValueError, match="no checkpoint"):
        _replicas.Replicas({"model": "checkpoint"}, 2, do_nothing)


def test_engines_that_die_while_they_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(arguments: Any) -> None:
        raise EOFError

    monkeypatch.setattr(_engine, "Engine", engine)
    monkeypatch.setattr(_replicas, "_launcher", lambda *_: InThreads())
    with pytest.raises(PrerequisiteError, match=r"replica 0 .* died 3 times while it started"):
        _replicas.Replicas({"model": "checkpoint"}, 1, do_nothing)


class EchoEngine:
    """An engine whose answers are as long as the prompts, all at once."""

    max_requests = 64
    is_full = False

    def __init__(self, arguments: Any) -> None:
        self.open: list[tuple[int, Any]] = []

    @property
    def is_idle(self) -> bool:
        return not self.open

    def facts(self) -> dict[str, object]:
        return {}

    def peak_gpu_memory_bytes(self) -> int:
        return 7

    def submit(self, number: int, job: Any) -> None:
        self.open.append((number, job))

    def step(self) -> list[tuple[int, Scores]]:
        done, self.open = self.open, []
        return [
            (number, Scores(job.prompt.astype(np.float64), job.prompt > 1)) for number, job in done
        ]

    def abort(self) -> None:
        self.open.clear()


def test_messages_larger_than_any_buffer_pass_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "Engine", EchoEngine)
    monkeypatch.setattr(_replicas, "_launcher", lambda *_: InThreads())
    executor = _replicas.Replicas({}, 2, do_nothing)
    jobs = [GenerationJob(tokens([number] * 200_000), 1, None) for number in range(100)]
    for _ in range(2):
        answers = dict(own for batch in executor.run(jobs, [range(100)]) for own in batch)
        assert sorted(answers) == list(range(100))
        assert all((answers[i].logprobs == i).all() for i in range(100))  # type: ignore[union-attr]
    assert executor.peak_gpu_memory_bytes() == 7
    stopped = executor.run(jobs, [range(100)])
    next(stopped)
    stopped.close()  # What was open is dropped, and the next run gets its own answers only.
    assert sum(map(len, executor.run(jobs[:3], [range(3)]))) == 3
    executor.close()


class PickyEngine(EchoEngine):
    """An engine that refuses prompts of the token 600."""

    def submit(self, number: int, job: Any) -> None:
        if 600 in job.prompt:
            raise RequestError("a prompt has token 600")
        super().submit(number, job)


def test_an_error_ends_its_own_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica meets it, and only the first one's can be raised."""
    monkeypatch.setattr(_engine, "Engine", PickyEngine)
    monkeypatch.setattr(_replicas, "_launcher", lambda *_: InThreads())
    executor = _replicas.Replicas({}, 2, do_nothing)
    bad = [GenerationJob(tokens([600]), 1, None)] * 16
    good = [GenerationJob(tokens([5]), 1, None)] * 40
    for _ in range(3):
        with pytest.raises(RequestError, match="token 600"):
            list(executor.run(bad, [[i] for i in range(16)]))
        assert sum(map(len, executor.run(good, [[i] for i in range(40)]))) == 40
    executor.close()


def test_a_replica_whose_engine_died_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    num_steps = itertools.count()

    class MortalEngine(EchoEngine):
        def step(self) -> list[tuple[int, Scores]]:
            if next(num_steps) == 1:
                raise EngineError("vLLM's engine process has died")
            return super().step()

    monkeypatch.setattr(_engine, "Engine", MortalEngine)
    monkeypatch.setattr(_replicas, "_launcher", lambda *_: InThreads())
    executor = _replicas.Replicas({}, 2, do_nothing)
    jobs = [GenerationJob(tokens([5]), 1, None)] * 40
    answers = [own for batch in executor.run(jobs, [[i] for i in range(40)]) for own in batch]
    assert sorted(number for number, _ in answers) == list(range(40))
    executor.close()


def test_replicas_end_with_the_last_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    class Counted(InThreads):
        def launch(self, rank: int) -> tuple[Any, Any]:
            ours, process = super().launch(rank)
            return ours, SimpleNamespace(wait=lambda: ended.append(rank) or process.wait())

    monkeypatch.setattr(_engine, "Engine", EchoEngine)
    monkeypatch.setattr(_replicas, "_launcher", lambda *_: Counted())
    executor = _replicas.Replicas({}, 2, do_nothing)
    assert sum(map(len, executor.run([GenerationJob(tokens([5]), 1, None)], [[0]]))) == 1
    del executor
    gc.collect()
    assert sorted(ended) == [0, 1]


def test_a_replica_that_loaded_something_else_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changed() -> None:
        raise CheckpointError("model.safetensors was changed")

    monkeypatch.setattr(_engine, "Engine", EchoEngine)
    monkeypatch.setattr(_replicas, "_launcher", lambda *_: InThreads())
    with pytest.raises(CheckpointError, match="was changed"):
        _replicas.Replicas({}, 2, changed)


class FakeReplica:
    """A replica that answers when told to."""

    def __init__(self, rank: int, max_requests: int) -> None:
        self.rank = rank
        self.open: set[int] = set()
        self.backlog: Any = _replicas.deque()
        self.ready: Any = Ready({}, max_requests)
        self.sent: list[int] = []

    def send(self, message: Any) -> bool:
        self.sent.extend(number for number, _ in message.jobs)
        return True


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=1, max_size=8),
    num_replicas=st.integers(1, 4),
    max_requests=st.integers(1, 6),
    random=st.randoms(use_true_random=False),
)
def test_work_is_done_once_whoever_is_slow_or_dies(
    lengths: list[list[int]], num_replicas: int, max_requests: int, random: Any
) -> None:
    jobs = [GenerationJob(tokens([0] * n), 1, None) for unit in lengths for n in unit]
    numbers = iter(range(len(jobs)))
    units = [[next(numbers) for _ in unit] for unit in lengths]
    work = _replicas._Work(jobs, units, num_replicas)
    replicas: list[Any] = [FakeReplica(rank, max_requests) for rank in range(num_replicas)]
    answered: list[int] = []
    deaths = 2
    while work.num_open:
        for replica in replicas:
            work.hand_out(replica, 1)
            assert len(replica.open) <= max_requests
            # None waits while there is work that nobody has started.
            if not replica.open:
                assert not work._waiting and not any(other.backlog for other in replicas)
        busy = [replica for replica in replicas if replica.open]
        replica = random.choice(busy)
        if deaths and random.random() < 0.1:
            deaths -= 1
            work.take_back(replica)
            continue
        done = random.sample(sorted(replica.open), random.randint(1, len(replica.open)))
        own = work.finish(replica, [(number, None) for number in done])  # type: ignore[misc]
        answered.extend(number for number, _ in own)
        # A late answer of a replica that has lost the job counts for nothing.
        assert work.finish(replica, [(done[0], None)]) == []  # type: ignore[list-item]
    assert sorted(answered) == list(range(len(jobs)))


def test_an_idle_replica_takes_over_what_a_busy_one_has_not_started() -> None:
    jobs = [GenerationJob(tokens([0] * 10), 0, None) for _ in range(12)]
    work = _replicas._Work(jobs, [range(12)], 2)
    slow: Any = FakeReplica(0, 2)
    fast: Any = FakeReplica(1, 2)
    for _ in range(20):
        work.hand_out(slow, 1)
        work.hand_out(fast, 1)
        work.finish(fast, [(number, None) for number in sorted(fast.open)])  # type: ignore[misc]
    assert len(slow.sent) == 2 and len(fast.sent) == 10


def test_a_prompt_that_kills_every_replica_ends_the_run() -> None:
    work = _replicas._Work([GenerationJob(tokens([0] * 77), 1, None)], [[0]], 1)
    replica: Any = FakeReplica(0, 4)
    with pytest.raises(PrerequisiteError, match="died 3 times with the same prompt of 77 tokens"):
        for _ in range(3):
            work.hand_out(replica, 1)
            work.take_back(replica)


def test_gpus_are_divided_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from patheval import _cpu_environment

    assert _replicas._devices(2, 1) == []
    monkeypatch.setattr(_cpu_environment, "is_cpu", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-ab,5,7,9")
    assert _replicas._devices(2, 2) == ["3,GPU-ab", "5,7"]
    with pytest.raises(UnsupportedError, match=r"takes 6 GPUs .* there are 5.*parallel_size=2"):
        _replicas._devices(3, 2)


def test_a_cluster_without_ray_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PrerequisiteError, match=r"RAY_ADDRESS is 10\.0\.0\.1:6379"):
        _replicas._launcher(2, 1)


def test_ray_places_replicas_that_connect_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in for Ray that runs the remote function in a thread."""
    received = []
    monkeypatch.setattr(
        _replicas,
        "serve",
        lambda connection: received.append(connection.recv()) or connection.send(1),
    )
    options = {}

    class Remote:
        def __init__(self, function: Any) -> None:
            self._function = function

        def remote(self, *args: Any) -> threading.Thread:
            thread = threading.Thread(target=self._function, args=args)
            thread.start()
            return thread

    ray: Any = ModuleType("ray")
    ray.init = lambda **own: options.update(own)
    ray.cluster_resources = lambda: {"CPU": 2.0}
    ray.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    ray.remote = lambda **own: (options.update(own), Remote)[1]
    ray.get = lambda task, timeout: task.join(timeout)
    ray.exceptions = SimpleNamespace(GetTimeoutError=TimeoutError, RayError=OSError)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    launcher = _replicas._launcher(2, 2)
    assert options == {
        "address": "auto", "ignore_reinit_error": True, "log_to_driver": True,
        "num_gpus": 0, "max_retries": 0,
    }  # fmt: skip
    connection, task = launcher.launch(0)
    connection.send("hello")
    assert connection.recv() == 1 and received == ["hello"]
    assert task.wait() == "ended"
