"""Several engines that share the work, each in a process of its own on its own GPUs.

Each is started once and stays for the whole run. Jobs are handed out as they are worked off, so
that no engine waits while another has a queue; an engine that dies is started again, and what it
had not answered is done anew.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, Listener, wait
from typing import Any

from patheval import _cpu_environment
from patheval.errors import PrerequisiteError, UnsupportedError

from ._jobs import Answers, AnswerStream, Job
from ._replica import Abort, AskPeak, Done, Failed, Peak, Ready, Start, Work, serve

# So often may engines die on the same prompt, or before they are up.
_MAX_DEATHS = 3
_EXIT_TIMEOUT_S = 20

_logger = logging.getLogger(__name__)


class Replicas:
    """An `Executor` of several engines.

    Where `RAY_ADDRESS` is set, Ray places them, on all machines of its cluster (the checkpoint's
    folder must exist on each); else they are processes on this machine.

    Args:
        arguments: Those of `vllm.LLM`, for each.
        num_replicas: Number of engines.
        check: Called each time that an engine is up; raises if it has loaded another model.

    Raises:
        TypeError: vLLM does not know an argument.
        ValueError: vLLM refuses the arguments.
        UnsupportedError: There are fewer GPUs than the engines take.
        PrerequisiteError: The engines die while they start, or Ray is not installed.
    """

    def __init__(
        self, arguments: Mapping[str, Any], num_replicas: int, check: Callable[[], None]
    ) -> None:
        gpus_each = int(arguments.get("tensor_parallel_size", 1)) * int(
            arguments.get("pipeline_parallel_size", 1)
        )
        launcher = _launcher(num_replicas, gpus_each)
        self._replicas = [_Replica(rank, launcher, arguments) for rank in range(num_replicas)]
        self._check = check
        self._run = 0
        # Also when the last reference goes, or Python ends.
        self._finalizer = weakref.finalize(self, _close, self._replicas)
        try:
            while not all(replica.ready for replica in self._replicas):
                for replica, message in self._messages():
                    if message is None:
                        replica.start_again()
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Sequence[Job], units: Sequence[Sequence[int]]) -> AnswerStream:
        """See `Executor.run`."""
        self._run += 1
        work = _Work(jobs, units, len(self._replicas))
        try:
            while work.num_open:
                for replica in self._replicas:
                    work.hand_out(replica, self._run)
                for replica, message in self._messages():
                    if message is None:
                        work.take_back(replica)
                        replica.start_again()
                    elif isinstance(message, Done) and message.run == self._run:
                        yield work.finish(replica, message.answers)
        finally:
            for replica in self._replicas:
                if replica.open:
                    replica.send(Abort())
                replica.open.clear()
                replica.backlog.clear()

    def facts(self) -> dict[str, object]:
        """See `Executor.facts`; all engines are alike."""
        ready = self._replicas[0].ready
        assert ready is not None
        return ready.facts

    def peak_gpu_memory_bytes(self) -> int | None:
        """See `Executor.peak_gpu_memory_bytes`; that of the engine with most."""
        asked = [replica for replica in self._replicas if replica.send(AskPeak())]
        peaks: list[int | None] = []
        while len(peaks) < len(asked):
            for replica, message in self._messages():
                if isinstance(message, Peak):
                    peaks.append(message.num_bytes)
                elif message is None:
                    asked = [other for other in asked if other is not replica]
                    replica.start_again()
        known = [peak for peak in peaks if peak is not None]
        return max(known, default=None)

    def close(self) -> None:
        """See `Executor.close`."""
        self._finalizer()

    def _messages(self) -> Iterator[tuple[_Replica, Any]]:
        """Wait for messages; None from a replica means that it is gone."""
        by_connection = {replica.connection: replica for replica in self._replicas}
        for connection in wait(list(by_connection)):
            replica = by_connection[connection]  # type: ignore[index]
            try:
                message = replica.connection.recv()
            except (EOFError, OSError):
                message = None
            if isinstance(message, Failed):
                if message.run in (None, self._run):
                    raise message.error
                continue  # a run that has ended: each replica may have met the same fault
            if isinstance(message, Ready):
                self._check()
                replica.ready = message
            yield replica, message


def _close(replicas: Sequence[_Replica]) -> None:
    for replica in replicas:
        replica.close()
    for replica in replicas:
        replica.process.wait()


class _Replica:
    """One engine's process, and what it has been given.

    Attributes:
        open: Jobs that it was sent and has not answered.
        backlog: The rest of its unit, which is still here.
        ready: What it said once it was up; None before.
    """

    def __init__(self, rank: int, launcher: _Launcher, arguments: Mapping[str, Any]) -> None:
        self.rank = rank
        self.open: set[int] = set()
        self.backlog: deque[int] = deque()
        self._launcher = launcher
        self._arguments = arguments
        self._num_failed_starts = 0
        self._start()

    def _start(self) -> None:
        self.ready: Ready | None = None
        self.connection: Connection
        self.process: _Process | _RayTask
        self.connection, self.process = self._launcher.launch(self.rank)
        self.send(Start(self._arguments))

    def send(self, message: object) -> bool:
        """Send a message, and tell whether it could be: a death shows when next received from."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def start_again(self) -> None:
        """Start a new process in the place of one that has died."""
        self.connection.close()
        status = self.process.wait()
        if self.ready is not None:
            self._num_failed_starts = 0
        else:
            self._num_failed_starts += 1
            if self._num_failed_starts == _MAX_DEATHS:
                raise PrerequisiteError(
                    f"replica {self.rank} of data_parallel_size died {_MAX_DEATHS} times while it "
                    f"started ({status}); its own error is above, or try data_parallel_size=1"
                )
        _logger.warning("replica %d died (%s); starting it again", self.rank, status)
        self._start()

    def close(self) -> None:
        """Let the process end."""
        self.connection.close()


@dataclass
class _Work:
    """The jobs of a run: where each is, and who gets what next."""

    jobs: Sequence[Job]
    units: Sequence[Sequence[int]]
    num_replicas: int
    num_open: int = 0
    _waiting: deque[Sequence[int]] = field(default_factory=deque)
    _open_cost: int = 0
    _deaths: Counter[int] = field(default_factory=Counter)
    _replicas: list[_Replica] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waiting.extend(self.units)
        self.num_open = sum(map(len, self.units))
        self._open_cost = sum(self._cost(number) for unit in self.units for number in unit)

    def hand_out(self, replica: _Replica, run: int) -> None:
        """Send a replica what keeps it busy, but no more than its share of what is left."""
        if replica not in self._replicas:
            self._replicas.append(replica)
        if replica.ready is None:
            return
        share = self._open_cost / self.num_replicas
        held = sum(map(self._cost, replica.open))
        sent: list[tuple[int, Job]] = []
        while len(replica.open) < replica.ready.max_requests and (held < share or not replica.open):
            if not replica.backlog and not self._refill(replica):
                break
            number = replica.backlog.popleft()
            replica.open.add(number)
            held += self._cost(number)
            sent.append((number, self.jobs[number]))
        if sent:
            replica.send(Work(run, sent))

    def finish(self, replica: _Replica, answers: Answers) -> Answers:
        """Count answers, and return those that no other replica gave before."""
        own = [(number, answer) for number, answer in answers if number in replica.open]
        for number, _ in own:
            replica.open.discard(number)
            self._open_cost -= self._cost(number)
        self.num_open -= len(own)
        return own

    def take_back(self, replica: _Replica) -> None:
        """Take the jobs of a replica that has died.

        Raises:
            PrerequisiteError: One of them was there each time that a replica died.
        """
        self._deaths.update(replica.open)
        lost = [*sorted(replica.open), *replica.backlog]
        replica.open.clear()
        replica.backlog.clear()
        if lost:
            self._waiting.appendleft(lost)
        if self._deaths and (worst := self._deaths.most_common(1)[0])[1] == _MAX_DEATHS:
            raise PrerequisiteError(
                f"replicas died {_MAX_DEATHS} times with the same prompt of "
                f"{len(self.jobs[worst[0]].prompt)} tokens; the engine's own error is above, and "
                "all answers so far are kept: mend it and run again"
            )

    def _refill(self, replica: _Replica) -> bool:
        """Give a replica the next unit, or half of what the slowest one has not started."""
        if self._waiting:
            replica.backlog.extend(self._waiting.popleft())
            return True
        slowest = max(self._replicas, key=lambda other: len(other.backlog))
        num_stolen = (len(slowest.backlog) + 1) // 2
        stolen = [slowest.backlog.pop() for _ in range(num_stolen)]
        replica.backlog.extend(reversed(stolen))
        return bool(stolen)

    def _cost(self, number: int) -> int:
        job = self.jobs[number]
        return len(job.prompt) + job.budget


class _Process:
    """A replica on this machine."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait(self) -> str:
        try:
            status = self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return f"exit status {status}"


class _RayTask:
    """A replica that Ray has placed."""

    def __init__(self, ray: Any, task: Any) -> None:
        self._ray = ray
        self._task = task

    def wait(self) -> str:
        try:
            self._ray.get(self._task, timeout=_EXIT_TIMEOUT_S)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.cancel(self._task, force=True)
            return "cancelled"
        except self._ray.exceptions.RayError as error:
            return str(error).partition("\n")[0]
        return "ended"


class _LocalLauncher:
    """Starts replicas as processes of this machine.

    Args:
        devices: For each replica, the value of CUDA_VISIBLE_DEVICES; empty on a CPU.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices

    def launch(self, rank: int) -> tuple[Connection, _Process]:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        if self._devices:
            environment["CUDA_VISIBLE_DEVICES"] = self._devices[rank]
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from {serve.__module__} import main; main()",
                str(theirs.fileno()),
            ],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),  # Standard output is for lm-eval's table.
        )
        theirs.close()
        return Connection(ours.detach()), _Process(process)


class _RayLauncher:
    """Starts replicas on the machines of a Ray cluster.

    Args:
        ray: The module, connected.
        gpus_each: GPUs of one replica.
    """

    def __init__(self, ray: Any, gpus_each: int) -> None:
        self._ray = ray
        self._host = ray.util.get_node_ip_address()
        self._key = secrets.token_bytes(32)
        # A replica that fails is started by us, with its jobs.
        self._serve = ray.remote(num_gpus=gpus_each, max_retries=0)(_serve_from_afar)

    def launch(self, rank: int) -> tuple[Connection, _RayTask]:
        with Listener((self._host, 0), authkey=self._key) as listener:
            task = self._serve.remote(listener.address, self._key)
            return listener.accept(), _RayTask(self._ray, task)


_Launcher = _LocalLauncher | _RayLauncher


def _launcher(num_replicas: int, gpus_each: int) -> _Launcher:
    if address := os.environ.get("RAY_ADDRESS"):
        try:
            ray = import_module("ray")
        except ImportError as error:
            raise PrerequisiteError(
                f"RAY_ADDRESS is {address} but Ray is not installed; run `pip install ray`, or "
                "unset it to use this machine alone"
            ) from error
        try:
            ray.init(address=address, ignore_reinit_error=True, log_to_driver=True)
        except (ConnectionError, ValueError) as error:
            raise PrerequisiteError(
                f"there is no Ray cluster at RAY_ADDRESS={address} ({error}); start one with `ray "
                "start --head`, or unset it to use this machine alone"
            ) from error
        gpus_each = 0 if _cpu_environment.is_cpu() else gpus_each
        num_gpus = int(ray.cluster_resources().get("GPU", 0))
        _check_gpus(num_replicas, gpus_each, num_gpus, "start Ray on more machines")
        return _RayLauncher(ray, gpus_each)
    return _LocalLauncher(_devices(num_replicas, gpus_each))


def _check_gpus(num_replicas: int, gpus_each: int, num_gpus: int, other_fix: str) -> None:
    if num_gpus < num_replicas * gpus_each:
        raise UnsupportedError(
            f"data_parallel_size={num_replicas} takes {num_replicas * gpus_each} GPUs at "
            f"{gpus_each} each, but there are {num_gpus}; pass data_parallel_size="
            f"{max(1, num_gpus // gpus_each)}, or {other_fix}"
        )


def _devices(num_replicas: int, gpus_each: int) -> list[str]:
    """GPUs of each replica; none on a CPU."""
    if _cpu_environment.is_cpu():
        return []
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = named.split(",") if named else list(map(str, range(torch.cuda.device_count())))
    _check_gpus(num_replicas, gpus_each, len(devices), "set RAY_ADDRESS to use other machines")
    return [
        ",".join(devices[rank * gpus_each : (rank + 1) * gpus_each]) for rank in range(num_replicas)
    ]


def _serve_from_afar(address: tuple[str, int], key: bytes) -> None:
    from multiprocessing.connection import Client

    _cpu_environment.prepare()
    with Client(address, authkey=key) as connection:
        serve(connection)
