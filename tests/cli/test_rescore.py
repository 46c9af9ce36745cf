"""`patheval rescore` and `patheval samples show` on the files of a real run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from click.testing import CliRunner
from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from torch.utils import collect_env

from patheval import samplefile
from patheval._autoload import task_folder
from patheval.cli.rescore import rescore
from patheval.cli.samples import samples
from patheval.errors import ResultsError

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
# Classes, as some of lm-eval's own tasks are; one that takes its YAML file and one that does not.
CLASS_TASKS = {"tiny_configured": "Configured", "tiny_two_types": "TwoTypes"}
CLASSES = """
import json
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

class Configured(ConfigurableTask):
    def __init__(self, config):
        super().__init__(config={k: v for k, v in config.items() if k != "class"})

    def construct_requests(self, doc, ctx, **kwargs):
        return [Instance(request_type="loglikelihood", doc=doc, arguments=(ctx, f" {word}"),
                         idx=i, metadata=kwargs["metadata"]) for i, word in enumerate("abc")]

    def process_results(self, doc, results):
        return {"sum": sum(logprob for logprob, _ in results) + len(doc["q"])}

    def aggregation(self):
        return {"sum": lambda values: sum(values)}

    def higher_is_better(self):
        return {"sum": True}

class TwoTypes(ConfigurableTask):
    VERSION = 1
    DATASET_PATH = "json"

    def __init__(self, config=None):
        super().__init__(config={"metadata": {"version": self.VERSION}})

    def download(self, *args, **kwargs):
        lines = open(PLACE).read().splitlines()
        self.dataset = {"validation": [json.loads(line) for line in lines]}

    def has_training_docs(self):
        return False

    def has_validation_docs(self):
        return True

    def has_test_docs(self):
        return False

    def validation_docs(self):
        class Docs(list):
            features = {"upper": str}
        return Docs({"upper": doc["q"].upper()} for doc in self.dataset["validation"])

    def doc_to_text(self, doc):
        return doc["upper"]

    def doc_to_target(self, doc):
        return " x"

    def construct_requests(self, doc, ctx, chat_template=None, apply_chat_template=False, **kwargs):
        settings = {"until": ["x"], "max_gen_toks": 3}
        return [
            Instance(request_type="generate_until", doc=doc, arguments=(ctx, settings), idx=0,
                     **kwargs),
            Instance(request_type="loglikelihood", doc=doc, arguments=(ctx, " x"), idx=1, **kwargs),
        ]

    def process_results(self, doc, results):
        text, (logprob, is_greedy) = results
        return {"length": len(text) + len(doc["upper"]), "logprob": logprob, "greedy": is_greedy}

    def aggregation(self):
        return dict.fromkeys(("length", "logprob", "greedy"), lambda values: sum(values))

    def higher_is_better(self):
        return dict.fromkeys(("length", "logprob", "greedy"), True)
"""
# Patheval's own, with scores, perplexities and answers.
GENERATED = ["path_ruler_niah_single_1_8k", "path_ppl_plays_4k_offline", "path_phonebook_256"]
DOCS = [
    {"q": "one two", "a": "b", "prompt": "short"},
    {"q": "three", "a": "d", "prompt": "long " * 1500},
    {"q": "four \u27e6five\u27e7", "a": "", "prompt": "other " * 1000},
]


def evaluate(folder: Path, tasks: list[str], manager: TaskManager, **options: Any) -> Any:
    """Runs tasks and writes their files as lm-eval's command does."""
    # lm-eval describes the machine, which takes seconds.
    collect_env.get_pretty_env_info = lambda: ""
    model_args = {
        "pretrained": str(CHECKPOINT),
        "tokenizer": str(folder / "tokenizer"),
        "max_length": 16384,
    }
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    results = simple_evaluate(
        model="path-ref",
        model_args=model_args,
        device="cpu",
        tasks=tasks,
        task_manager=manager,
        evaluation_tracker=tracker,
        bootstrap_iters=2,
        **options,
    )
    logged = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=logged)
    for name in tasks:
        tracker.save_results_samples(task_name=name, samples=logged[name])
    return results["results"], logged


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
    (folder / "tasks" / "classes.py").write_text(
        CLASSES.replace("PLACE", repr(str(folder / "docs.jsonl")))
    )
    for name, own in CLASS_TASKS.items():
        (folder / "tasks" / f"{name}.yaml").write_text(
            f"task: {name}\nclass: !function classes.{own}\n"
            + (f'{head}doc_to_text: "{{{{q}}}}"\ndoc_to_target: a\n' * (own == "Configured"))
        )
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    results, _ = evaluate(folder, [*TASKS, *CLASS_TASKS], manager)
    (folder / "docs.jsonl").unlink()  # scores are to come from the samples alone
    return folder, results


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Any]:
    """A folder with samples files of patheval's own tasks, the results and the whole samples."""
    folder = tmp_path_factory.mktemp("generated")
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    metadata = {"tokenizer": str(folder / "tokenizer"), "data_seed": 7}
    manager = TaskManager(include_path=task_folder(), include_defaults=False, metadata=metadata)
    return folder, *evaluate(folder, GENERATED, manager, limit=2, gen_kwargs="max_gen_toks=3")


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
    files = [file_of(folder, task) for task in (*TASKS, *CLASS_TASKS)]
    scores = json.loads(invoke(rescore, *files, "--include_path", folder / "tasks", "--json"))
    got = {(s["task"], f"{s['metric']},{s['filter']}"): s for s in scores}
    wanted = {
        (task, metric): value
        for task, own in results.items()
        for metric, value in own.items()
        if isinstance(value, int | float) and "," in metric and "_stderr" not in metric
    }
    assert len(wanted) == 9 and got.keys() == wanted.keys()
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
    assert text.count("long " * 100) == 15 and "short" in text
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
    with pytest.raises(ResultsError, match=r"doc prompt, which is not the text that was run"):
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


def test_a_results_file_is_told_from_the_samples_beside_it(
    run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = run
    (results,) = (folder / "out").rglob("results_*.json")
    for command in ([samples, "show"], [rescore]):
        with pytest.raises(ResultsError, match="is a results file; name the samples") as error:
            invoke(*command, results)
        assert any(path.name in str(error.value) for path in results.parent.glob("samples_*"))
        alone = tmp_path / results.name
        shutil.copy(results, alone)
        with pytest.raises(ResultsError, match="run the task again with --log_samples"):
            invoke(*command, alone)


def test_names_of_tasks_are_whole_where_output_is_no_terminal(
    run: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = run
    arguments = [file_of(folder, "tiny_configured"), "--include_path", folder / "tasks"]
    result = CliRunner(env={"COLUMNS": "30"}).invoke(rescore, list(map(str, arguments)))
    assert "tiny_configured" in result.output


def test_generated_prompts_stand_in_no_file_and_are_made_anew(
    generated: tuple[Path, dict[str, Any], Any],
) -> None:
    folder, _, logged = generated
    for task in GENERATED:
        path = file_of(folder, task)
        lines = list(samplefile.read_samples(path))
        for line, whole in zip(lines, logged[task], strict=True):
            texts = [text for own in whole["arguments"] for text in own if isinstance(text, str)]
            if task == "path_phonebook_256":
                assert line["doc"] == whole["doc"]  # short ones stay readable
            else:
                longest = max(texts, key=len)
                assert json.dumps(longest[:-240])[1:-1] not in json.dumps(line)
                assert sum(map(len, texts)) > 4096 > 0.9 * len(json.dumps(line))
            for name in ("doc_hash", "prompt_hash", "target_hash"):
                assert line[name] == whole[name]
            shown = json.loads(invoke(samples, "show", path, "--doc", line["doc_id"], "--json"))
            assert shown["arguments"] == [list(own) for own in whole["arguments"]]
            # Without making anything anew, the question is there.
            ends = [own[0][-240:] for own in samplefile.whole_prompts(line)]
            assert ends == [own[0][-240:] for own in whole["arguments"]]


def test_generated_documents_are_scored_without_their_prompts(
    generated: tuple[Path, dict[str, Any], Any], tmp_path: Path
) -> None:
    folder, results, _ = generated
    files = [file_of(folder, task) for task in GENERATED]
    alone = [shutil.copy(path, tmp_path) for path in files]  # without the results file
    scores = json.loads(invoke(rescore, *alone, "--json"))
    assert {s["task"] for s in scores} == set(GENERATED)
    for score in scores:
        wanted = results[score["task"]][f"{score['metric']},{score['filter']}"]
        assert score["value"] == pytest.approx(wanted, rel=1e-12)
    with pytest.raises(ResultsError, match=r"cannot be made anew.*--tokenizer"):
        invoke(samples, "show", alone[0])
    shown = invoke(samples, "show", alone[0], "--tokenizer", folder / "tokenizer")
    assert shown == invoke(samples, "show", files[0])


def test_a_scorer_that_reads_prompts_gets_them(
    generated: tuple[Path, dict[str, Any], Any], tmp_path: Path
) -> None:
    folder, _, logged = generated
    path = file_of(folder, GENERATED[0])
    (tmp_path / "scoring.py").write_text(
        "def score(doc, results):\n    return {'score': len(doc['prompt'])}\n"
    )
    (tmp_path / "reading.yaml").write_text(
        f"task: {GENERATED[0]}\noutput_type: generate_until\ndataset_path: json\n"
        "test_split: test\ndoc_to_text: prompt\ndoc_to_target: references\n"
        "custom_dataset: !function patheval.tasks.ruler.niah.niah_single_1\n"
        "dataset_kwargs: {target_length: 8192}\n"
        "process_results: !function scoring.score\nmetric_list: [{metric: score, "
        "aggregation: mean, higher_is_better: true}]\n"
    )
    (score,) = json.loads(invoke(rescore, path, "--include_path", tmp_path, "--json"))
    lengths = [len(sample["doc"]["prompt"]) for sample in logged[GENERATED[0]]]
    assert score["value"] == sum(lengths) / len(lengths)


def test_another_tokenizer_or_seed_is_not_the_prompt_that_was_run(
    generated: tuple[Path, dict[str, Any], Any], tmp_path: Path
) -> None:
    folder, _, _ = generated
    path = file_of(folder, GENERATED[0])
    byte_tokenizer(num_extra=1).save_pretrained(tmp_path / "other")
    with pytest.raises(ResultsError, match="fingerprint"):
        invoke(samples, "show", path, "--tokenizer", tmp_path / "other")
    edited = tmp_path / path.name
    edited.write_text(path.read_text().replace('"seed": 7', '"seed": 8'))
    with pytest.raises(ResultsError, match="its prompt comes out otherwise"):
        invoke(samples, "show", edited, "--tokenizer", folder / "tokenizer")


def test_samples_of_other_models_on_other_tasks_are_lm_evals_own(tmp_path: Path) -> None:
    tracker = EvaluationTracker(output_path=str(tmp_path))
    tracker.date_id = "2026-01-01T00-00-00.000000"
    tracker.general_config_tracker.model_source = "hf"
    tracker.general_config_tracker.model_name_sanitized = "model"
    prompt = "long " * 2000
    sample = {
        "doc": {"q": prompt},
        "arguments": [(prompt, " a"), (prompt, " b")],
        "resps": [],
        "filtered_resps": [],
        "target": "",
    }
    tracker.save_results_samples(task_name="other", samples=[dict(sample)])
    (path,) = tmp_path.rglob("samples_other_*")
    assert path.read_text().count(prompt) == 3
    path.unlink()
    tracker.general_config_tracker.model_source = "path"
    tracker.save_results_samples(task_name="other", samples=[dict(sample)])
    assert path.read_text().count(prompt) == 1
