"""Killing a front end frees what its engine holds."""

import subprocess
import sys
import time

import psutil

# vLLM starts its engine in the same way and has it call `register`.
FRONT = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
from patheval.vllm_plugin import register

context = multiprocessing.get_context("spawn")
pool = ProcessPoolExecutor(1, context, initializer=register)
print(pool.submit(os.getpid).result(), flush=True)
input()
"""


def has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_an_engine_process_ends_when_its_front_end_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FRONT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as front:
        assert front.stdout
        engine = psutil.Process(int(front.stdout.readline()))
        assert not has_ended(engine)
        front.kill()
    deadline = time.monotonic() + 30
    while not has_ended(engine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert has_ended(engine)
