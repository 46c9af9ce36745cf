"""What a sweep shows: the plan, the table of finished cells, and how long it will take."""

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from patheval.leaderboard import catalogue
from patheval.leaderboard.tables import format_value

from .plan import Cell, Plan
from .run import Outcome


def plan_table(plan: Plan) -> Table:
    """Returns the plan by model and benchmark: cells, finished ones, samples, tokens."""
    table = Table("model", "benchmark", "lengths", "cells", "finished", "samples", "tokens")
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in plan.cells:
        groups[cell.model.name, catalogue.parse(cell.task).benchmark].append(cell)
    for (model, benchmark), cells in groups.items():
        places = [catalogue.parse(cell.task) for cell in cells]
        labels = {place.length: place.label for place in places if place.length is not None}
        table.add_row(
            Text(model),
            catalogue.benchmark(benchmark).title,
            " ".join(labels[length] for length in sorted(labels)),
            str(len(cells)),
            str(sum(cell.results is not None for cell in cells)),
            f"{sum(plan.num_run(cell) for cell in cells):,}",
            _tokens_text(plan, cells),
        )
    return table


def num_tokens(plan: Plan, cells: Sequence[Cell]) -> int:
    """Prompt tokens of cells, as far as their tasks say."""
    return sum(plan.num_prompt_tokens(cell) or 0 for cell in cells)


def num_unsized(plan: Plan, cells: Sequence[Cell]) -> int:
    """How many cells are of tasks that do not say how long their prompts are."""
    return sum(plan.num_prompt_tokens(cell) is None for cell in cells)


def work_line(plan: Plan, speed: int) -> str:
    """Says what is to be run, and how long it takes as far as that is known.

    Args:
        plan: A plan without faults.
        speed: Prompt tokens per second.
    """
    waiting = plan.waiting
    text = f"{len(waiting)} of {len(plan.cells)} cells to run"
    if not waiting:
        return f"{text}: all are finished"
    text += f", max_length {plan.max_length}"
    tokens, unsized = num_tokens(plan, waiting), num_unsized(plan, waiting)
    if tokens:
        text += (
            f", at most {tokens:,} prompt tokens: {duration(tokens / speed)} if a model reads "
            f"{speed:,} tokens per second"
        )
    if unsized:
        which = "their" if unsized == len(waiting) else f"of {unsized} the"
        text += f"; {which} prompts' lengths are not known before they run"
    return text


def duration(seconds: float) -> str:
    """Writes a time as people say it."""
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def outcome_line(outcome: Outcome) -> str:
    """Writes an outcome in one line."""
    head = f"{outcome.status}: {outcome.cell.model.name} on {outcome.cell.task}"
    if outcome.status == "failed":
        return f"{head}: {outcome.reason}"
    name, value, unit = main_value(outcome)
    time_taken = f" in {duration(outcome.seconds)}" if outcome.status == "done" else ""
    return f"{head}: {name} {format_value(value, unit)}{time_taken}"


def failure_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Writes failures, those of a model for one reason in one line."""
    tasks: dict[tuple[str, str], list[str]] = defaultdict(list)
    for outcome in outcomes:
        tasks[outcome.cell.model.name, outcome.reason].append(outcome.cell.task)
    return [
        f"failed: {model} on {', '.join(names[:3])}"
        f"{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {reason}"
        for (model, reason), names in tasks.items()
    ]


def closing_line(outcomes: Sequence[Outcome], out: Path) -> str:
    """Says how many cells are there, and what becomes of those that failed."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    lasting = sum(outcome.is_lasting for outcome in failed)
    text = f"{len(outcomes) - len(failed)} of {len(outcomes)} cells are in {out}"
    if lasting:
        return (
            f"{text}; {lasting} will fail again until what is said above is mended, then the same "
            "command runs what is missing"
        )
    return f"{text}; the same command runs the failed ones again" if failed else text


def main_value(outcome: Outcome) -> tuple[str, float | None, str]:
    """Returns the main metric of a finished cell, its value and its unit."""
    metrics = catalogue.main_metrics(outcome.cell.task, list(outcome.metrics))
    if not metrics:
        return "", None, ""
    value = outcome.metrics[metrics[0]][0]
    return metrics[0], value, catalogue.unit(metrics[0], value)


class LiveTable:
    """Shows finished cells while a sweep runs; a context manager.

    On a terminal a table is redrawn in place, and all other output, that of engines included, goes
    to a log file. Elsewhere each finished cell is a line.

    Args:
        plan: The plan that runs.
        log: The log file.
    """

    def __init__(self, plan: Plan, log: Path) -> None:
        self._plan = plan
        self._log = log
        self._outcomes: list[Outcome] = []
        self._doing = "starting"
        self._stack = contextlib.ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            terminal = self._stack.enter_context(_output_to(self._log))
            console = Console(file=terminal, force_terminal=True)
            self._live = Live(get_renderable=self.render, console=console, refresh_per_second=1,
                              redirect_stdout=False, redirect_stderr=False)  # fmt: skip
            self._stack.enter_context(self._live)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def starting(self, text: str) -> None:
        """Says what is being done."""
        self._doing = text
        if self._live is None:
            Console().print(Text(text))

    def report(self, outcome: Outcome) -> None:
        """Adds a finished cell."""
        self._outcomes.append(outcome)
        if self._live is None:
            Console().print(Text(outcome_line(outcome)))

    def print_table(self) -> None:
        """Prints the table, where it was not drawn all the time."""
        if self._live is None:
            Console().print(self.render())

    def render(self) -> Group:
        """Returns the table of means by model, benchmark and length, and the state below it."""
        parsed = {cell.task: catalogue.parse(cell.task) for cell in self._plan.cells}
        shares = _shares(parsed.values())
        columns = sorted({(p.length or 0, p.label) for p in parsed.values()})
        table = Table("model", "benchmark", *(label or "score" for _, label in columns))
        values: dict[tuple[str, str, str], list[tuple[float, str]]] = defaultdict(list)
        failed: dict[tuple[str, str, str], int] = defaultdict(int)
        total: dict[tuple[str, str, str], int] = defaultdict(int)
        for cell in self._plan.cells:
            place = parsed[cell.task]
            total[cell.model.name, place.benchmark, place.label] += 1
        for outcome in self._outcomes:
            place = parsed[outcome.cell.task]
            key = (outcome.cell.model.name, place.benchmark, place.label)
            _, value, unit = main_value(outcome)
            if value is not None:
                values[key].append((value, unit))
            failed[key] += outcome.status == "failed"
        for model, benchmark in dict.fromkeys(key[:2] for key in total):
            counts = {number for key, number in total.items() if key[:2] == (model, benchmark)}
            line = []
            for _, label in columns:
                key = (model, benchmark, label)
                text = _cell_text(values[key], failed[key], total[key])
                if len(values[key]) == total[key] > 0:
                    # Means over unlike tasks must not be read as one line.
                    of_how_many = f"of {_counted(total[key], 'task')}" if len(counts) > 1 else ""
                    mark = shares.get((benchmark, label), of_how_many)
                    text.append(f" {mark}" if mark else "", style="dim")
                line.append(text)
            table.add_row(Text(model), catalogue.benchmark(benchmark).title, *line)
        return Group(table, Text(self._state()))

    def _state(self) -> str:
        done = [o for o in self._outcomes if o.status == "done"]
        left = [
            cell
            for cell in self._plan.cells
            if all(cell is not outcome.cell for outcome in self._outcomes)
        ]
        text = f"{len(self._outcomes)} of {len(self._plan.cells)} cells"
        if left:
            text += f"; {self._doing}"
        spent = num_tokens(self._plan, [outcome.cell for outcome in done])
        if left and spent and not num_unsized(self._plan, left):
            rate = spent / max(sum(outcome.seconds for outcome in done), 1e-9)
            text += f"; about {duration(num_tokens(self._plan, left) / rate)} left"
        return text if self._live is None else f"{text}; log in {self._log}"


def _tokens_text(plan: Plan, cells: Sequence[Cell]) -> str:
    known, unsized = num_tokens(plan, cells), num_unsized(plan, cells)
    if unsized == len(cells):
        return "not known"
    return f"over {known:,}" if unsized else f"{known:,}"


def _shares(places: Collection[catalogue.TaskName]) -> dict[tuple[str, str], str]:
    """How many of a benchmark's tasks there are at a length, such as (2/13), if not all are."""
    shares = {}
    for key, label in {(place.benchmark, place.label) for place in places}:
        whole = set(catalogue.benchmark(key).average)
        own = {p.subtask for p in places if (p.benchmark, p.label) == (key, label)}
        if whole and len(own & whole) < len(whole):
            shares[key, label] = f"({len(own & whole)}/{len(whole)})"
    return shares


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _cell_text(values: list[tuple[float, str]], failed: int, total: int) -> Text:
    if not total:
        return Text("")
    text = Text(f"{len(values)}/{total}" if len(values) < total else "", style="dim")
    if values:
        mean = sum(value for value, _ in values) / len(values)
        text = Text(f"{format_value(mean, values[0][1])}{' ' if text else ''}").append_text(text)
    if failed:
        text.append(f" {failed} failed", style="red")
    return text


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[IO[str]]:
    """Send what this process and its children write to a file; yield the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    terminal = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with path.open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield terminal
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)
            terminal.close()
