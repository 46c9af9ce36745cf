"""The child's side of data parallelism: an engine that takes its jobs from a connection."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

from patheval import _cpu_environment
from patheval.errors import EngineError, PathEvalError

from ._jobs import Answers, Job


@dataclass(frozen=True)
class Start:
    """First message to a replica: the arguments of `vllm.LLM`."""

    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """Jobs of a run, by number."""

    run: int
    jobs: list[tuple[int, Job]]


@dataclass(frozen=True)
class Abort:
    """Drop everything."""


@dataclass(frozen=True)
class AskPeak:
    """Ask for `Peak`."""


@dataclass(frozen=True)
class Ready:
    """The engine is up.

    Attributes:
        facts: See `Executor.facts`.
        max_requests: Jobs that keep its batch full.
    """

    facts: dict[str, object]
    max_requests: int


@dataclass(frozen=True)
class Done:
    """Answers to jobs of a run."""

    run: int
    answers: Answers


@dataclass(frozen=True)
class Peak:
    """See `Executor.peak_gpu_memory_bytes`."""

    num_bytes: int | None


@dataclass(frozen=True)
class Failed:
    """An error that starting again would not mend.

    Attributes:
        run: The run that it ends; None if the engine cannot start.
    """

    run: int | None
    error: Exception


def serve(connection: Any) -> None:
    """Answers jobs until the other side goes away.

    Args:
        connection: A `multiprocessing.connection.Connection`.

    Raises:
        EngineError: vLLM's process has died; another replica can take the open jobs.
    """
    from ._engine import Engine

    try:
        start = connection.recv()
        try:
            engine = Engine(start.arguments)
        except (TypeError, ValueError, PathEvalError) as error:
            connection.send(Failed(None, _portable(error)))
            return
        connection.send(Ready(engine.facts(), engine.max_requests))
        _serve(connection, engine)
    except (EOFError, ConnectionError):
        return  # The run that asks has ended.


def _receive(connection: Any, inbox: SimpleQueue[Any]) -> None:
    """Take messages in at all times: both sides may have more to send than a socket holds."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        inbox.put(None)


def _serve(connection: Any, engine: Any) -> None:
    inbox: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    waiting: deque[tuple[int, Job]] = deque()
    run = 0
    while True:
        while (engine.is_idle and not waiting) or not inbox.empty():
            match inbox.get():
                case None:
                    return
                case Work(run=run, jobs=jobs):
                    waiting.extend(jobs)
                case Abort():
                    waiting.clear()
                    engine.abort()
                case AskPeak():
                    connection.send(Peak(engine.peak_gpu_memory_bytes()))
        try:
            while waiting and not engine.is_full:
                engine.submit(*waiting.popleft())
            answers = engine.step()
        except EngineError:
            raise  # This process is of no more use.
        except PathEvalError as error:
            waiting.clear()
            engine.abort()
            connection.send(Failed(run, _portable(error)))
            continue
        if answers:
            connection.send(Done(run, answers))


def _portable(error: Exception) -> Exception:
    """The error as one that can be pickled."""
    if isinstance(error, PathEvalError):
        return error
    return (TypeError if isinstance(error, TypeError) else ValueError)(str(error))


def main() -> None:
    """Serves the socket whose file descriptor is the program's argument."""
    from patheval.vllm_plugin.lifetime import end_with

    end_with(os.getppid())
    _cpu_environment.prepare()
    try:
        serve(Connection(int(sys.argv[1])))
    except EngineError:
        sys.exit(1)  # vLLM has said why, and the other side starts another replica.
