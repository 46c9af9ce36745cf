"""Everything that can be wrong is found, and everything to run is listed, before a GPU is taken."""

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from patheval import _autoload
from patheval.errors import PathEvalError
from patheval.leaderboard import catalogue
from patheval.model_arguments import check_model

from .options import CHECKPOINT_BACKENDS, Model, Options
from .suites import ZERO_SHOT, select

DEFAULT_MAX_LENGTH = 8192


@dataclass
class Cell:
    """One model on one task.

    Attributes:
        model: The model.
        task: lm-eval's task name.
        length: Tokens that a prompt with its answer takes at most; None if the task does not say.
        num_samples: Samples of the task.
        num_tokens: Tokens of all prompts at most; None if the task does not say.
        tokenizer: Fingerprint of the tokenizer that sized the prompts; may be empty.
        key: Hash of all that the scores depend on.
        results: The results file of a finished cell.
    """

    model: Model
    task: str
    length: int | None
    num_samples: int
    num_tokens: int | None
    tokenizer: str
    key: str = ""
    results: Path | None = None


@dataclass
class Plan:
    """What a sweep runs.

    Attributes:
        options: What was asked for.
        cells: Model by model, the longest tasks first.
        max_length: The limit that every model gets, in tokens.
        faults: All that is wrong; nothing is run unless this is empty.
        notes: What to know before comparing the results.
    """

    options: Options
    cells: list[Cell] = field(default_factory=list)
    max_length: int = DEFAULT_MAX_LENGTH
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def num_run(self, cell: Cell) -> int:
        """Samples of a cell that are run: its task's, or the first of them with a limit."""
        limit = self.options.limit
        if limit is None:
            return cell.num_samples
        # As lm-eval reads it.
        number = limit if limit >= 1 else limit * cell.num_samples
        return min(cell.num_samples, math.ceil(number))

    def num_prompt_tokens(self, cell: Cell) -> int | None:
        """Tokens of the prompts that are run, at most; None if the task does not say."""
        if cell.num_tokens is None:
            return None
        return cell.num_tokens * self.num_run(cell) // max(1, cell.num_samples)

    @property
    def waiting(self) -> list[Cell]:
        """Cells that no results file holds yet."""
        return [cell for cell in self.cells if cell.results is None]


def make_plan(options: Options, progress: Callable[[str], None] = lambda text: None) -> Plan:
    """Checks models, tokenizers, tasks, data and lengths, and lists the cells.

    Args:
        options: What to run.
        progress: Told what is being checked.
    """
    plan = Plan(options)
    selection = select(
        _task_names(options), options.suites, options.lengths, options.tasks, options.skip
    )
    plan.faults += selection.faults
    fingerprints = {}
    of_models: dict[str, list[str]] = defaultdict(list)
    for model in options.models:
        progress(f"model {model.name}")
        try:
            fingerprints[model.name] = _check_model(options, model)
        except PathEvalError as error:
            of_models[str(error)].append(model.name)
    plan.faults += [f"model {', '.join(names)}: {fault}" for fault, names in of_models.items()]
    named = [catalogue.parse(task).length or 0 for task in selection.tasks]
    plan.max_length = options.max_length or max(named, default=0) or DEFAULT_MAX_LENGTH
    # Without its tokenizer a model's tasks cannot be sized, and every one of them would say so.
    checked = [model for model in options.models if model.name in fingerprints]
    faults = _add_cells(plan, checked, selection.tasks, progress)
    needed = max((cell.length or 0 for cell in plan.cells), default=0)
    if needed > plan.max_length and options.max_length is None:
        plan.max_length = needed
        plan.cells = []
        faults = _add_cells(plan, checked, selection.tasks, progress)
    plan.faults += faults
    if needed > plan.max_length:
        long = sorted({cell.task for cell in plan.cells if (cell.length or 0) > plan.max_length})
        plan.faults.append(
            f"max_length is {plan.max_length} and {', '.join(long[:4])}"
            f"{f' and {len(long) - 4} more' if len(long) > 4 else ''} "
            f"need{'s' if len(long) == 1 else ''} {needed}; pass --max-length {needed}, or leave "
            "it out"
        )
    if fault := _output_fault(options.out):
        plan.faults.append(fault)
    for cell in plan.cells:
        arguments = options.arguments(cell.model, plan.max_length)
        cell.key = _key(options, cell, arguments, fingerprints[cell.model.name])
    mark_finished(plan)
    _note_differences(plan)
    return plan


def mark_finished(plan: Plan) -> None:
    """Notes which cells have complete results in the folder."""
    finished = _finished(plan.options.out)
    for cell in plan.cells:
        cell.results = finished.get(cell.key)


def task_manager(plan: Plan, model: Model) -> Any:
    """Returns lm-eval's task manager with what a model's tasks need to know."""
    metadata = {**plan.options.arguments(model, plan.max_length), **plan.options.metadata}
    return _manager(json.dumps(metadata, sort_keys=True), _needs_defaults(plan.options))


@cache
def _manager(metadata: str, include_defaults: bool) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(
        include_path=_autoload.task_folder(),
        include_defaults=include_defaults,
        metadata=json.loads(metadata),
    )


def _needs_defaults(options: Options) -> bool:
    """Whether lm-eval's own 13,000 tasks must be listed, which takes half a minute."""
    own = all(pattern.startswith("path_") for pattern in options.tasks)
    return not own or bool({"table2", "all"} & set(options.suites))


def _task_names(options: Options) -> set[str]:
    manager = _manager("{}", _needs_defaults(options))
    return {
        name for name in manager.all_subtasks if name.startswith("path_") or name in ZERO_SHOT
    } | {name for name in manager.all_subtasks if options.tasks}


def _check_model(options: Options, model: Model) -> str:
    """Read a checkpoint's every weight and its tokenizer; return the hash of the weights."""
    arguments = {**options.model_args, **model.arguments}
    check_model(options.backend, {"pretrained": model.pretrained, **arguments}, "--backend")
    if options.backend not in CHECKPOINT_BACKENDS:
        return f"{model.pretrained} {arguments.get('revision', '')}"
    from patheval.checkpoint.reader import open_checkpoint
    from patheval.checkpoint.tokenizer import check_tokenizer
    from patheval.tokenization import load_tokenizer
    from patheval.zoo import resolve

    checkpoint = open_checkpoint(resolve(model.pretrained), arguments.get("revision"))
    source = str(arguments.get("tokenizer") or checkpoint.path)
    tokenizer = load_tokenizer(source, arguments.get("tokenizer_revision"))
    check_tokenizer(tokenizer, checkpoint.config.vocab_size, source)
    return checkpoint.fingerprint()


def _add_cells(
    plan: Plan, models: Iterable[Model], tasks: Iterable[str], progress: Callable[[str], None]
) -> list[str]:
    """Add a cell for each model and task; return what is wrong with those that cannot be had."""
    faults: dict[str, list[str]] = defaultdict(list)
    unfetched: set[str] = set()
    for model in models:
        progress(f"tasks of {model.name}")
        manager = task_manager(plan, model)
        for name in tasks:
            try:
                loaded = manager.load([name])["tasks"].values()
                plan.cells += [_cell(model, task) for task in loaded]
            except PathEvalError as error:
                faults[str(error)].append(f"{model.name} on {name}")
            except Exception as error:  # Whatever a task's code or data raise is one fault more.
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                faults[reason[:300]].append(f"{model.name} on {name}")
                if _is_of_the_network(error):
                    unfetched.add(name)
    listed = [
        ", ".join(names[:3])
        + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        + f": {reason}"
        for reason, names in faults.items()
    ]
    if unfetched:
        # lm-eval's own tasks name no way to fetch their data; its dummy model needs nothing else.
        listed.append(
            f"{len(unfetched)} of lm-eval's tasks lack their data; with a network, run "
            f"`HF_HUB_OFFLINE=0 lm_eval run --model dummy --limit 1 --tasks "
            f"{','.join(sorted(unfetched))}`"
        )
    return listed


def _is_of_the_network(error: BaseException | None) -> bool:
    """Whether a failed connection is the cause: each library has a class of its own for that."""
    while error is not None:
        names = {own.__name__ for own in type(error).__mro__}
        if names & {"ConnectionError", "OfflineModeIsEnabled", "LocalEntryNotFoundError"}:
            return True
        error = error.__cause__ or error.__context__
    return False


def _cell(model: Model, task: Any) -> Cell:
    docs = task.eval_docs
    first = docs[0] if len(docs) else {}
    first = first if isinstance(first, dict) else {}
    budget = (task.config.generation_kwargs or {}).get("max_gen_toks", 0)
    length = first.get("length")
    if not isinstance(length, int):
        own = [doc["num_tokens"] for doc in docs] if "num_tokens" in first else []
        length = max(own, default=0) + budget or None
    num_tokens = None if length is None else len(docs) * (length - budget)
    tokenizer = str(first.get("tokenizer", ""))
    return Cell(model, task.config.task, length, len(docs), num_tokens, tokenizer)


def _key(options: Options, cell: Cell, arguments: dict[str, Any], fingerprint: str) -> str:
    # Where a checkpoint lies does not matter, only what it holds.
    own = {key: value for key, value in arguments.items() if key != "pretrained"}
    content = [
        cell.model.name,
        fingerprint,
        options.backend,
        own,
        cell.task,
        dict(options.metadata),
        options.limit,
        cell.num_samples,
        cell.tokenizer,
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _output_fault(out: Path) -> str:
    """What keeps results from being written; empty if nothing does."""
    there = out.absolute()
    while not os.path.lexists(there):
        there = there.parent
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ""
    reason = "may not be written to" if there.is_dir() else "is no folder"
    return f"the results cannot go to {out}: {there} {reason}; name another folder with --out"


def _finished(out: Path) -> dict[str, Path]:
    """Results files of earlier runs by the key of their cell, if they are complete."""
    finished = {}
    for path in sorted(out.glob("*/results_*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            ((task, counts),) = content["n-samples"].items()
            samples = path.with_name(f"samples_{task}{path.stem.removeprefix('results')}.jsonl")
            with samples.open("rb") as file:
                num_samples = sum(line.endswith(b"\n") for line in file)
            if num_samples >= counts["effective"]:
                finished[content["config"]["sweep"]["key"]] = path
        except (AttributeError, KeyError, OSError, TypeError, ValueError):
            continue
    return finished


def _note_differences(plan: Plan) -> None:
    by_tokenizer: dict[str, set[str]] = defaultdict(set)
    for cell in plan.cells:
        if cell.tokenizer:
            by_tokenizer[cell.tokenizer].add(cell.model.name)
    if len(by_tokenizer) > 1:
        groups = " and ".join(", ".join(sorted(names)) for names in by_tokenizer.values())
        plan.notes.append(
            f"tokenizers differ ({groups}), so generated prompts do too: a leaderboard shows such "
            "columns side by side and compares within a tokenizer only"
        )
    if plan.options.limit is not None:
        plan.notes.append("--limit runs are for trials: leaderboards refuse them")
