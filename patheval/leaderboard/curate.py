"""Rows of many runs made comparable: who is who, which run counts, what may be compared."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from patheval.errors import ResultsError

from . import catalogue
from .schema import Row
from .table import Column, column_of


def distinct_models(rows: list[Row], renamed: Mapping[str, str]) -> list[Row]:
    """Renames models, and tells apart those that share a name but are not the same.

    Args:
        rows: Rows of any status.
        renamed: New names by old ones.

    Raises:
        ResultsError: An old name is nobody's.
    """
    if unknown := sorted(set(renamed) - {row.model for row in rows}):
        known = ", ".join(sorted({row.model for row in rows}))
        raise ResultsError(f"no model is called {unknown[0]}; the files have {known}")
    rows = [replace(row, model=renamed.get(row.model, row.model)) for row in rows]
    identities: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for row in rows:
        identities[row.model].add(_identity(row))
    result = []
    for row in rows:
        own = identities[row.model]
        parts = []
        for position, part in enumerate(_identity(row)):
            if len({identity[position] for identity in own}) > 1:
                parts.append(part[:8] if position == 0 else part)
        parts = [part or "unknown" for part in parts]
        result.append(replace(row, model=f"{row.model} [{', '.join(parts)}]") if parts else row)
    return result


def _identity(row: Row) -> tuple[str, str, str]:
    return row.checkpoint_sha256, row.model_type, row.dtype


def newest(rows: list[Row]) -> list[Row]:
    """Lets the newest complete run of a model and task stand for it; older ones are superseded."""
    groups: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.status != "refused":
            groups[row.model, row.task, row.metric, row.filter].append(index)
    result = list(rows)
    for indices in groups.values():
        *older, latest = sorted(indices, key=lambda i: (rows[i].date, rows[i].file))
        for index in older:
            result[index] = replace(rows[index], status="superseded")
        if any(_differ(rows[index].value, rows[latest].value) for index in older):
            result[latest] = marked(rows[latest], "runs-differ")
    return result


def _differ(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and abs(a - b) > 1e-9 * max(1.0, abs(a), abs(b))


def resolve_baseline(rows: list[Row], baseline: str) -> str:
    """Returns the whole name of the baseline.

    Args:
        rows: Rows of any status.
        baseline: A model's name, or the last part of one.

    Raises:
        ResultsError: No shown model, or several, are meant.
    """
    names = sorted({row.model for row in rows if row.status == "shown"})
    for matches in (
        [name for name in names if name == baseline],
        [name for name in names if name.casefold() == baseline.casefold()],
        [name for name in names if catalogue.last_part(name) == baseline.casefold()],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ResultsError(
                f"--baseline {baseline} may be {' or '.join(matches)}; give the whole name"
            )
    raise ResultsError(
        f"no model with results is called {baseline}; pass --baseline with one of "
        f"{', '.join(names)}"
    )


def comparable(rows: list[Row], baseline: str) -> list[Row]:
    """Marks rows that were not measured on the same task and prompts as their column's.

    The baseline's row is a column's measure; without one, what most rows share.

    Args:
        rows: Rows of any status.
        baseline: Name of the baseline, or an empty text.
    """
    columns: dict[Column, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.status == "shown":
            columns[column_of(row)].append(index)
    result = list(rows)
    for indices in columns.values():
        if len(indices) == 1:
            continue
        eligible = [i for i in indices if rows[i].is_compared] or indices
        of_baseline = [i for i in eligible if rows[i].model == baseline]
        if of_baseline:
            reference = rows[of_baseline[0]]
        else:
            counts = Counter(_same_prompts(rows[i]) for i in eligible)
            common = max(counts, key=lambda key: (counts[key], key))
            reference = rows[next(i for i in eligible if _same_prompts(rows[i]) == common)]
        for index in indices:
            for mark in _departures(rows[index], reference):
                result[index] = marked(result[index], mark)
    return result


def _same_prompts(row: Row) -> tuple[str, str, str, str]:
    return row.task_version, row.task_hash, str(row.num_fewshot), row.chat_template_sha


def _departures(row: Row, reference: Row) -> list[str]:
    marks = []
    if row.task_version != reference.task_version:
        marks.append("other-version")
    if (row.num_fewshot, row.chat_template_sha) != (
        reference.num_fewshot,
        reference.chat_template_sha,
    ):
        marks.append("other-fewshot")
    if row.task_hash and reference.task_hash and row.task_hash != reference.task_hash:
        marks.append("other-prompts")
    if row.max_length != reference.max_length and None not in (
        row.max_length,
        reference.max_length,
    ):
        # Rolling windows are as long as max_length, and what they score depends on it.
        rolling = "perplexity" in row.metric or "bits" in row.metric
        marks.append("other-length" if rolling else "max-length")
    return marks


def marked(row: Row, mark: str) -> Row:
    """Returns the row with one more of the keys of `MARKS`."""
    return row if mark in row.marks else replace(row, marks=(*row.marks, mark))


def stated_train_length(rows: list[Row]) -> int | None:
    """Returns the longest position of the RoPE models, if all state the same."""
    stated = {row.max_position_embeddings for row in rows if row.attention == "rope"}
    return stated.pop() if len(stated) == 1 else None
