"""No process of an engine outlives the one that started it.

vLLM's engine process waits for requests for ever when its front end was killed, and keeps the GPU's
memory, so that the same command could not be run again.
"""

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess

_THREAD_NAME = "patheval-parent-watch"


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, in whatever way.

    Does nothing in a process that multiprocessing has not started, nor when called again.
    """
    parent = multiprocessing.parent_process()
    is_watched = any(thread.name == _THREAD_NAME for thread in threading.enumerate())
    if parent is not None and not is_watched:
        threading.Thread(target=_watch, args=(parent,), name=_THREAD_NAME, daemon=True).start()


def _watch(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
