"""Scores from a samples file: the answers are those of the file, the scorer is today's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from patheval.errors import ResultsError
from patheval.samplefile import (
    Rebuild,
    is_generated,
    read_samples,
    rebuilt_text,
    refuse_results,
    stored_doc,
    task_of,
    whole_prompts,
)
from patheval.suggestions import did_you_mean


@dataclass(frozen=True)
class Score:
    """One metric of a task.

    Attributes:
        task: Name of the task.
        metric: Name of the metric.
        filter: What was done to the answers before.
        value: Its value with today's scorer.
        stderr: Standard error; None if the metric has none.
        recorded: Mean of the samples' values in the file; None if they are no numbers.
        num_samples: Number of documents.
    """

    task: str
    metric: str
    filter: str
    value: float
    stderr: float | None
    recorded: float | None
    num_samples: int


class _Docs(list[dict[str, Any]]):
    """Documents as lm-eval takes them from a data set."""

    @property
    def features(self) -> dict[str, type]:
        """Type of each field, by name."""
        return {name: type(value) for name, value in self[0].items()}


class _GeneratedDoc(dict[str, Any]):
    """A document whose long texts are made anew if the scorer reads them.

    Args:
        sample: One line of the file.
        rebuild: Makes the sample's document.
    """

    def __init__(self, sample: Mapping[str, Any], rebuild: Rebuild) -> None:
        super().__init__(stored_doc(sample))
        self._sample = sample
        self._rebuild = rebuild

    def __missing__(self, name: str) -> str:
        if name not in self._sample["doc"]:
            raise KeyError(name)
        self[name] = rebuilt_text(self._sample, name, self._rebuild)
        return str(self[name])


def rescore(
    path: Path, manager: Any, rebuild: Rebuild, task_name: str | None = None
) -> list[Score]:
    """Scores the answers of a samples file anew; neither model nor data set is loaded.

    Args:
        path: The file.
        manager: lm-eval's TaskManager that knows the task.
        rebuild: Makes a document anew; called if a scorer reads a text that stands in no file.
        task_name: The task; by default the one in the file's name.

    Raises:
        ResultsError: The file is damaged, empty or a results file, its task is not known, or a text
            is needed that cannot be made anew.
    """
    refuse_results(path)
    task_name = task_name or task_of(path)
    if task_name is None:
        raise ResultsError(f"{path.name} does not name its task; pass --task NAME")
    if task_name not in manager.all_subtasks:
        raise ResultsError(
            f"there is no task {task_name}; {did_you_mean(task_name, manager.all_subtasks)}pass "
            "--task NAME, or --include_path FOLDER with its "
            "definition"
        )
    samples = list(read_samples(path))
    if not samples:
        raise ResultsError(f"{path} holds no samples; pass the file of a run that ended")
    # A sample is written once for each filter, each time with the answers as the model gave them.
    by_doc = {sample["doc_id"]: sample for sample in samples}
    docs = {
        doc_id: _GeneratedDoc(sample, rebuild) if is_generated(sample["doc"]) else sample["doc"]
        for doc_id, sample in by_doc.items()
    }
    task = _load(manager, task_name, _Docs(docs.values()))
    _attach_answers(task, list(by_doc.values()), docs)
    return _scores(task, task_name, samples, docs)


def _load(manager: Any, name: str, docs: _Docs) -> Any:
    changed = {
        "task": name,
        # The file's documents are those that process_docs made.
        "custom_dataset": lambda **_: {"samples": docs},
        "dataset_kwargs": None,
        "process_docs": None,
        "test_split": "samples",
        "validation_split": None,
        "training_split": None,
        "fewshot_split": None,
        "fewshot_config": None,
        "num_fewshot": 0,
    }
    from lm_eval.tasks._yaml_loader import load_yaml

    definition = manager.task_index[name].yaml_path
    if definition and (own := load_yaml(definition, resolve_func=True).get("class")):
        changed["class"] = _without_data(own, docs)
    # Only as a member of a group can a known task be changed.
    loaded = manager.load({"group": "rescored", "task": [changed]})
    (task,) = loaded["tasks"].values()
    return task


def _without_data(task_class: Any, docs: _Docs) -> Any:
    """A task class of lm-eval's that has documents instead of fetching and preparing a data set."""

    def download(self: Any, *args: Any, **kwargs: Any) -> None:
        self.dataset = {"samples": docs}

    return type(
        task_class.__name__,
        (task_class,),
        {
            "__module__": task_class.__module__,
            "download": download,
            "has_training_docs": lambda self: False,
            "has_validation_docs": lambda self: False,
            "has_test_docs": lambda self: True,
            "fewshot_docs": lambda self: None,
            "test_docs": lambda self: docs,
        },
    )


def _attach_answers(
    task: Any, samples: Sequence[dict[str, Any]], docs: Mapping[int, dict[str, Any]]
) -> None:
    from lm_eval.api.instance import Instance

    task._instances = [
        Instance(
            request_type=request_type,
            doc=docs[sample["doc_id"]],
            arguments=tuple(arguments),
            idx=idx,
            metadata=(task.config.task, sample["doc_id"], len(answers)),
            resps=[_answer(request_type, answer) for answer in answers],
        )
        for sample in samples
        for idx, (arguments, answers) in enumerate(
            zip(whole_prompts(sample), sample["resps"], strict=True)
        )
        for request_type in [_request_type(arguments)]
    ]


def _request_type(arguments: Sequence[Any]) -> str:
    """The type by the arguments: a task of lm-eval's may ask for several."""
    if len(arguments) == 1:
        return "loglikelihood_rolling"
    return "generate_until" if isinstance(arguments[1], dict) else "loglikelihood"


def _answer(request_type: str, stored: Any) -> Any:
    """An answer as the model gave it; lm-eval stores all of them as text."""
    if request_type == "loglikelihood":
        logprob, is_greedy = stored
        return float(logprob), is_greedy == "True"
    return float(stored) if request_type == "loglikelihood_rolling" else stored


def _scores(
    task: Any, name: str, recorded: list[dict[str, Any]], docs: Mapping[int, dict[str, Any]]
) -> list[Score]:
    from lm_eval.evaluator_utils import _process_results

    task.apply_filters()
    instances = defaultdict(list)
    for instance in task.instances:
        instances[instance.doc_id].append(instance)
    raw: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for filter_name in task.instances[0].filtered_resps:
        for doc_id, doc in docs.items():
            answers = [instance.filtered_resps[filter_name] for instance in instances[doc_id]]
            for metric, value in task.process_results(doc, answers).items():
                raw[metric, filter_name].append(value)
    results = _process_results({name: {"task": task, "raw_metrics": raw, "logged_samples": []}})
    metrics = results.metrics[name]
    return [
        Score(
            task=name,
            metric=metric,
            filter=filter_name,
            value=metrics[f"{metric},{filter_name}"],
            stderr=_number(metrics.get(f"{metric}_stderr,{filter_name}")),
            recorded=_recorded(recorded, metric, filter_name),
            num_samples=len(values),
        )
        for (metric, filter_name), values in raw.items()
    ]


def _recorded(samples: list[dict[str, Any]], metric: str, filter_name: str) -> float | None:
    values = [_number(sample.get(metric)) for sample in samples if sample["filter"] == filter_name]
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
