"""The committed results of the zoo, made on a GPU, come out again on this machine.

A slice of them: prompts of up to 1k tokens, the first few of each task. The same prompts are asked,
in float32 where the committed run had bf16, and their mean score has to be that of the committed
answers within one standard error.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from answering_lm import evaluate

from patheval.checkpoint.reader import open_checkpoint
from patheval.leaderboard import states
from patheval.leaderboard.states import StateRow
from patheval.model_adapters.path_vllm import PathLM
from patheval.reference_model import ReferenceModel
from patheval.samplefile import find_samples, read_samples
from patheval.tokenization import load_tokenizer
from patheval.zoo import CHECKPOINTS, resolve
from patheval.zoo.recipes import LONG_CONTEXT
from patheval.zoo.state_tracking.recipes import TESTS, find

RESULTS = Path(__file__).parents[2] / "leaderboards" / "results"
# Task and number of prompts; those of 1k take about three times as long each.
SLICE = {
    "path_phonebook_512": 12,
    "path_phonebook_1k": 6,
    "path_ruler_niah_single_1_512": 6,
    "path_ruler_niah_single_1_1k": 3,
}
# Sequences of 512 symbols of each flip-flop test.
NUM_SEQUENCES = 24

pytestmark = pytest.mark.slow


def committed_samples(model: str, task: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The newest committed results of a model on a task, and their samples in order."""
    found = []
    for path in RESULTS.rglob("results_*.json"):
        results = json.loads(path.read_text())
        if task in results["results"] and results["config"]["sweep"]["name"] == model:
            found.append((path.stem.removeprefix("results_"), path, results))
    assert found, f"no results of zoo:{model} on {task} are committed under {RESULTS}"
    _, path, results = max(found, key=lambda item: item[0])
    own = find_samples(path, task)
    assert own is not None, f"the samples of {task} beside {path} are not committed"
    samples = list(read_samples(own))
    return results, sorted(samples, key=lambda sample: sample["doc_id"])


@pytest.fixture(scope="module", params=list(LONG_CONTEXT))
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, PathLM]]:
    """One model after another, served by vLLM."""
    lm = PathLM.create_from_arg_obj(
        {"pretrained": f"zoo:{request.param}", "dtype": "float32", "max_length": 2048}
    )
    yield request.param, lm
    lm.close()


@pytest.mark.parametrize("task", SLICE)
def test_long_context_scores_come_out_again(task: str, engine: tuple[str, PathLM]) -> None:
    model, lm = engine
    results, samples = committed_samples(model, task)
    num_samples = results["n-samples"][task]["original"]
    again = evaluate(
        task, lm, limit=SLICE[task], pretrained=f"zoo:{model}", num_samples=num_samples
    )
    (metric,) = {entry["metric"] for entry in results["configs"][task]["metric_list"]} & {
        "exact_match",
        "score",
    }
    own = sorted(again["samples"][task], key=lambda sample: sample["doc_id"])
    committed = samples[: SLICE[task]]
    assert [s["prompt_hash"] for s in own] == [s["prompt_hash"] for s in committed]
    scores = [sample[metric] for sample in committed]
    difference = fmean(sample[metric] for sample in own) - fmean(scores)
    assert abs(difference) <= stdev(scores) / math.sqrt(len(scores))


def shipped_states() -> list[StateRow]:
    return [row for row in states.read(RESULTS / states.STATES) if row.zoo is not None]


def test_errors_of_the_state_tracking_family_are_committed() -> None:
    rows = shipped_states()
    assert {row.zoo for row in rows} == {p.name for p in CHECKPOINTS.iterdir() if p.is_dir()} - {
        *LONG_CONTEXT
    }
    assert {(row.attention, row.task) for row in rows if row.family == "fflm"} == {
        (attention, f"path_fflm_{test}")
        for attention in LONG_CONTEXT
        for test in ("iid", "sparse", "dense")
    }


def test_committed_steps_are_told_beside_those_of_the_recipes() -> None:
    for row in states.read(RESULTS / states.STATES):
        (recipe,) = find(row.family, [row.attention], row.num_layers)
        assert row.steps <= row.planned_steps == recipe.num_steps


@pytest.mark.parametrize("row", shipped_states(), ids=lambda row: f"{row.zoo}-{row.task}")
def test_state_tracking_errors_come_out_again(row: StateRow) -> None:
    folder = resolve(f"zoo:{row.zoo}")
    model = ReferenceModel(open_checkpoint(folder))
    (source,) = [own for own in TESTS[row.family] if f"path_{own.task}" == row.task]
    docs = source.test_split(tokenizer=folder)["test"]
    tokenizer = load_tokenizer(folder)
    wrong = labels = 0
    for index in range(NUM_SEQUENCES):
        doc = docs.make(index)
        ids = tokenizer(doc["text"])["input_ids"]
        best = model.logits(model.prefill(ids)[0]).argmax(dim=-1).tolist()
        named = tokenizer.convert_ids_to_tokens([best[1 + p] for p in doc["positions"]])
        wrong += sum(a != b for a, b in zip(named, doc["targets"], strict=True))
        labels += len(doc["targets"])
    # The published error is of many more sequences, of which these are the first: two standard
    # errors of so few, as if all labels of a sequence were right or wrong together.
    stderr = math.sqrt(row.error * (1 - row.error) / NUM_SEQUENCES)
    assert abs(wrong / labels - row.error) <= 2 * stderr
