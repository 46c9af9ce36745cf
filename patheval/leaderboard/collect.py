"""lm-eval results files to rows. Whatever cannot become a shown row is kept with its reason."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from patheval.errors import ResultsError
from patheval.samplefile import find_samples

from . import catalogue, uncertainty
from .samples import Scores, TaskSamples, read_samples, scores
from .schema import Row

ScoreKey = tuple[str, str, str, str]
"""Results file, task, metric, filter."""

_RESULTS_NAME = re.compile(r"_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.json$")
_SECRET = re.compile(r"^((hf|hub|auth|access|api)_)?token$|api_?key|secret|password", re.IGNORECASE)
_TASK_METADATA = {"version", "config_source", "description", "dataset"}


@dataclass(frozen=True)
class Problem:
    """A file that gave no rows, or less than it should have.

    Attributes:
        file: The file, relative to the folder that was read.
        reason: What is wrong with it and what to do.
    """

    file: str
    reason: str


@dataclass
class Collection:
    """All that the files hold.

    Attributes:
        rows: One row for each metric of each task of each file.
        scores: Per-prompt values behind rows that have them.
        problems: Files that could not be read in full.
        num_files: Results files seen.
    """

    rows: list[Row] = field(default_factory=list)
    scores: dict[ScoreKey, Scores] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_files: int = 0


def score_key(row: Row) -> ScoreKey:
    """Returns where a row's per-prompt values are in `Collection.scores`."""
    return row.file, row.task, row.metric, row.filter


def find_results(folders: Sequence[Path]) -> list[tuple[Path, str]]:
    """Finds results files, in hidden folders too.

    Args:
        folders: Folders to search, or results files themselves.

    Returns:
        Each file with its name on the board: relative to the folder, behind the folder's name.

    Raises:
        ResultsError: A folder does not exist, or none holds a results file.
    """
    found: dict[Path, str] = {}
    for folder in folders:
        if folder.is_file():
            found.setdefault(folder.resolve(), folder.name)
        elif not folder.is_dir():
            raise ResultsError(f"{folder} does not exist; name a folder that lm-eval wrote to")
        label = folder.resolve().name
        for path in _walk(folder):
            if _RESULTS_NAME.search(path.name):
                found.setdefault(path.resolve(), f"{label}/{path.relative_to(folder).as_posix()}")
    if not found:
        listed = ", ".join(map(str, folders))
        raise ResultsError(
            f"no results file lies in {listed}; run lm_eval with --output_path and name that folder"
        )
    return sorted(found.items(), key=lambda item: item[1])


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files, each folder once, by its own name if a link leads there as well."""
    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = Path(parent).resolve()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort(key=lambda name: (Path(parent, name).is_symlink(), name))
        yield from (Path(parent, name) for name in sorted(names))


def read_results(
    path: Path, name: str, *, num_examples: int = 0, allow_limit: bool = False
) -> Collection:
    """Reads one results file and the samples files beside it.

    Args:
        path: The file.
        name: Its name on the board.
        num_examples: Answers to keep for each task.
        allow_limit: Mark `--limit` runs instead of refusing them.
    """
    collection = Collection(num_files=1)
    try:
        data = _read_json(path)
    except (OSError, RecursionError, ValueError) as error:
        reason = f"not readable as JSON ({error}); the run was cut off, so repeat it"
        collection.problems.append(Problem(name, reason))
        return collection
    if not isinstance(data, dict) or not isinstance(data.get("results"), dict):
        collection.problems.append(Problem(name, "no results file of lm-eval; remove it"))
    elif not data["results"]:
        collection.problems.append(Problem(name, "no task in it; run the tasks again"))
    else:
        try:
            _ResultsFile(path, name, data, collection, num_examples, allow_limit).read()
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            reason = f"not laid out as lm-eval does ({type(error).__name__}: {error})"
            return Collection(problems=[Problem(name, reason)], num_files=1)
    return collection


def _read_json(path: Path) -> Any:
    text = path.read_text(encoding="utf-8-sig")
    data = json.loads(text)
    if "\\ud" in text.lower():
        # Halves of surrogate pairs can be written in JSON and in no file of ours.
        data = json.loads(json.dumps(data, ensure_ascii=False).encode(errors="replace"))
    return data


@dataclass
class _ResultsFile:
    path: Path
    name: str
    data: Mapping[str, Any]
    collection: Collection
    num_examples: int
    allow_limit: bool

    def read(self) -> None:
        run = _run_row(self.data, self.name)
        for task, values in self.data["results"].items():
            self._read_task(run, str(task), values)

    def _of(self, section: str, task: str) -> Any:
        return (self.data.get(section) or {}).get(task)

    def _read_task(self, run: Row, task: str, values: Mapping[str, Any]) -> None:
        config = self._of("configs", task) or {}
        is_group = self._of("groups", task) is not None or bool(
            self._of("group_subtasks", task) and not config
        )
        reported = dict(_metrics(values))
        if not reported:
            if not is_group:
                reason = f"{task} has no metric; run it again"
                self.collection.problems.append(Problem(self.name, reason))
            return
        counts = self._of("n-samples", task) or {}
        n = _integer(
            counts.get("effective") or values.get("sample_len") or values.get("sample_count")
        )
        n_total = _integer(counts.get("original"))
        limit = (self.data.get("config") or {}).get("limit")
        limited = n < n_total if n and n_total else limit is not None
        is_read = not is_group and (self.allow_limit or not limited)
        samples = self._samples(task, n) if is_read else None
        base = replace(
            run,
            task=task,
            n=n or 0,
            n_total=n_total,
            num_fewshot=_integer(self._of("n-shot", task)),
            task_version=_text(self._of("versions", task)),
            task_hash=_text(self._of("task_hashes", task)),
            metadata=_metadata(config, json.loads(run.model_args)),
        )
        if samples:
            base = replace(
                base,
                tokenizer=samples.tokenizer,
                data_seed=samples.seed,
                tokens_min=min(samples.tokens, default=None),
                tokens_max=max(samples.tokens, default=None),
                num_empty=samples.num_empty,
            )
        directions = self._of("higher_is_better", task) or {}
        metrics = _in_task_order(config, dict.fromkeys(metric for metric, _ in reported))
        mains = catalogue.main_metrics(task, metrics)
        first_filter = next(iter(reported))[1]
        # LongBench-E's own rule shortens what does not fit, and says of how many prompts.
        shortened = task.startswith("path_") and any(
            metric == "cut" and value for (metric, _), (value, _) in reported.items()
        )
        for (metric, own_filter), (value, stderr) in reported.items():
            place = catalogue.parse(task, metric, config.get("metadata"))
            row = replace(
                base,
                benchmark=place.benchmark,
                subtask=place.subtask,
                length=place.length,
                metric=metric,
                filter=own_filter,
                unit=catalogue.unit(metric, value),
                value=value,
                higher_is_better=catalogue.is_higher_better(metric, directions.get(metric)),
            )
            row, has_scores = self._with_uncertainty(row, samples, stderr)
            marks = _marks(row, config, has_scores=has_scores, limited=limited, shortened=shortened)
            row = replace(row, marks=tuple(marks))
            if value is None:
                row = _refuse(row, "the value is missing or not finite; run the task again")
            elif limited and not self.allow_limit:
                share = f"{n} of {n_total}" if n and n_total else "not all"
                row = _refuse(
                    row,
                    f"{share} samples were run (--limit or --samples); run all of them, "
                    "size the task by --metadata num_samples, or pass --allow-limit",
                )
            elif is_group and task.startswith("path_"):
                row = replace(row, status="recomputed")
            elif metric not in mains or (own_filter != first_filter and not metric.isdigit()):
                row = replace(row, status="secondary")
            self.collection.rows.append(row)

    def _with_uncertainty(
        self, row: Row, samples: TaskSamples | None, stderr: float | None
    ) -> tuple[Row, bool]:
        if row.value is None:
            return row, False
        own = scores(samples, row.filter, row.metric, row.value) if samples else None
        if own is not None:
            self.collection.scores[score_key(row)] = own
            estimate = uncertainty.estimate(own.values)
        else:
            is_share = row.unit == "share" and catalogue.counts_answers(row.metric)
            estimate = uncertainty.from_reported(row.value, stderr, row.n, is_share=is_share)
        row = replace(row, stderr=estimate.stderr, ci_low=estimate.low, ci_high=estimate.high)
        return row, own is not None

    def _samples(self, task: str, n: int | None) -> TaskSamples | None:
        path = find_samples(self.path, task)
        if path is None:
            return None
        name = f"{self.name.rpartition('/')[0]}/{path.name}".lstrip("/")
        try:
            samples = read_samples(path, self.num_examples)
        except ResultsError as error:
            fault = str(error).replace(str(path), path.name)
            reason = f"{fault}; shown without paired comparison"
            self.collection.problems.append(Problem(name, reason))
            return None
        seen = max(map(len, samples.raw.values()), default=0)
        if n and seen != n:
            reason = (
                f"{seen} samples where the results file counts {n}; shown without paired "
                "comparison, so run the task again"
            )
            self.collection.problems.append(Problem(name, reason))
            return None
        if any(len(dict(pairs)) < len(pairs) for pairs in samples.raw.values()):
            reason = "a prompt stands in it twice; shown without paired comparison, run it again"
            self.collection.problems.append(Problem(name, reason))
            return None
        return samples


def _refuse(row: Row, reason: str) -> Row:
    return replace(row, status="refused", reason=reason)


def _marks(
    row: Row,
    config: Mapping[str, Any],
    *,
    has_scores: bool,
    limited: bool,
    shortened: bool,
) -> Iterator[str]:
    budget = (config.get("generation_kwargs") or {}).get("max_gen_toks") or 0
    if row.num_truncated or (
        row.num_truncated is None
        and row.tokens_max is not None
        and row.max_length is not None
        and row.tokens_max + budget > row.max_length
    ):
        yield "truncated"
    elif row.num_truncated is None and row.tokens_max is None:
        yield "unchecked-length"
    if row.num_skipped:
        yield "skipped"
    if limited:
        yield "limited"
    if row.benchmark.endswith(f"_{catalogue.OFFLINE}"):
        yield "stand-in"
    if not has_scores:
        yield "no-samples"
    if row.stderr is None:
        yield "no-stderr"
    if shortened:
        yield "cut-middle"
    if row.num_empty and row.num_empty * 2 >= row.n:
        yield "empty"


def _metrics(
    values: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, str], tuple[float | None, float | None]]]:
    """Yield ((metric, filter), (value, standard error)); older harnesses write no filter."""
    for key, value in values.items():
        metric, _, own_filter = key.partition(",")
        if metric in ("alias", "name", "sample_len", "sample_count", "samples", " "):
            continue
        if metric.endswith("_stderr"):
            continue
        stderr_key = f"{metric}_stderr,{own_filter}" if own_filter else f"{metric}_stderr"
        number = _finite(value)
        # lm-eval's RULER tasks write -1 for lengths that were not run.
        if metric.isdigit() and number == -1:
            continue
        stderr = _finite(values.get(stderr_key))
        yield (
            (metric, own_filter or "none"),
            (number, stderr if stderr is not None and stderr >= 0 else None),
        )


def _in_task_order(config: Mapping[str, Any], metrics: Iterable[str]) -> list[str]:
    declared = [
        entry.get("metric")
        for entry in config.get("metric_list") or []
        if isinstance(entry, dict) and isinstance(entry.get("metric"), str)
    ]
    found = list(metrics)
    return sorted(found, key=lambda m: declared.index(m) if m in declared else len(declared))


def _run_row(data: Mapping[str, Any], name: str) -> Row:
    config = data.get("config") or {}
    arguments = _arguments(config.get("model_args"))
    model = data.get("model_name") or arguments.get("pretrained") or config.get("model")
    environment = str(data.get("pretty_env_info", ""))
    torch = re.search(r"PyTorch version: (\S+)", environment)
    versions = {
        "lm_eval": data.get("lm_eval_version"),
        "patheval": config.get("patheval_version"),
        "vllm": config.get("vllm_version"),
        "torch": config.get("torch_version") or (torch.group(1) if torch else None),
        "transformers": data.get("transformers_version"),
    }
    stamp = _finite(data.get("date"))
    return Row(
        model=_model_name(str(model)),
        attention=str(config.get("attention") or ""),
        benchmark="",
        task="",
        metric="",
        value=None,
        max_length=_integer(data.get("max_length") or config.get("max_length")),
        overlength=str(config.get("overlength") or ""),
        num_truncated=_integer(config.get("num_prompts_truncated")),
        num_skipped=_integer(config.get("num_prompts_skipped")),
        model_type=str(config.get("model") or ""),
        model_args=json.dumps(arguments, ensure_ascii=False, sort_keys=True),
        checkpoint_sha256=str(config.get("checkpoint_sha256") or config.get("model_sha") or ""),
        dtype=str(config.get("model_dtype") or ""),
        platform=str(config.get("platform") or ""),
        max_position_embeddings=_integer(config.get("max_position_embeddings")),
        chat_template_sha=str(data.get("chat_template_sha") or ""),
        versions={key: str(value) for key, value in versions.items() if value},
        commit=str(data.get("git_hash") or ""),
        date="" if stamp is None else datetime.fromtimestamp(stamp, UTC).isoformat("T", "seconds"),
        seconds=_finite(data.get("total_evaluation_time_seconds")),
        **_work(config.get("phases")),
        peak_memory_bytes=_integer(config.get("peak_gpu_memory_bytes")),
        file=name,
    )


def _work(phases: object) -> dict[str, Any]:
    """Sum what the adapter records of each type of request."""
    if not isinstance(phases, Mapping) or not phases:
        return {}
    generation = phases.get("generate_until") or {}
    return {
        "model_seconds": sum(float(phase["wall_seconds"]) for phase in phases.values()),
        "prompt_tokens": sum(int(phase["prompt_tokens"]) for phase in phases.values()),
        "generation_seconds": _finite(generation.get("wall_seconds")),
        "generated_tokens": _integer(generation.get("generated_tokens")),
    }


def _arguments(given: object) -> dict[str, object]:
    """Model arguments without secrets, and of absolute paths only the last part."""
    if isinstance(given, str):
        given = dict(part.partition("=")[::2] for part in given.split(",") if part)
    if not isinstance(given, Mapping):
        return {}
    return {
        str(key): _public(value) for key, value in given.items() if not _SECRET.search(str(key))
    }


def _metadata(config: Mapping[str, Any], arguments: Mapping[str, object]) -> str:
    """The user's own metadata: lm-eval mixes it with the task's and with all model arguments."""
    own = {
        key: value
        for key, value in _arguments(config.get("metadata")).items()
        if key not in arguments and key not in _TASK_METADATA
    }
    return json.dumps(own, ensure_ascii=False, sort_keys=True) if own else ""


def _public(value: object) -> object:
    if isinstance(value, str) and value.startswith(("/", "~")):
        return f".../{Path(value).name}"
    return value


def _model_name(model: str) -> str:
    return Path(model).name if model.startswith(("/", "~", ".")) else model


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _integer(value: object) -> int | None:
    number = _finite(value)
    return None if number is None else int(number)
