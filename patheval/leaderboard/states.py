"""Errors of the zoo's state-tracking models, seed by seed: a miniature of the paper's Table 1.

The models are tested by their trainer, several seeds at once, and not by lm-eval: these numbers
have a file and tables of their own, and are no rows of a board.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

from patheval.errors import ResultsError

STATES = "states.jsonl"
REQUIRED_ACCURACY = 0.9
"""What every seed has to reach on every test of a task, for the task to count as learned."""

_TITLES = {"fflm": "Flip-flop", "mqrar": "MQRAR", "a5": "A5"}


@dataclass(frozen=True)
class StateRow:
    """The error of one model on one test.

    Attributes:
        family: What the model was trained for, such as `fflm` or `mqrar2`.
        attention: Kind of attention.
        num_layers: Number of blocks.
        seed: Of the weights and of the training data.
        task: Task whose test sequences were asked, such as `path_fflm_iid`.
        error: Share of the labels that greedy decoding does not give, in [0, 1].
        wrong: Number of those labels.
        labels: Number of labels.
        sequences: Number of test sequences.
        steps: Optimizer steps of the training.
        planned_steps: Optimizer steps of the recipe; fewer were made where time was short.
        seconds: Training time of all seeds of the model together.
        route: How the error was counted.
        device: What it was trained on.
        torch: Version of torch there.
        weights_sha256: Of the model's `model.safetensors`.
        zoo: Name under which this seed ships, or None.
    """

    family: str
    attention: str
    num_layers: int
    seed: int
    task: str
    error: float
    wrong: int
    labels: int
    sequences: int
    steps: int
    planned_steps: int
    seconds: float
    route: str
    device: str
    torch: str
    weights_sha256: str
    zoo: str | None

    @property
    def is_cut(self) -> bool:
        """Whether the training ended before the recipe's last step."""
        return self.steps < self.planned_steps


def write(rows: Sequence[StateRow], path: Path) -> None:
    """Writes one JSON object a line.

    Args:
        rows: The errors.
        path: Its folder is made if it is not there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")


def read(path: Path) -> list[StateRow]:
    """Reads what `write` wrote; nothing if there is no such file.

    Args:
        path: The file.

    Raises:
        ResultsError: A line is damaged, or its error is not that of its counts.
    """
    if not path.is_file():
        return []
    rows = []
    names = {field.name for field in fields(StateRow)}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
            if entry.keys() != names:
                raise ValueError(f"fields {', '.join(sorted(entry.keys() ^ names))}")
            row = StateRow(**entry)
            if not 0 <= row.wrong <= row.labels or row.error != row.wrong / row.labels:
                raise ValueError(f"{row.wrong} of {row.labels} is not {row.error}")
        except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ResultsError(
                f"line {number} of {path} is damaged ({error}); write the file again with "
                "`patheval zoo train collect-states`"
            ) from error
        rows.append(row)
    return rows


def is_learned(rows: Sequence[StateRow]) -> bool:
    """Whether every seed of a model reaches `REQUIRED_ACCURACY` on every test."""
    return all(row.error <= 1 - REQUIRED_ACCURACY for row in rows)


def percent(share: float) -> str:
    """Writes a share in percent with three digits, so that one label in a million shows."""
    value = 100 * share
    if value == 0:
        return "0"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.5f}".rstrip("0")


def mean_and_range(rows: Sequence[StateRow]) -> str:
    """Writes the mean error of some seeds in percent, with the lowest and the highest."""
    errors = [row.error for row in rows]
    lowest, highest = percent(min(errors)), percent(max(errors))
    return percent(fmean(errors)) + ("" if lowest == highest else f" ({lowest} to {highest})")


def markdown_parts(rows: Sequence[StateRow], level: int = 3) -> Iterator[str]:
    """Yields headings, tables and notes, one table for each kind of task.

    Args:
        rows: All errors.
        level: Level of the headings.
    """
    kinds: dict[str, list[StateRow]] = {}
    for row in rows:
        kinds.setdefault(_kind(row), []).append(row)
    for kind, own in kinds.items():
        yield f"{'#' * level} {_TITLES.get(kind, kind)}"
        yield _origin(own)
        if cut := [row for row in own if row.is_cut]:
            yield _cut(cut)
        yield _table(own)
        yield from _conclusions(own)


def _kind(row: StateRow) -> str:
    """The benchmark of a family: `mqrar2` and `mqrar3` share a table, `a5` has its own."""
    return re.sub(r"^mqrar\d$", "mqrar", row.family)


def _origin(rows: Sequence[StateRow]) -> str:
    routes = "; ".join(dict.fromkeys(row.route for row in rows))
    labels = {row.task: row.labels for row in rows}
    asked = ", ".join(f"{task} {count:,}" for task, count in labels.items())
    return (
        f"No results file of lm-eval is behind this table; how the errors were counted: {routes}. "
        f"Labels asked of each seed: {asked}."
    )


def _table(rows: Sequence[StateRow]) -> str:
    tasks = list(dict.fromkeys(row.task for row in rows))
    models: dict[tuple[str, int], dict[str, list[StateRow]]] = {}
    for row in rows:
        cells = models.setdefault((row.attention, row.num_layers), {})
        cells.setdefault(row.task, []).append(row)
    head = ["attention", "layers", "seeds", *tasks, "steps"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for (attention, num_layers), cells in models.items():
        own = [row for cell in cells.values() for row in cell]
        num_seeds = len({row.seed for row in own})
        values = [mean_and_range(cells[task]) if task in cells else "\u2013" for task in tasks]
        lines.append([attention, str(num_layers), str(num_seeds), *values, _steps(own)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _by_family(rows: Sequence[StateRow]) -> dict[str, list[StateRow]]:
    families: dict[str, list[StateRow]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    return families


def _tasks(rows: Sequence[StateRow]) -> str:
    return ", ".join(dict.fromkeys(row.task for row in rows))


def _steps(rows: Sequence[StateRow]) -> str:
    """Writes the steps made, and of how many where the training was cut: 443 of 3000.

    Families that differ are told apart: path_mqrar_n1 3000; path_mqrar_n2 443 of 3000.
    """
    steps = {}
    for own in _by_family(rows).values():
        made = ", ".join(str(number) for number in sorted({row.steps for row in own}))
        is_cut = any(row.is_cut for row in own)
        steps[_tasks(own)] = f"{made} of {own[0].planned_steps}" if is_cut else made
    if len(set(steps.values())) == 1:
        return next(iter(steps.values()))
    return "; ".join(f"{tasks} {made}" for tasks, made in steps.items())


def _cut(rows: Sequence[StateRow]) -> str:
    """Says of rows whose training was cut what they do not say."""
    parts = []
    for family in _by_family(rows).values():
        for layers in sorted({row.num_layers for row in family}):
            own = [row for row in family if row.num_layers == layers]
            parts.append(f"{_tasks(own)} {_steps(own)} with {_count(layers)}")
    return (
        f"**Trainings cut short.** Steps made of the recipe's: {'; '.join(parts)}; the learning "
        "rate fell to 0 within them. Their errors show what so few steps reach, and say nothing "
        "about what a full training, and thus the kind of attention, reaches."
    )


def _count(layers: int) -> str:
    return f"{layers} layer{'' if layers == 1 else 's'}"


def _conclusions(rows: Sequence[StateRow]) -> Iterator[str]:
    """Says, of each family of a table, what its whole trainings show; nothing without any."""
    for family in _by_family(rows).values():
        whole = _whole_trainings(family)
        if not whole:
            continue
        names = f"{percent(REQUIRED_ACCURACY)} % of the labels"
        if len({row.num_layers for row in family}) == 1:
            seeds = ", ".join(
                f"{attention} {_num_learned(own)} of {len({row.seed for row in own})}"
                for attention, layers in whole.items()
                for own in layers.values()
            )
            each = "each of " if len({row.task for row in family}) > 1 else ""
            yield f"Seeds that name {names} of {each}{_tasks(family)}: {seeds}."
        else:
            fewest = ", ".join(
                f"{attention} {_fewest_layers(layers)}" for attention, layers in whole.items()
            )
            yield f"Fewest layers with which every seed names {names}: {fewest}."
        if not any(_num_learned(own) for layers in whole.values() for own in layers.values()):
            yield (
                "**The recipe's training budget does not suffice.** None of the models that were "
                f"trained to its end, {family[0].planned_steps} steps, learned the task; their "
                "errors do not tell which kind of attention would with more."
            )


def _whole_trainings(rows: Sequence[StateRow]) -> dict[str, dict[int, list[StateRow]]]:
    """Attention -> layers -> errors, of the layers below the fewest with a cut training.

    What lies above those cannot show that fewer would not have sufficed.
    """
    whole: dict[str, dict[int, list[StateRow]]] = {}
    for attention in dict.fromkeys(row.attention for row in rows):
        own = [row for row in rows if row.attention == attention]
        fewest_cut = min((row.num_layers for row in own if row.is_cut), default=math.inf)
        for row in own:
            if row.num_layers < fewest_cut:
                whole.setdefault(attention, {}).setdefault(row.num_layers, []).append(row)
    return whole


def _num_learned(rows: Sequence[StateRow]) -> int:
    """How many seeds of a model have learned the task."""
    seeds = {row.seed for row in rows}
    return sum(is_learned([row for row in rows if row.seed == seed]) for seed in seeds)


def _fewest_layers(layers: Mapping[int, Sequence[StateRow]]) -> str:
    tried = sorted(layers)
    none = f"none of {tried[0]}" + (f" to {tried[-1]}" if len(tried) > 1 else "")
    return next((str(count) for count in tried if is_learned(layers[count])), none)
