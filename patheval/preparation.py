"""Building the samples of tasks before a model is loaded, in several processes."""

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from patheval._autoload import task_folder
from patheval.errors import PrerequisiteError

_CHUNK_SAMPLES = 25

# The samples of each planned task; processes that are forked later find them here.
_docs: dict[str, Any] = {}


class Plan(NamedTuple):
    """What there is to build.

    Attributes:
        chunks: The samples that are not in the cache yet.
        num_tasks: Tasks whose samples are built on demand.
        num_samples: Samples of these tasks, with those in the cache.
    """

    chunks: list["Chunk"]
    num_tasks: int
    num_samples: int


class Chunk(NamedTuple):
    """Samples of one task that one process builds in one go.

    Attributes:
        task: Name of the task.
        indices: Indices of the samples.
    """

    task: str
    indices: tuple[int, ...]


def plan(names: Sequence[str], metadata: Mapping[str, Any], limit: int | None) -> Plan:
    """Loads tasks, which fetches and checks their sources, and lists the samples to build.

    Args:
        names: Tasks, groups and tags; patterns such as `path_ruler_*` are allowed.
        metadata: What the tasks read, `tokenizer` among it.
        limit: First samples of each task to build; None for all.

    Returns:
        The samples of all tasks that build them on demand.

    Raises:
        PathEvalError: A task cannot be made: a source or the tokenizer is missing, for instance.
        KeyError: There is no task of a name.
    """
    # Each process has one core's share of the work, and forks find no threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    plan = Plan([], 0, 0)
    for name, docs in _load(names, metadata).items():
        if not hasattr(docs, "make"):
            continue
        _docs[name] = docs
        stop = len(docs) if limit is None else min(limit, len(docs))
        missing = [index for index in range(stop) if not docs.is_stored(index)]
        chunks = [
            Chunk(name, tuple(missing[start : start + _CHUNK_SAMPLES]))
            for start in range(0, len(missing), _CHUNK_SAMPLES)
        ]
        plan = Plan([*plan.chunks, *chunks], plan.num_tasks + 1, plan.num_samples + stop)
    return plan


def build(chunks: Sequence[Chunk], num_workers: int) -> Iterator[Chunk]:
    """Builds planned samples and stores them in the cache.

    Args:
        chunks: Those of a plan.
        num_workers: Processes, which start at once; with 1, all happens in this one.

    Returns:
        Each chunk once it is complete.

    Raises:
        PathEvalError: A sample cannot be built or stored, or a process was killed.
    """
    if num_workers == 1:
        return map(_build, chunks)
    fork = multiprocessing.get_context("fork")
    executor = ProcessPoolExecutor(num_workers, fork, _end_with, (os.getpid(),))
    return _collect(executor, [executor.submit(_build, chunk) for chunk in chunks])


def _collect(executor: ProcessPoolExecutor, futures: list[Future[Chunk]]) -> Iterator[Chunk]:
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise PrerequisiteError(
            "a process that builds samples was killed, as happens when memory runs out; run the "
            "same command with fewer --workers, and it goes on where it was"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _end_with(parent: int) -> None:
    """Lets this process end soon after its parent, which it would else wait for if killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _build(chunk: Chunk) -> Chunk:
    for index in chunk.indices:
        _docs[chunk.task].make(index)
    return chunk


def _load(names: Sequence[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    # It tells at each task that metadata can be given, which they were.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(
        include_path=task_folder(), include_defaults=False, metadata=dict(metadata)
    )
    wanted = []
    for name in names:
        matches = manager.match_tasks([name])
        if not matches:
            raise KeyError(name)
        wanted += matches
    tasks = manager.load(list(dict.fromkeys(wanted)))["tasks"]
    return {name: task.dataset[task.config.test_split] for name, task in sorted(tasks.items())}
