"""The parts of a board's table: columns with what they mean, and cells that hold rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import catalogue
from .schema import Row
from .uncertainty import Difference, Estimate

AVERAGE = "average"
EFFECTIVE = "effective length"
EFFECTIVE_SHARE = 0.85
RULER_THRESHOLD = 0.856
EFFECTIVE_RULER = f"{EFFECTIVE}, {100 * RULER_THRESHOLD:g} %"
GENERATION = "ms / generated token, prompts included"
SUMMARIES: Mapping[str, str] = {
    "mean": "the plain mean over the lengths",
    "wAvg(inc)": (
        "the mean over the lengths with weights 1, 2, 3, ... from the shortest to the longest, so "
        "that long ones count most"
    ),
    "wAvg(dec)": "the same with the weights from the longest to the shortest",
    EFFECTIVE: (
        f"the longest length up to which every score is at least {100 * EFFECTIVE_SHARE:g} % of "
        "the model's own score at its first length; a model that starts better has more to keep "
        "and one that starts badly little, so it compares no models by itself, and none is bold"
    ),
    EFFECTIVE_RULER: (
        f"the longest length up to which every score is at least {100 * RULER_THRESHOLD:g} %, "
        "RULER's own threshold, the same for every model"
    ),
}
"""Columns that sum up a benchmark's lengths, in reading order, and what they mean."""

SPEEDS: Mapping[str, str] = {
    "tokens read / s": "tokens of all prompts over the whole time in the model, answers included",
    GENERATION: (
        "the whole time of the runs' generate_until requests, the reading of their prompts "
        "included, over the tokens that all of them generated together; not the time of a decode "
        "step"
    ),
    "peak GPU memory, GiB": "the most that tensors took on one GPU in any of the runs",
}
"""Columns of speed, over all of a model's runs, and what they mean."""


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Attributes:
        benchmark: The benchmark's key.
        subtask: Task within it; "average" for the mean of several.
        length: Length in tokens; None without one.
        metric: Metric's name.
        filter: lm-eval's filter.
        unit: As in `Row`.
        higher_is_better: Direction.
        kind: "score" of a task, "average" of the benchmark's tasks at one length, "family"
            of some of them, "summary" over lengths, or "speed".
        num_tasks: Tasks averaged, and how many the benchmark has; (1, 1) for a task.
        parts: The tasks averaged.
    """

    benchmark: str
    subtask: str
    length: int | None
    metric: str
    filter: str = "none"
    unit: str = ""
    higher_is_better: bool = True
    kind: str = "score"
    num_tasks: tuple[int, int] = (1, 1)
    parts: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """Heading that the column stands under."""
        return catalogue.benchmark(self.benchmark).title

    @property
    def title(self) -> str:
        """The column's own name, below its group."""
        if self.kind == "speed":
            return self.subtask
        parts = [self.subtask if self.kind != "average" else ""]
        parts.append(catalogue.column_label(self.benchmark, self.length))
        parts.append(self.share_of_tasks)
        if self.benchmark == "zero_shot" and self.kind == "score":
            parts.append(_SHORT_METRICS.get(self.metric, self.metric))
        return " ".join(filter(None, parts)) or ("average" if self.kind == "average" else "score")

    @property
    def share_of_tasks(self) -> str:
        """How many of the benchmark's tasks are averaged, such as (2/13); empty if all are."""
        done, whole = self.num_tasks
        return f"({done}/{whole})" if done != whole else ""

    @property
    def definition(self) -> str:
        """What the column means, in one line; empty where its title says it."""
        if meaning := {"summary": SUMMARIES, "speed": SPEEDS}.get(self.kind, {}).get(self.subtask):
            return f"{self.subtask}: {meaning}."
        if not self.share_of_tasks:
            return ""
        done, whole = self.num_tasks
        if self.kind == "family":
            return (
                f"{self.subtask} {self.share_of_tasks}: the mean of {done} of {self.group}'s "
                f"{whole} {self.subtask} tasks."
            )
        return (
            f"{self.share_of_tasks}: the mean of {done} of {self.group}'s {whole} tasks, which is "
            f"not {self.group}'s score."
        )

    @property
    def is_ranked(self) -> bool:
        """Whether its best values are marked.

        Speeds depend on the machine and on what ran, effective lengths on the model's own start.
        """
        return self.kind != "speed" and self.subtask != EFFECTIVE

    @property
    def name(self) -> str:
        """Group and title in one text."""
        return f"{self.group} {self.title}"


_SHORT_METRICS = {"acc_norm": "acc_n", "word_perplexity": "ppl", "perplexity": "ppl"}


@dataclass(frozen=True)
class Cell:
    """One value of the table.

    Attributes:
        row: The row behind it; one without a value says that no length reaches a threshold.
        estimate: Value with standard error and interval.
        difference: From the baseline; None where it cannot be compared.
        rank: 1 and 2 for the column's best and second best compared values, else 0.
    """

    row: Row
    estimate: Estimate
    difference: Difference | None = None
    rank: int = 0


Cells = dict[tuple[str, Column], Cell]
"""Cells by model and column."""


def column_of(row: Row) -> Column:
    """Returns the column that a row stands in."""
    if row.subtask == AVERAGE:  # Published as such: the average of all tasks.
        tasks = catalogue.benchmark(row.benchmark).average
        return Column(
            row.benchmark,
            AVERAGE,
            row.length,
            row.metric,
            unit=row.unit,
            kind="average",
            num_tasks=(len(tasks), len(tasks)),
            parts=tuple(tasks),
        )
    return Column(
        row.benchmark,
        row.subtask,
        row.length,
        row.metric,
        row.filter,
        "share" if catalogue.unit(row.metric, None) == "share" and row.unit == "share" else "",
        row.higher_is_better,
    )


def column_order(column: Column) -> tuple[object, ...]:
    """Sorts columns as they are read: by benchmark, averages before their tasks."""
    kinds = {"average": 0, "summary": 1, "family": 2, "score": 3, "speed": 4}
    tasks = catalogue.benchmark(column.benchmark).average
    place = tasks.index(column.subtask) if column.subtask in tasks else len(tasks)
    is_sweep = column.kind == "score" and not tasks
    return (
        catalogue.order(column.benchmark),
        0 if is_sweep else kinds[column.kind],
        list(SUMMARIES).index(column.subtask) if column.kind == "summary" else place,
        column.subtask,
        column.length or 0,
        column.metric,
        column.filter,
        column.unit,
        column.num_tasks,
        column.parts,
    )


def distinct(columns: Iterable[Column]) -> list[Column]:
    """Returns every column once, in an order that is the same in every process."""
    return sorted(set(columns), key=column_order)
