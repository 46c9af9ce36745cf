"""Faults below the adapter: scores that vLLM loses, and an engine's own process that is killed."""

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from resumed_run import requests

from patheval.errors import EngineError, UnsupportedError
from patheval.model_adapters._engine import Engine
from patheval.model_adapters._jobs import Scores, ScoringJob, tokens
from patheval.model_adapters.path_vllm import PathLM

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
PAIRS = [(f"{i} apples and {i * i} pears", f" {choice}") for i in range(60) for choice in "ab"]


class ForgetfulClient:
    """Stands for a `ScoringClient` whose runner loses the first scores of each request."""

    def __init__(self, num_lost: int) -> None:
        self._num_lost = num_lost
        self.added: list[tuple[str, bool]] = []
        self.finished: list[tuple[str, Any]] = []

    def add_scored(
        self, request_id: str, prompt: Any, rows: Any, targets: Any, *, read_prefix_cache: bool
    ) -> None:
        self.added.append((request_id, read_prefix_cache))
        scores = None if len(self.added) <= self._num_lost else (-np.ones(1), np.ones(1, bool))
        self.finished.append((request_id, scores))

    def take_scored(self) -> list[tuple[str, Any]]:
        finished, self.finished = self.finished, []
        return finished

    def abort(self) -> None:
        self.finished.clear()


def engine_with(client: ForgetfulClient) -> Engine:
    engine = Engine.__new__(Engine)
    vars(engine).update(
        _client=client,
        _engine=SimpleNamespace(step=lambda: [], abort_request=lambda ids: None),
        _vllm_version="0.0",
        _vocab_size=100,
        _reads_cache=True,
        _block_size=1,
        _max_tokens=1000,
        max_requests=4,
        _open={},
        _numbers={},
        _lost=set(),
        _serial=itertools.count(),
        _num_tokens=0,
    )
    return engine


JOB = ScoringJob(tokens([1, 2, 3]), np.array([1]), tokens([3]))


@pytest.mark.parametrize("num_lost", [0, 1, 2])
def test_scores_that_are_lost_are_computed_anew(num_lost: int) -> None:
    client = ForgetfulClient(num_lost)
    (answers,) = engine_with(client).run([JOB], [[0]])
    ((number, scores),) = answers
    assert isinstance(scores, Scores)
    assert number == 0 and scores.logprobs.tolist() == [-1.0]
    assert [reads for _, reads in client.added] == [True, False, False][: num_lost + 1]


def test_scores_that_are_lost_again_and_again_end_the_run() -> None:
    with pytest.raises(UnsupportedError, match=r"vLLM 0\.0 twice handed out no scores"):
        list(engine_with(ForgetfulClient(100)).run([JOB], [[0]]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "fox"
    shutil.copytree(CHECKPOINTS / "fox-d64", folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    lm = PathLM(
        str(folder),
        dtype="float32",
        max_length=512,
        max_batch_size=2,
        max_num_batched_tokens=64,
        resume=str(tmp_path / "store"),
    )
    yield lm
    lm.close()


@pytest.mark.slow
def test_a_killed_engine_ends_the_run_and_keeps_the_answers(model: Any) -> None:
    core = model._engine._engine.engine_core
    (process,) = core.resources.engine_manager.processes
    answers = model._run
    num_answers = 0

    def run(*arguments: Any) -> Any:
        nonlocal num_answers
        for batch in answers(*arguments):
            yield batch
            num_answers += len(batch)
            if num_answers >= 10:
                os.kill(process.pid, signal.SIGKILL)

    model._run = run
    with pytest.raises(EngineError, match=r"has died.*run the same command again"):
        model.loglikelihood(requests("loglikelihood", PAIRS))
    model._run = answers
    with pytest.raises(EngineError, match="has died"):
        model.loglikelihood(requests("loglikelihood", PAIRS))
    # What it had answered is not asked again.
    model.loglikelihood(requests("loglikelihood", PAIRS[:0]))
    assert model._phases["loglikelihood"].num_resumed >= 10
