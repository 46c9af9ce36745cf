"""Killing a front end frees what its engine holds."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

# vLLM starts its engine in the same way and has it call `register`.
FRONT = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from patheval.vllm_plugin import register

context = multiprocessing.get_context("spawn")
pool = ProcessPoolExecutor(1, context, initializer=register)
print(pool.submit(os.getpid).result(), flush=True)
if os.fork() == 0:  # Holds whatever pipes there are between the two.
    time.sleep(60)
    os._exit(0)
input()
"""


def has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def test_an_engine_process_ends_when_its_front_end_is_killed(
    request: pytest.FixtureRequest,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FRONT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as front:
        assert front.stdout
        engine = psutil.Process(int(front.stdout.readline()))
        assert not has_ended(engine)
        front.kill()
    request.addfinalizer(lambda: kill_group(front.pid))
    deadline = time.monotonic() + 30
    while not has_ended(engine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert has_ended(engine)
