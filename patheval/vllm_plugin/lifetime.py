"""No process of an engine outlives the one that started it.

vLLM's engine process waits for requests for ever when its front end was killed, and keeps the GPU's
memory, so that the same command could not be run again.
"""

import multiprocessing
import os
import threading
import time

import psutil

_THREAD_NAME = "patheval-parent-watch"
_INTERVAL_S = 0.5


def end_with_parent() -> None:
    """End this process soon after the one that started it by multiprocessing, if one did."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        end_with(parent.pid)


def end_with(pid: int) -> None:
    """End this process, without cleaning up, soon after another has ended in whatever way.

    Calling it again changes nothing.

    Args:
        pid: The other process, on this machine.
    """
    if all(thread.name != _THREAD_NAME for thread in threading.enumerate()):
        threading.Thread(target=_watch, args=(pid,), name=_THREAD_NAME, daemon=True).start()


def _watch(pid: int) -> None:
    # Not by a pipe or by join: other processes may hold the pipe's other end open.
    try:
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_INTERVAL_S)
    except psutil.NoSuchProcess:
        pass
    os._exit(1)
