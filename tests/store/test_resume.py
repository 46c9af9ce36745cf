"""Runs that are killed, or run at once, or under one store with another model."""

import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import resumed_run
from byte_tokenizer import byte_tokenizer
from resumed_run import requests, run
from safetensors.torch import load_file, save_file

from patheval.errors import PrerequisiteError, UnsupportedError
from patheval.model_adapters.path_ref import PathRefLM
from patheval.store import default_folder

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
# Its children start with everything imported, and no thread has run in it yet.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["resumed_run"])
NUM_REQUESTS = 40
# `PATHEVAL_KILLS=20 PATHEVAL_KILLED_MODEL=path pytest tests/store` is the long form.
NUM_KILLS = int(os.environ.get("PATHEVAL_KILLS", "3"))
MODEL = os.environ.get("PATHEVAL_KILLED_MODEL", "path-ref")
# Prompts at the engine at once: with max_num_seqs=4, four more wait.
NUM_IN_FLIGHT = {"path": 8, "path-ref": 1}[MODEL]


def make_folder(folder: Path, name: str, **tokenizer: Any) -> Path:
    shutil.copytree(CHECKPOINTS / name, folder)
    byte_tokenizer(**tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("checkpoints") / "path", "path-d64")


def build(folder: Path, store: Path | str, **arguments: Any) -> PathRefLM:
    defaults = {"max_length": 100, "overlength": "truncate", "resume": str(store)}
    lm: PathRefLM = PathRefLM.create_from_arg_obj(
        {"pretrained": str(folder), **defaults, **arguments}, {"batch_size": 1, "device": "cpu"}
    )
    return lm


class Run:
    """A run in a process of its own."""

    def __init__(self, folder: Path, store: Path | str, log: Path, *, model: str = MODEL) -> None:
        self._results = log.with_suffix(".json")
        self._results.unlink(missing_ok=True)
        arguments = (model, str(folder), str(store), str(log), NUM_REQUESTS, str(self._results))
        self.process = PROCESSES.Process(target=resumed_run.main, args=arguments)
        self.process.start()

    def finish(self) -> Any:
        self.process.join(300)
        assert self.process.exitcode == 0
        return json.loads(self._results.read_text())


def num_answers(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def assert_same(got: Any, expected: Any) -> None:
    """To the last bit; but vLLM's sums depend, in their last bits, on what else is in a batch."""
    if MODEL == "path-ref" or not isinstance(expected, float | list | dict):
        assert got == expected
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, rel=2**-23)
    else:
        assert len(got) == len(expected)
        places = expected if isinstance(expected, dict) else range(len(expected))
        for place in places:
            assert_same(got[place], expected[place])


@pytest.fixture(scope="module")
def uninterrupted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, int]:
    """Results of a run without a store, and how many answers it took."""
    log = tmp_path_factory.mktemp("whole") / "log"
    return Run(folder, "off", log).finish(), num_answers(log)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(
    folder: Path, uninterrupted: tuple[Any, int], tmp_path: Path
) -> None:
    expected, total = uninterrupted
    rng = random.Random(int(os.environ.get("PATHEVAL_KILL_SEED", "0")))
    log, store = tmp_path / "log", tmp_path / "store"
    # Not among the last answers, lest a run ends before it is killed.
    moments = sorted(rng.randrange(total * 9 // 10) for _ in range(NUM_KILLS))
    num_killed = 0
    for moment in moments:
        process = Run(folder, store, log).process
        while num_answers(log) < moment and process.is_alive():
            time.sleep(0.001)
        time.sleep(rng.random() * 0.01)
        process.kill()
        process.join()
        num_killed += process.exitcode == -signal.SIGKILL
    assert num_killed > NUM_KILLS // 2
    resumed = Run(folder, store, log).finish()
    assert_same(resumed, expected)
    # A choice that was not finished needs the rows that its question's first prompt scores for it.
    assert total <= num_answers(log) <= total + NUM_KILLS * (NUM_IN_FLIGHT + 1)
    # Now there is nothing left to do.
    before = num_answers(log)
    assert Run(folder, store, log).finish() == resumed
    assert num_answers(log) == before


@pytest.mark.slow
def test_what_vllm_answered_serves_the_next_process(folder: Path, tmp_path: Path) -> None:
    """vLLM gives each process environment variables of its own, which must not tell them apart."""
    log, store = tmp_path / "log", tmp_path / "store"
    answers = Run(folder, store, log, model="path").finish()
    before = num_answers(log)
    assert before > 0
    assert Run(folder, store, log, model="path").finish() == answers
    assert num_answers(log) == before


@pytest.mark.slow
def test_two_runs_may_share_a_store_at_once(
    folder: Path, uninterrupted: tuple[Any, int], tmp_path: Path
) -> None:
    runs = [Run(folder, tmp_path / "store", tmp_path / f"{i}.log") for i in range(2)]
    first, second = (run.finish() for run in runs)
    assert first == second == uninterrupted[0]


def change_one_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][0, 0] += 0.5
    save_file(tensors, folder / "model.safetensors")


def change_config(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"norm_eps": 0.1}))


def change_eos(folder: Path) -> None:
    byte_tokenizer(num_extra=1).save_pretrained(folder)


SWAPS: dict[str, tuple[Callable[[Path], None] | None, dict[str, Any]]] = {
    "weights": (change_one_weight, {}),
    "config": (change_config, {}),
    "tokenizer": (change_eos, {}),
    "dtype": (None, {"dtype": "float64"}),
    "half": (None, {"dtype": "bfloat16"}),
    "max_length": (None, {"max_length": 90}),
    "overlength": (None, {"overlength": "skip"}),
}


def test_no_answer_is_served_to_another_model(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run(build(folder, store), 3)
    for name, (change, arguments) in SWAPS.items():
        other = folder
        if change:
            other = tmp_path / name
            shutil.copytree(folder, other)
            change(other)
        lm = build(other, store, **arguments)
        got = run(lm, 3)
        assert lm.get_model_info()["num_answers_resumed"] == 0, name
        assert got == run(build(other, "off", **arguments), 3), name
        again = build(other, store, **arguments)
        assert run(again, 3) == got, name
        info = again.get_model_info()
        asked = info["num_prompts"]
        assert info["num_answers_resumed"] == asked and asked > 0, name
    # The first model's own are still there, in whatever folder the checkpoint lies.
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    again = build(moved, store)
    run(again, 3)
    assert again.get_model_info()["num_answers_resumed"] == again.get_model_info()["num_prompts"]


def test_no_answer_is_served_to_another_request(folder: Path, tmp_path: Path) -> None:
    """Another task version, chat template, few-shot prefix or setting is another request."""
    settings = {"until": ["\n"], "max_gen_toks": 5}
    generations: list[tuple[str, dict[str, Any]]] = [
        ("one", settings),
        ("one ", settings),
        ("example\n\none", settings),
        ("<s>[user]one[assistant]", settings),
        ("one", settings | {"max_gen_toks": 6}),
        ("one", settings | {"until": ["\n", "e"]}),
    ]
    pairs = [("a", "bc"), ("ab", "c"), ("a", "b"), ("a", "bcd"), ("", "abc")]
    stored = build(folder, tmp_path / "store")
    fresh = build(folder, "off")
    for generation in generations:
        own = requests("generate_until", [generation])
        assert stored.generate_until(own) == fresh.generate_until(own)
    for pair in pairs:
        own = requests("loglikelihood", [pair])
        assert stored.loglikelihood(own) == fresh.loglikelihood(own)
    assert stored.get_model_info()["num_answers_resumed"] == 0
    thinking = build(folder, tmp_path / "store", think_end_token="</think>")
    thinking.generate_until(requests("generate_until", generations[:1]))
    assert thinking.get_model_info()["num_answers_resumed"] == 0


def test_equal_requests_are_counted_apart(folder: Path, tmp_path: Path) -> None:
    lm = build(folder, tmp_path / "store")
    own = [("one", {"until": [], "max_gen_toks": 4})]
    lm.generate_until(requests("generate_until", own * 2))
    lm.generate_until(requests("generate_until", own * 3))
    assert lm.get_model_info()["num_answers_resumed"] == 2


def test_an_edit_of_the_sources_is_another_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = build(folder, "off")
    before = lm._identity()
    from patheval.model_adapters import _checkpoint_lm

    monkeypatch.setattr(_checkpoint_lm, "code_digest", lambda: "other")
    assert lm._identity() != before


@pytest.mark.parametrize(
    ("argument", "variable", "place"),
    [
        (None, None, "xdg/patheval/answers"),
        (None, "named", "named"),
        ("given", "named", "given"),
        (True, None, "xdg/patheval/answers"),
        (None, "off", None),
        ("off", "named", None),
        (False, None, None),
    ],
)
def test_where_answers_are_kept(
    argument: Any,
    variable: str | None,
    place: str | None,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("PATHEVAL_CACHE", raising=False)
    if variable is None:
        monkeypatch.delenv("PATHEVAL_RESUME", raising=False)
    else:
        monkeypatch.setenv("PATHEVAL_RESUME", variable)
    lm = PathRefLM.create_from_arg_obj({"pretrained": str(folder), "resume": argument}, {})
    lm.loglikelihood(requests("loglikelihood", [("a", "b")]))
    files = {path.parent.relative_to(tmp_path) for path in tmp_path.rglob("*.sqlite3")}
    assert files == ({Path(place)} if place else set())


@pytest.mark.parametrize("resume", [0, 5, "", "none", "no", "on"])
def test_a_resume_that_is_no_folder_is_refused(resume: Any, folder: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"resume is {resume!r}; pass a folder"):
        build(folder, "off", resume=resume)


def test_a_store_that_cannot_be_written_shows_before_the_model_is_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for a folder of another user
    with pytest.raises(PrerequisiteError, match=r"read-only, or another user's.*resume=off"):
        build(tmp_path / "no checkpoint", tmp_path)
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    with pytest.raises(PrerequisiteError, match=r"Not a directory|File exists"):
        build(tmp_path / "no checkpoint", tmp_path / "file" / "store")


@pytest.mark.parametrize(("cache", "place"), [("off", None), ("named", "named/answers")])
def test_answers_are_kept_in_patheval_s_cache(
    cache: str, place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATHEVAL_CACHE", cache if cache == "off" else str(tmp_path / cache))
    assert default_folder() == (tmp_path / place if place else None)


def test_lm_evals_request_cache_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lm_eval.caching.cache
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(lm_eval.caching.cache, "PATH", str(tmp_path))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "docs.jsonl").write_text(json.dumps({"q": "a", "a": "b"}) + "\n")
    (tmp_path / "tasks" / "tiny.yaml").write_text(
        f"""
task: tiny
dataset_path: json
dataset_kwargs:
  data_files: {{test: {tmp_path / "docs.jsonl"}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{max_gen_toks: 2, until: ["x"]}}
metric_list: [{{metric: exact_match}}]
"""
    )
    manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    options: dict[str, Any] = {"tasks": ["tiny"], "task_manager": manager, "bootstrap_iters": 0}
    results = simple_evaluate(model=build(folder, "off"), **options)
    assert "exact_match,none" in results["results"]["tiny"]
    with pytest.raises(UnsupportedError, match="--cache_requests"):
        simple_evaluate(model=build(folder, "off"), cache_requests=True, **options)


def test_generations_that_differ_in_anything_differ_in_their_key() -> None:
    """The key must be told about every field that `Generation` may get."""
    from patheval.model_adapters._answering import Generation

    assert [field.name for field in dataclasses.fields(Generation)] == [
        "prompt",
        "max_gen_toks",
        "until",
        "sampling",
        "repeat",
    ]
