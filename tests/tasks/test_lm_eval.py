"""The tasks as lm-eval finds, builds, runs and scores them."""

import itertools
import re
from collections import Counter
from importlib.resources import files

import pytest
from answering_lm import AnsweringLM, evaluate, manager

from patheval.tasks.generation import LazyDocs
from patheval.tasks.phonebook import generate as phonebook
from patheval.tasks.ruler import cwe, fwe, niah, qa, vt

TASK_FOLDER = str(files("patheval.tasks"))
LABELS = ["512", "1k", "2k", "4k", "8k", "16k", "32k", "64k"]
ESSAY_TASKS = [
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multivalue",
    "niah_multiquery",
]
RULER_TASKS = {
    "niah_single_1": niah.MAX_GEN_TOKS,
    "niah_multikey_2": niah.MAX_GEN_TOKS,
    "niah_multikey_3": niah.MAX_GEN_TOKS,
    **dict.fromkeys(ESSAY_TASKS, niah.MAX_GEN_TOKS),
    "vt": vt.MAX_GEN_TOKS,
    "cwe": cwe.MAX_GEN_TOKS,
    "fwe": fwe.MAX_GEN_TOKS,
    "qa_1": qa.MAX_GEN_TOKS,
    "qa_2": qa.MAX_GEN_TOKS,
}
# Name of the tag, end of the names, labels, generation budget.
BENCHMARKS = {
    "path_phonebook": ("", ["256", *LABELS], phonebook.MAX_GEN_TOKS),
    **{f"path_ruler_{name}": ("", LABELS, budget) for name, budget in RULER_TASKS.items()},
    **{
        f"path_ruler_{name}_offline": ("_offline", LABELS, niah.MAX_GEN_TOKS)
        for name in ESSAY_TASKS
    },
}


def name_of(benchmark, label):
    end = BENCHMARKS[benchmark][0]
    return f"{benchmark.removesuffix(end)}_{label}{end}"


pytestmark = pytest.mark.usefixtures("few_plays")


def num_tokens(label):
    return int(label.removesuffix("k")) * (1024 if label.endswith("k") else 1)


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
    if question := re.search(r"When was Vale (\d+) founded\? Answer:$", prompt):
        return f" In {1100 + int(question[1])}."
    if prompt.endswith("below the old mill? Answer:"):
        return " ada holm"
    if prompt.endswith(":"):
        name = prompt.rpartition("\n")[2]
        return " " + re.search(rf"^{name} (\d+)$", prompt, re.MULTILINE)[1] + "\nAnn Lee: 1"
    keys = re.search(r".* for (.+) mentioned in the provided text (?:is|are)$", prompt)[1]
    values = [
        re.findall(rf"for {key} is: ([0-9a-f-]+)\.", prompt) for key in re.split(", and |, ", keys)
    ]
    return f" {', '.join(itertools.chain(*values))}. The grass is green."


def run(task, generate, folder, own_data, limit=3):
    lm = AnsweringLM(generate=generate)
    return lm, evaluate(task, lm, limit=limit, tokenizer=folder, **own_data)


def test_every_file_is_a_task_or_a_group_and_every_tag_has_all_lengths():
    listed = manager()
    for benchmark, (_, labels, _) in BENCHMARKS.items():
        members = {name_of(benchmark, label) for label in labels}
        assert listed.task_index[benchmark].tags == members
        assert {*members, name_of(benchmark, "any")} <= set(listed.all_subtasks)
    names = {path.stem for path in files("patheval.tasks").rglob("*.yaml")}
    assert names == {*listed.all_subtasks, *listed.all_groups}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_length_and_budget_are_those_of_the_name_and_the_generator(
    english_folder, own_data, benchmark
):
    _, labels, max_gen_toks = BENCHMARKS[benchmark]
    tasks = manager(pretrained=english_folder, length=600, seed=5, **own_data).load([benchmark])
    for label in labels:
        task = tasks["tasks"][name_of(benchmark, label)]
        assert task.config.generation_kwargs["max_gen_toks"] == max_gen_toks
        assert task.eval_docs[0]["length"] == num_tokens(label)
        assert task.VERSION == 1


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_any_length_can_be_asked_for(english_folder, own_data, benchmark):
    name = name_of(benchmark, "any")
    tasks = manager(tokenizer=english_folder, length=700, **own_data).load([name])["tasks"]
    assert tasks[name].eval_docs[0]["length"] == 700


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_no_more_documents_are_built_than_are_run(english_folder, own_data, benchmark, monkeypatch):
    built = set()
    read = LazyDocs.__getitem__

    def note(docs, index):
        built.add(index)
        return read(docs, index)

    monkeypatch.setattr(LazyDocs, "__getitem__", note)
    _, results = run(name_of(benchmark, "512"), oracle, english_folder, own_data, limit=2)
    assert built == {0, 1}
    [counts] = results["n-samples"].values()
    assert counts == {"original": 96 if "phonebook" in benchmark else 500, "effective": 2}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_oracle_scores_one_and_silence_zero(english_folder, own_data, benchmark):
    task = name_of(benchmark, "1k")
    metrics = ["exact_match"]
    if "ruler" in benchmark:
        part = "part" if "qa_" in benchmark else "all"
        metrics = ["score", "strict", f"string_match_{part}"]
    lm, results = run(task, oracle, english_folder, own_data)
    scores = results["results"][task]
    for metric in metrics:
        assert scores[f"{metric},none"] == 1
        assert scores[f"{metric}_stderr,none"] == 0
    assert scores["empty,none"] == 0
    for request, sample in zip(lm.requests, results["samples"][task], strict=True):
        doc = sample["doc"]
        assert request.args[0] == doc["prompt"] + doc.get("answer_prefix", "")

    _, results = run(task, lambda prompt: "", english_folder, own_data)
    scores = results["results"][task]
    assert [scores[f"{metric},none"] for metric in metrics] == [0] * len(metrics)
    assert scores["empty,none"] == 1
    directions = results["higher_is_better"][task]
    assert directions == {**dict.fromkeys(metrics, True), "empty": False}


@pytest.mark.parametrize(("end", "num_tasks"), [("", 13), ("_offline", 11)])
def test_group_is_the_plain_mean_of_its_tasks(english_folder, own_data, end, num_tasks):
    def knows_numbers(prompt):
        return oracle(prompt) if "magic number" in prompt else ""

    group = f"path_ruler_512{end}"
    _, results = run(group, knows_numbers, english_folder, own_data, limit=2)
    assert len(results["results"]) == num_tasks + 1
    scores = results["results"][group]
    assert scores["score,none"] == scores["strict,none"] == pytest.approx(6 / num_tasks)
    assert scores["empty,none"] == pytest.approx((num_tasks - 6) / num_tasks)


def test_group_of_all_lengths_holds_the_groups_of_each():
    for end in ("", "_offline"):
        loaded = manager().task_index[f"path_ruler{end}"].cfg["task"]
        assert loaded == [f"path_ruler_{label}{end}" for label in LABELS]


def test_standard_error_is_that_of_the_mean(english_folder):
    answers = iter(["right", "", "", ""])
    _, results = run(
        "path_phonebook_512",
        lambda prompt: oracle(prompt) if next(answers) else "",
        english_folder,
        {},
        limit=4,
    )
    scores = results["results"]["path_phonebook_512"]
    assert scores["exact_match,none"] == 0.25
    assert scores["exact_match_stderr,none"] == pytest.approx(0.25)
