"""The groups that run the paper's tables."""

import shutil
from pathlib import Path

import lm_eval.tasks
import pytest
from answering_lm import AnsweringLM, evaluate, manager
from datasets import Dataset, DatasetDict
from lm_eval import evaluator
from lm_eval.tasks import TaskManager
from lm_eval.utils import apply_template
from own_sources import write_sources

from patheval._autoload import task_folder

OURS = ["path_table1", "path_table3", "path_table7"]
FOLDERS = ["lambada", "piqa", "hellaswag", "winogrande", "arc", "wikitext", "mmlu", "gpqa", "gsm8k",
           "minerva_math", "benchmarks", "humaneval", "mbpp"]  # fmt: skip

# Two questions of each data set, in its own fields; the second answer is the right one.
DATA = {
    "EleutherAI/lambada_openai": {"text": ["The sky is blue", "The grass is green"]},
    "baber/piqa": {
        "goal": ["G1", "G2"],
        "sol1": ["no", "no"],
        "sol2": ["yes", "yes"],
        "label": [1, 1],
    },
    "Rowan/hellaswag": {
        "activity_label": ["A", "A"],
        "ctx_a": ["One", "Two"],
        "ctx_b": ["he", "she"],
        "endings": [["no", "yes", "no", "no"]] * 2,
        "label": ["1", "1"],
    },
    "allenai/winogrande": {
        "sentence": ["A _ is here.", "B _ is there."],
        "option1": ["no", "no"],
        "option2": ["yes", "yes"],
        "answer": ["2", "2"],
    },
    "allenai/ai2_arc": {
        "question": ["Q1?", "Q2?"],
        "choices": [{"text": ["no", "yes"], "label": ["A", "B"]}] * 2,
        "answerKey": ["B", "B"],
    },
}


def lm_eval_manager():
    """Reads our tasks and, of lm-eval's thousands, only the folders that the tables need."""
    root = Path(lm_eval.tasks.__file__).parent
    folders = [task_folder(), *(str(root / name) for name in FOLDERS)]
    return TaskManager(include_path=folders, include_defaults=False)


def test_every_name_is_listed():
    names = set(manager().match_tasks(["path_table*"]))
    assert names == {*OURS, "path_table2", "path_table2_accuracy", "path_table5"}


def members(listed, name):
    for member in listed.task_index[name].cfg.get("task", []):
        member = member if isinstance(member, str) else member.get("task") or member["group"]
        yield member
        if listed.task_index[member].kind.name == "GROUP" and member.startswith("path_"):
            yield from members(listed, member)


@pytest.mark.parametrize("name", OURS)
def test_our_own_members_exist(name):
    listed = manager()
    assert set(members(listed, name)) <= set(listed.all_tasks)


@pytest.mark.parametrize("name", ["path_table2", "path_table5"])
def test_members_of_lm_eval_exist(name):
    listed = lm_eval_manager()
    assert set(members(listed, name)) <= set(listed.all_tasks)


def test_mbpp_of_table_5_is_the_sanitized_set_with_all_its_tests():
    cfg = manager().task_index["path_table5"].cfg["task"]
    [mbpp] = [member for member in cfg if "mbpp_instruct" in str(member)]
    assert mbpp["dataset_name"] == "sanitized"
    # The sanitized set calls the question `prompt`, lm-eval's examples call it `text`.
    row = {
        "prompt": "Add two numbers.",
        "test_list": ["assert f(1, 2) == 3", "assert f(0, 0) == 0"],
    }
    example = {"text": "Say hello.", "code": "print('hello')", "test_list": ["assert True"]}
    assert apply_template(mbpp["doc_to_text"], row) == (
        "You are an expert Python programmer, and here is your task:\nAdd two numbers.\nYour code "
        "should pass these tests:\nassert f(1, 2) == 3\nassert f(0, 0) == 0"
    )
    assert "task:\nSay hello.\n" in apply_template(mbpp["doc_to_text"], example)
    assert apply_template(mbpp["doc_to_target"], row) == "assert f(1, 2) == 3\nassert f(0, 0) == 0"
    assert apply_template(mbpp["doc_to_target"], example | {"is_fewshot": True}) == (
        "print('hello')\n```"
    )


def test_table_1_has_the_sizes_of_the_paper(bpe_folder):
    lm = AnsweringLM(score=lambda context, continuation: (-1.0, True))
    results = evaluate("path_table1", lm, limit=1, tokenizer=bpe_folder)
    sizes = {name: counts["original"] for name, counts in results["n-samples"].items()}
    assert sizes == {"path_fflm_iid": 16_000, "path_fflm_sparse": 160_000, "path_fflm_dense": 4_000}


def test_table_3_has_the_samples_and_lengths_of_the_paper():
    listed = manager()
    tasks = [
        name
        for name in members(listed, "path_table3")
        if listed.task_index[name].kind.name != "GROUP"
    ]
    assert len(tasks) == 3 * 13 + 4 * 5 + 3 + 3 * 11
    assert {f"path_babilong_qa{n}_{size}" for n in range(1, 6) for size in ("0k", "16k")} <= set(
        tasks
    )
    assert {f"path_phonebook_{size}" for size in ("2k", "4k", "8k")} <= set(tasks)
    assert not any("passage" in name for name in tasks)


class SampleLM(AnsweringLM):
    """Answers from the samples, or not at all."""

    def __init__(self, knows):
        super().__init__()
        self._knows = knows

    def generate_until(self, requests, disable_tqdm=False):
        return [self._answer(request.task_name, request.doc) for request in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        return [(-0.1, self._knows)] * len(requests)

    def _answer(self, task, doc):
        references = doc["references"]
        answers = references if "ruler" in task else references[:1]
        return ", ".join(answers) if self._knows else ""


@pytest.fixture
def all_sources(data_folder, tmp_path):
    """A data folder with small data of our own for every source of our tables."""
    shutil.copytree(Path(data_folder) / "ruler", tmp_path / "ruler")
    write_sources(tmp_path, sizes=("0k", "4k", "8k", "16k"))
    return {"data_dir": str(tmp_path), "own_data": True}


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_oracle_has_full_marks_in_every_task_of_a_table_and_silence_none(
    english_folder, all_sources, tmp_path, monkeypatch, name
):
    # The second run finds the samples of the first.
    monkeypatch.setenv("PATHEVAL_CACHE", str(tmp_path / "cache"))
    for knows in (True, False):
        results = evaluate(name, SampleLM(knows), limit=1, tokenizer=english_folder, **all_sources)
        names = set(members(manager(), name)) & set(results["configs"])
        assert len(names) == {"path_table1": 3, "path_table3": 95, "path_table7": 33}[name]
        for task in names:
            scores = results["results"][task]
            [metric] = {"acc", "score", "exact_match"} & {key.partition(",")[0] for key in scores}
            assert scores[f"{metric},none"] == pytest.approx(float(knows), abs=1e-8), task


@pytest.fixture
def small_data(monkeypatch):
    def load(path, name=None, **kwargs):
        rows = Dataset.from_dict(DATA[path])
        return DatasetDict({"train": rows, "validation": rows, "test": rows})

    monkeypatch.setattr("datasets.load_dataset", load)


def score_of(right):
    """Prefers the right answers, or the others, of every question."""

    def score(context, continuation):
        is_right = any(word in f"{context}{continuation}" for word in ("yes", "blue", "green"))
        return (-1.0 if is_right is right else -5.0), is_right is right

    return score


def test_average_of_table_2_is_the_mean_of_the_accuracies_it_prints(small_data):
    tasks = lm_eval_manager().load(["path_table2_accuracy"])
    results = evaluator.evaluate(AnsweringLM(score=score_of(True)), tasks, bootstrap_iters=0)
    printed = {
        "lambada_openai": {"perplexity", "acc"}, "piqa": {"acc"}, "hellaswag": {"acc_norm"},
        "winogrande": {"acc"}, "arc_easy": {"acc"}, "arc_challenge": {"acc_norm"},
    }  # fmt: skip
    for name, metrics in printed.items():
        scores = results["results"][name]
        names = {key.partition(",")[0] for key in scores if "," in key and "_stderr" not in key}
        assert names == metrics | {"score"}
        [accuracy] = metrics - {"perplexity"}
        assert scores["score,none"] == scores[f"{accuracy},none"] == 1
        assert results["n-shot"][name] == 0
    assert results["groups"]["path_table2_accuracy"]["score,none"] == 1

    tasks = lm_eval_manager().load(["path_table2_accuracy"])
    results = evaluator.evaluate(AnsweringLM(score=score_of(False)), tasks, bootstrap_iters=0)
    assert {results["results"][name]["score,none"] for name in printed} == {0}

    def only_lambada(context, continuation):
        right = score_of("yes" not in context + continuation)
        return right(context, continuation)

    tasks = lm_eval_manager().load(["path_table2_accuracy"])
    results = evaluator.evaluate(AnsweringLM(score=only_lambada), tasks, bootstrap_iters=0)
    scores = {name: results["results"][name]["score,none"] for name in printed}
    expected = sum(scores.values()) / 6
    assert results["groups"]["path_table2_accuracy"]["score,none"] == pytest.approx(expected)
    assert scores["lambada_openai"] == 1
    assert scores["piqa"] == 0
