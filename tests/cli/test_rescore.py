"""`patheval rescore` and `patheval samples show` on the files of a real run."""

import json
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from click.testing import CliRunner
from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from patheval.cli.rescore import rescore
from patheval.cli.samples import samples
from patheval.errors import ResultsError
from patheval.model_adapters.path_ref import PathRefLM

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "path-d64"
TASKS = {
    "tiny_generate": """
output_type: generate_until
doc_to_text: "{{q}}"
doc_to_target: "{{a}}"
generation_kwargs: {max_gen_toks: 3, until: ["x"]}
repeats: 2
filter_list:
  - name: first
    filter: [{function: take_first}]
  - name: letters
    filter:
      - {function: regex, regex_pattern: "([a-z]+)"}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "tiny_choice": """
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_target: 1
doc_to_choice: ["red", "green", "blue"]
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
""",
    "tiny_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{q}}"
metric_list:
  - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
""",
}
DOCS = [
    {"q": "one two", "a": "b", "prompt": "short"},
    {"q": "three", "a": "d", "prompt": "long " * 1500},
    {"q": "four \u27e6five\u27e7", "a": "", "prompt": "other " * 1000},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with task definitions and samples files, and the results."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    head = (
        "dataset_path: json\ndataset_kwargs:\n  data_files: "
        f"{{test: {folder / 'docs.jsonl'}}}\ntest_split: test\n"
    )
    (folder / "tasks").mkdir()
    for name, body in TASKS.items():
        (folder / "tasks" / f"{name}.yaml").write_text(f"task: {name}\n{head}{body}")
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    lm = PathRefLM.create_from_arg_obj(
        {"pretrained": str(CHECKPOINT), "tokenizer": str(folder / "tokenizer")},
        {"device": "cpu"},
    )
    manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    results = simple_evaluate(
        model=lm, tasks=list(TASKS), task_manager=manager, evaluation_tracker=tracker
    )
    logged = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=logged)
    for name in TASKS:
        tracker.save_results_samples(task_name=name, samples=logged[name])
    (folder / "docs.jsonl").unlink()  # scores are to come from the samples alone
    return folder, results["results"]


def file_of(folder: Path, task: str) -> Path:
    (path,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
    return path


def invoke(command: Any, *arguments: object) -> str:
    runner = CliRunner(env={"COLUMNS": "160"})
    result = runner.invoke(command, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_scores_are_those_of_the_run(run: tuple[Path, dict[str, Any]]) -> None:
    folder, results = run
    files = [file_of(folder, task) for task in TASKS]
    scores = json.loads(invoke(rescore, *files, "--include_path", folder / "tasks", "--json"))
    got = {(s["task"], f"{s['metric']},{s['filter']}"): s for s in scores}
    wanted = {
        (task, metric): value
        for task, own in results.items()
        for metric, value in own.items()
        if isinstance(value, float) and "_stderr" not in metric
    }
    assert len(wanted) == 5 and got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert got[key]["value"] == pytest.approx(value, rel=1e-12)
        assert got[key]["num_samples"] == 3
    assert got["tiny_choice", "acc,none"]["recorded"] == pytest.approx(
        results["tiny_choice"]["acc,none"]
    )
    assert got["tiny_choice", "acc,none"]["stderr"] == pytest.approx(
        results["tiny_choice"]["acc_stderr,none"]
    )
    table = invoke(rescore, *files, "--include_path", folder / "tasks")
    assert "tiny_generate" in table and "recorded" in table


def test_another_scorer_gives_other_scores(
    run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = run
    path = file_of(folder, "tiny_choice")
    (tmp_path / "other.yaml").write_text(
        "task: other\ndataset_path: json\ntest_split: test\n"
        + TASKS["tiny_choice"].replace("doc_to_target: 1", "doc_to_target: 0")
    )
    arguments = (path, "--include_path", tmp_path, "--task", "other", "--json")
    changed = json.loads(invoke(rescore, *arguments))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    best = [max(range(3), key=lambda i: float(line["resps"][i][0][0])) for line in lines]
    accuracy = next(score for score in changed if score["metric"] == "acc")
    assert accuracy["value"] == pytest.approx(sum(i == 0 for i in best) / 3)


def test_no_long_prompt_stands_twice_and_each_can_be_shown(
    run: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = run
    path = file_of(folder, "tiny_choice")
    text = path.read_text()
    assert text.count("long " * 1500) == text.count("other " * 1000) == 1
    assert "short" in text
    for doc_id, doc in enumerate(DOCS):
        shown = json.loads(invoke(samples, "show", path, "--doc", doc_id, "--json"))
        assert [own[0] for own in shown["arguments"]] == [doc["prompt"]] * 3
    readable = invoke(samples, "show", path, "--doc", 1)
    assert readable.count("long " * 1500) == 3 and "request 2" in readable


def test_prompt_hashes_are_those_of_the_whole_prompts(run: tuple[Path, dict[str, Any]]) -> None:
    from lm_eval.utils import hash_string

    folder, _ = run
    for task, field in (("tiny_choice", "prompt"), ("tiny_rolling", "q")):
        lines = map(json.loads, file_of(folder, task).read_text().splitlines())
        for line, doc in zip(lines, DOCS, strict=True):
            assert line["prompt_hash"] == hash_string(doc[field])


def test_edited_and_foreign_files_are_refused(
    run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = run
    path = file_of(folder, "tiny_choice")
    edited = tmp_path / path.name
    edited.write_text(path.read_text().replace("long long", "long king"))
    with pytest.raises(ResultsError, match=r"doc\.prompt, which is not the text that was run"):
        invoke(samples, "show", edited, "--doc", 1)
    with pytest.raises(ResultsError, match="no document 9"):
        invoke(samples, "show", path, "--doc", 9)
    cut = tmp_path / "cut.jsonl"
    cut.write_text(path.read_text()[:-40])
    with pytest.raises(ResultsError, match=r"line 3 of .* is no sample"):
        invoke(rescore, cut, "--task", "tiny_choice", "--include_path", folder / "tasks")
    with pytest.raises(ResultsError, match="pass --task NAME"):
        invoke(rescore, cut)
    other = tmp_path / "other.jsonl"
    other.write_text("{}\n")
    with pytest.raises(ResultsError, match="lacks arguments, doc, doc_id, filter, resps"):
        invoke(samples, "show", other)
    other.write_text("")
    with pytest.raises(ResultsError, match="holds no samples"):
        invoke(rescore, other, "--task", "tiny_choice", "--include_path", folder / "tasks")
