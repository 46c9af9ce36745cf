"""The tasks as lm-eval finds, builds, runs and scores them."""

import re
from collections import Counter
from importlib.resources import files

import pytest
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from patheval.tasks.generation import LazyDocs
from patheval.tasks.phonebook import generate as phonebook
from patheval.tasks.ruler import cwe, fwe, niah, vt

TASK_FOLDER = str(files("patheval.tasks"))
RULER_LABELS = ["512", "1k", "2k", "4k", "8k", "16k", "32k", "64k"]
BENCHMARKS = {
    "path_phonebook": (["256", "512", "1k", "2k", "4k", "8k"], phonebook.MAX_GEN_TOKS),
    "path_ruler_niah_single_1": (RULER_LABELS, niah.MAX_GEN_TOKS),
    "path_ruler_niah_multikey_2": (RULER_LABELS, niah.MAX_GEN_TOKS),
    "path_ruler_niah_multikey_3": (RULER_LABELS, niah.MAX_GEN_TOKS),
    "path_ruler_vt": (RULER_LABELS, vt.MAX_GEN_TOKS),
    "path_ruler_cwe": (RULER_LABELS, cwe.MAX_GEN_TOKS),
    "path_ruler_fwe": (RULER_LABELS, fwe.MAX_GEN_TOKS),
}


def manager(**metadata):
    return TaskManager(include_path=TASK_FOLDER, include_defaults=False, metadata=metadata)


def num_tokens(label):
    return int(label.removesuffix("k")) * (1024 if label.endswith("k") else 1)


class ScriptedLM(LM):
    """Answers each prompt with a function of its text."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.requests = []

    def generate_until(self, requests, disable_tqdm=False):
        self.requests += requests
        return [self.answer(request.args[0]) for request in requests]

    def loglikelihood(self, requests):
        raise NotImplementedError

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError


def oracle(prompt):
    """Reads the answer from the prompt alone."""
    if prompt.endswith("in the list are:"):
        listed = re.findall(r" ?\d+\. ([^\d]+?)(?= \d+\.|$)", prompt.split("\n")[-2])
        return " ".join(word for word, _ in Counter(listed).most_common(10))
    if prompt.endswith("words are:"):
        words = prompt.partition("coded words. ")[2].partition("\n")[0].split(" ")
        return " ".join(word for word, _ in Counter(words).most_common(4))
    if prompt.endswith("they are: "):
        value = re.search(r"assigned the value (\d+), they are: $", prompt)[1]
        chain = prompt[prompt.index(f"= {value}") :]
        first = re.search(rf"VAR (\w+) = {value}\n", prompt)[1]
        return " ".join([first, *re.findall(r"VAR (\w+) = VAR", chain)])
    if prompt.endswith(":"):
        name = prompt.rpartition("\n")[2]
        return " " + re.search(rf"^{name} (\d+)$", prompt, re.MULTILINE)[1] + "\nAnn Lee: 1"
    key = re.search(r".* for (.+) mentioned in the provided text is$", prompt)[1]
    return " " + re.search(rf"for {key} is: ([0-9a-f-]+)\.", prompt)[1] + ". The grass is green."


def evaluate(task, answer, folder, limit=3):
    lm = ScriptedLM(answer)
    task_manager = manager(tokenizer=folder)
    results = simple_evaluate(lm, tasks=[task], task_manager=task_manager, limit=limit)
    return lm, results


def test_every_file_is_a_task_and_every_tag_has_all_lengths():
    listed = manager()
    names = {f"{name}_any" for name in BENCHMARKS}
    for name, (labels, _) in BENCHMARKS.items():
        members = {f"{name}_{label}" for label in labels}
        assert listed.task_index[name].tags == members
        names |= members
    assert set(listed.all_subtasks) == names
    assert {path.stem for path in files("patheval.tasks").rglob("*.yaml")} == names


@pytest.mark.parametrize("name", BENCHMARKS)
def test_length_and_budget_are_those_of_the_name_and_the_generator(english_folder, name):
    labels, max_gen_toks = BENCHMARKS[name]
    tasks = manager(pretrained=english_folder, length=600, seed=5).load([name])["tasks"]
    for label in labels:
        task = tasks[f"{name}_{label}"]
        assert task.config.generation_kwargs["max_gen_toks"] == max_gen_toks
        assert task.eval_docs[0]["length"] == num_tokens(label)
        assert task.VERSION == 1


@pytest.mark.parametrize("name", BENCHMARKS)
def test_any_length_can_be_asked_for(english_folder, name):
    tasks = manager(tokenizer=english_folder, length=700).load([f"{name}_any"])["tasks"]
    assert tasks[f"{name}_any"].eval_docs[0]["length"] == 700


@pytest.mark.parametrize("name", BENCHMARKS)
def test_no_more_documents_are_built_than_are_run(english_folder, name, monkeypatch):
    built = set()
    read = LazyDocs.__getitem__

    def note(docs, index):
        built.add(index)
        return read(docs, index)

    monkeypatch.setattr(LazyDocs, "__getitem__", note)
    _, results = evaluate(f"{name}_512", oracle, english_folder, limit=2)
    assert built == {0, 1}
    [counts] = results["n-samples"].values()
    assert counts == {"original": 96 if "phonebook" in name else 500, "effective": 2}


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("path_phonebook_1k", "exact_match"),
        *((f"{name}_1k", "string_match_all") for name in BENCHMARKS if "ruler" in name),
    ],
)
def test_oracle_scores_one_and_silence_zero(english_folder, task, metric):
    lm, results = evaluate(task, oracle, english_folder)
    scores = results["results"][task]
    assert scores[f"{metric},none"] == 1
    assert scores[f"{metric}_stderr,none"] == 0
    assert scores["empty,none"] == 0
    for request, sample in zip(lm.requests, results["samples"][task], strict=True):
        doc = sample["doc"]
        assert request.args[0] == doc["prompt"] + doc.get("answer_prefix", "")

    _, results = evaluate(task, lambda prompt: "", english_folder)
    scores = results["results"][task]
    assert scores[f"{metric},none"] == 0
    assert scores["empty,none"] == 1
    assert results["higher_is_better"][task] == {metric: True, "empty": False}


def test_standard_error_is_that_of_the_mean(english_folder):
    answers = iter(["right", "", "", ""])
    _, results = evaluate(
        "path_phonebook_512",
        lambda prompt: oracle(prompt) if next(answers) else "",
        english_folder,
        limit=4,
    )
    scores = results["results"]["path_phonebook_512"]
    assert scores["exact_match,none"] == 0.25
    assert scores["exact_match_stderr,none"] == pytest.approx(0.25)
