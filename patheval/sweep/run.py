"""Runs the cells of a plan: each engine is loaded once, and a cell that fails stops no other."""

import functools
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from patheval.errors import EngineError, PathEvalError, ResultsError

from .lock import locked
from .plan import Cell, Plan, mark_finished, task_manager

_logger = logging.getLogger(__name__)

# Counted by the adapters over the whole life of a model, and needed of one cell.
_COUNTS = (
    "num_prompts_overlength",
    "num_prompts_truncated",
    "num_prompts_skipped",
    "num_prompts_empty",
    "num_generations_empty",
    "num_prompts",
    "num_answers_resumed",
    "wall_seconds",
)


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        cell: The cell.
        status: "done" in this run, "kept" from an earlier one, or "failed".
        metrics: Metric and value, standard error, in lm-eval's scale; empty if it failed.
        seconds: Time that it took, without the engine's start; 0 if kept.
        reason: Why it failed, in one line.
        is_lasting: Whether it fails again until what the reason says is mended.
    """

    cell: Cell
    status: Literal["done", "kept", "failed"]
    metrics: Mapping[str, tuple[float, float | None]]
    seconds: float = 0.0
    reason: str = ""
    is_lasting: bool = False


def run_plan(
    plan: Plan,
    report: Callable[[Outcome], None],
    starting: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """Runs what is not finished.

    Args:
        plan: A plan without faults.
        report: Called with each outcome as it comes.
        starting: Told what is being loaded or run.

    Raises:
        ResultsError: The plan has faults.
        PrerequisiteError: Another process runs a sweep into the same folder.
    """
    if plan.faults:
        raise ResultsError(f"the plan has faults ({len(plan.faults)}); mend them first")
    with locked(plan.options.out):
        # What another sweep finished between the plan and the lock.
        mark_finished(plan)
        return _run_cells(plan, report, starting)


def _run_cells(
    plan: Plan, report: Callable[[Outcome], None], starting: Callable[[str], None]
) -> list[Outcome]:
    _keep_environment_report()
    outcomes = []

    def add(outcome: Outcome) -> None:
        outcomes.append(outcome)
        report(outcome)

    for cell in plan.cells:
        if cell.results is not None:
            add(Outcome(cell, "kept", _metrics_of_file(cell.results, cell.task)))
    _prepare_data(plan, starting)
    for model in plan.options.models:
        cells = [cell for cell in plan.waiting if cell.model == model]
        if cells:
            _run_model(plan, cells, add, starting)
    return outcomes


def _prepare_data(plan: Plan, starting: Callable[[str], None]) -> None:
    """Build the generated samples into their cache, so that no engine waits for them."""
    if os.environ.get("PATHEVAL_CACHE") == "off":
        return
    seen = set()
    for cell in plan.waiting:
        if not cell.tokenizer or (cell.tokenizer, cell.task) in seen:
            continue
        seen.add((cell.tokenizer, cell.task))
        starting(f"preparing {cell.task}")
        try:
            (task,) = task_manager(plan, cell.model).load([cell.task])["tasks"].values()
            for index in range(plan.num_run(cell)):
                task.eval_docs[index]
        except PathEvalError:
            continue  # The cell will say so itself, and stops no other.
        except Exception as error:
            _logger.warning("%s cannot be prepared", cell.task, exc_info=error)


def _run_model(
    plan: Plan,
    cells: list[Cell],
    add: Callable[[Outcome], None],
    starting: Callable[[str], None],
) -> None:
    model = None
    try:
        for position, cell in enumerate(cells):
            start = time.monotonic()
            try:
                if model is None:
                    starting(f"loading {cell.model.name}")
                    model = _load(plan, cell)
                    starting(f"{cell.model.name} took {time.monotonic() - start:.0f} s to load")
                    start = time.monotonic()
                starting(f"{cell.model.name} on {cell.task}")
                path, metrics = _run_cell(plan, cell, model)
            except Exception as error:  # One cell's failure must not cost the others.
                is_ours = isinstance(error, PathEvalError)
                is_lasting = is_ours and not isinstance(error, EngineError)
                reason = str(error)
                if not is_ours:
                    _logger.warning("%s on %s failed", cell.model.name, cell.task, exc_info=error)
                    reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
                if model is None:
                    reason = f"not loaded: {reason}"
                    for other in cells[position:]:
                        add(Outcome(other, "failed", {}, 0.0, reason, is_lasting))
                    return
                add(Outcome(cell, "failed", {}, time.monotonic() - start, reason, is_lasting))
                if not is_lasting:
                    # An engine that ran out of memory or died answers nothing more.
                    _close(model)
                    model = None
            else:
                cell.results = path
                add(Outcome(cell, "done", metrics, time.monotonic() - start))
    finally:
        if model is not None:
            _close(model)


def _load(plan: Plan, cell: Cell) -> Any:
    import lm_eval.models  # noqa: F401  (get_model knows only lm-eval's own without it)
    from lm_eval.api.registry import get_model

    options = plan.options
    return get_model(options.backend).create_from_arg_obj(
        options.arguments(cell.model, plan.max_length),
        {"batch_size": options.batch_size, "device": options.device},
    )


def _close(model: Any) -> None:
    close = getattr(model, "close", None)
    if close is not None:
        close()


def _run_cell(
    plan: Plan, cell: Cell, model: Any
) -> tuple[Path, Mapping[str, tuple[float, float | None]]]:
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    options = plan.options
    tracker = EvaluationTracker(output_path=str(options.out))
    before = _info(model)
    results = simple_evaluate(
        model,
        tasks=[cell.task],
        task_manager=task_manager(plan, cell.model),
        limit=options.limit,
        log_samples=True,
    )
    samples = results.pop("samples")
    arguments = options.arguments(cell.model, plan.max_length)
    results["config"] |= {
        "model": options.backend,
        "model_args": arguments,
        "batch_size": options.batch_size,
        "device": options.device,
        "sweep": {"key": cell.key, "name": cell.model.name},
        **_of_this_cell(before, _info(model)),
    }
    tracker.general_config_tracker.log_experiment_args(
        model_source=options.backend,
        model_args={"pretrained": cell.model.name},
        system_instruction=None,
        chat_template=None,
        fewshot_as_multiturn=False,
    )
    tracker.save_results_aggregated(results=results, samples=samples)
    for task, own in samples.items():
        tracker.save_results_samples(task_name=task, samples=own)
    name = tracker.general_config_tracker.model_name_sanitized
    path = options.out / str(name) / f"results_{getattr(tracker, 'date_id', '')}.json"
    if not path.is_file():
        # lm-eval only warns.
        raise ResultsError(f"the results could not be written to {path.parent}; make room there")
    return path, _metrics(results["results"][cell.task])


def _info(model: Any) -> dict[str, Any]:
    describe = getattr(model, "get_model_info", None)
    return dict(describe()) if describe is not None else {}


def _of_this_cell(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {
        name: after[name] - before.get(name, 0) for name in _COUNTS if name in after
    }
    if isinstance(after.get("phases"), Mapping):
        earlier = before.get("phases") or {}
        own["phases"] = {
            phase: counts
            for phase, record in after["phases"].items()
            if (counts := _of_this_phase(earlier.get(phase, {}), record))["num_requests"]
        }
    return own


def _of_this_phase(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    own = {
        name: value - before.get(name, 0)
        for name, value in after.items()
        if not name.endswith("_per_second")
    }
    for kind in ("prompt", "generated"):
        seconds = own["wall_seconds"]
        own[f"{kind}_tokens_per_second"] = own[f"{kind}_tokens"] / seconds if seconds else None
    return own


def _metrics_of_file(path: Path, task: str) -> Mapping[str, tuple[float, float | None]]:
    import json

    return _metrics(json.loads(path.read_text(encoding="utf-8"))["results"][task])


def _metrics(values: Mapping[str, Any]) -> Mapping[str, tuple[float, float | None]]:
    metrics: dict[str, tuple[float, float | None]] = {}
    for key, value in values.items():
        metric, comma, own_filter = key.partition(",")
        if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
            stderr = values.get(f"{metric}_stderr,{own_filter}")
            is_number = isinstance(stderr, int | float) and math.isfinite(stderr)
            metrics[metric] = (float(value), stderr if is_number else None)
    return metrics


def _keep_environment_report() -> None:
    """Let lm-eval describe the machine once, not after each cell, which takes seconds."""
    from torch.utils import collect_env

    if not hasattr(collect_env.get_pretty_env_info, "cache_info"):
        collect_env.get_pretty_env_info = functools.cache(collect_env.get_pretty_env_info)
