"""The row: one number with everything that is needed to judge it.

Rows are the exchange format of boards, as JSON lines and as CSV. `SCHEMA_VERSION` is raised when a
field changes its meaning or goes; new fields may appear within a version.
"""

import csv
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from patheval.errors import ResultsError

SCHEMA_VERSION = 1

Status = Literal["shown", "superseded", "recomputed", "secondary", "refused"]

STATUSES: dict[Status, str] = {
    "shown": "in the table",
    "superseded": "a newer run of the same model and task is shown",
    "recomputed": "lm-eval's value of a group, whose tasks are shown and averaged here",
    "secondary": "a further metric of a task whose main metric is shown",
    "refused": "not in the table, for the reason given",
}

MARKS: dict[str, str] = {
    "truncated": "prompts were cut to fit max_length; not compared",
    "skipped": "prompts were left out as too long and count as wrong; not compared",
    "limited": "a --limit run; not compared",
    "other-version": "another version of the task than the column's; not compared",
    "other-prompts": "other prompts than the column's, as other tokenizers give; not compared",
    "other-fewshot": "another number of examples or chat template than the column's; not compared",
    "other-length": "another max_length than the column's, which changes the score; not compared",
    "incomplete": "an average that lacks tasks; not compared",
    "max-length": "another max_length than the column's; no prompt was cut",
    "stand-in": "stand-in data, not the benchmark's own",
    "cut-middle": "the benchmark's own rule took out the middle of prompts that did not fit",
    "unchecked-length": "this backend does not record whether prompts were cut",
    "no-samples": "no scores of the single prompts (--log_samples): no paired comparison",
    "no-stderr": "no standard error is known",
    "runs-differ": "an older run of the same model and task gave another value",
    "empty": "at least half of the answers are empty",
}
"""What each mark means. Those that end in "not compared" keep a value out of all comparisons."""

NOT_COMPARED = frozenset(mark for mark, text in MARKS.items() if text.endswith("not compared"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measured or published number.

    Attributes:
        kind: "measured" by a results file, or "published" in a paper.
        status: Whether it is shown; see `STATUSES`.
        reason: Why it is refused, in one sentence; empty otherwise.
        marks: Keys of `MARKS`.
        model: Name on the board.
        attention: rope, fox, path, path-fox, or empty where the backend does not say.
        benchmark: Benchmark's key, such as ruler; see `catalogue`.
        subtask: Task within the benchmark, without its length; empty where there is one only.
        length: Length in tokens that the task's name states; None without one.
        task: lm-eval's task name.
        metric: Metric's name.
        filter: lm-eval's filter.
        unit: "share" of 0 to 1, shown in percent, or "" for other scales.
        value: The number, in lm-eval's own scale; None if the file has none that is finite.
        stderr: Standard error.
        ci_low: Lower end of the 95 % interval.
        ci_high: Upper end.
        n: Samples scored.
        n_total: Samples of the task.
        higher_is_better: Direction.
        num_fewshot: Examples in each prompt.
        task_version: The task's version.
        task_hash: lm-eval's hash of all documents and prompts.
        tokenizer: Fingerprint of the tokenizer that sized the prompts.
        data_seed: Seed of generated data.
        tokens_min: Tokens of the shortest prompt.
        tokens_max: Tokens of the longest prompt.
        max_length: Limit of prompt and answer, in tokens.
        overlength: What happens to longer prompts.
        num_truncated: Prompts cut, in the whole run that the file records.
        num_skipped: Prompts left out, in the whole run.
        num_empty: Answers without text to this task's prompts.
        model_type: lm-eval's --model.
        model_args: Its --model_args, as JSON.
        metadata: What --metadata gave the task, as JSON.
        checkpoint_sha256: Hash of the weights.
        dtype: What the model computes in.
        platform: Device.
        max_position_embeddings: Longest position that the checkpoint's config states.
        chat_template_sha: Hash of the chat template, if one was used.
        versions: Versions of lm-eval, patheval, vLLM, torch and transformers.
        commit: Commit of the folder that lm-eval ran in.
        date: When the run began, in UTC.
        seconds: Time of the whole run.
        model_seconds: Time of the run inside the model.
        prompt_tokens: Tokens that the model read in that time.
        generation_seconds: The part of it in which answers were generated.
        generated_tokens: Tokens written in that part.
        peak_memory_bytes: Most memory that tensors took on one GPU.
        file: The results file, relative to the folder that was read.
        source: Where a published number is printed.
        tasks: Tasks behind an average.
    """

    kind: Literal["measured", "published"] = "measured"
    status: Status = "shown"
    reason: str = ""
    marks: tuple[str, ...] = ()
    model: str
    attention: str = ""
    benchmark: str
    subtask: str = ""
    length: int | None = None
    task: str
    metric: str
    filter: str = "none"
    unit: str = ""
    value: float | None
    stderr: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int = 0
    n_total: int | None = None
    higher_is_better: bool = True
    num_fewshot: int | None = None
    task_version: str = ""
    task_hash: str = ""
    tokenizer: str = ""
    data_seed: int | None = None
    tokens_min: int | None = None
    tokens_max: int | None = None
    max_length: int | None = None
    overlength: str = ""
    num_truncated: int | None = None
    num_skipped: int | None = None
    num_empty: int | None = None
    model_type: str = ""
    model_args: str = ""
    metadata: str = ""
    checkpoint_sha256: str = ""
    dtype: str = ""
    platform: str = ""
    max_position_embeddings: int | None = None
    chat_template_sha: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    commit: str = ""
    date: str = ""
    seconds: float | None = None
    model_seconds: float | None = None
    prompt_tokens: int | None = None
    generation_seconds: float | None = None
    generated_tokens: int | None = None
    peak_memory_bytes: int | None = None
    file: str = ""
    source: str = ""
    tasks: tuple[str, ...] = ()

    @property
    def is_compared(self) -> bool:
        """Whether the number takes part in comparisons."""
        return self.status == "shown" and not NOT_COMPARED.intersection(self.marks)


_DEFAULTS = {
    field.name: {} if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(Row)
    if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
}


def to_json_lines(rows: Iterable[Row]) -> str:
    """Writes one JSON object per row with the schema's version; defaults are left out."""
    lines = []
    for row in rows:
        own = {name: value for name, value in vars(row).items() if value != _DEFAULTS.get(name)}
        record = {"schema": SCHEMA_VERSION, "value": row.value, **own}
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    return "".join(lines)


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """Writes the same fields as a table; lists are joined by spaces, versions are JSON."""
    names = [field.name for field in dataclasses.fields(Row)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["schema", *names])
        for row in rows:
            writer.writerow([SCHEMA_VERSION, *(_csv_cell(getattr(row, name)) for name in names)])


def read_json_lines(path: Path) -> list[Row]:
    """Reads rows.

    Raises:
        ResultsError: The file is missing, damaged, or of another schema version.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be read ({error.strerror}); name the folder of a board that "
            "`patheval leaderboard build` wrote"
        ) from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            record: dict[str, Any] = json.loads(line)
            version = record.pop("schema")
            if version == SCHEMA_VERSION:
                lists = {name: tuple(record.get(name, ())) for name in ("marks", "tasks")}
                rows.append(Row(**record | lists))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ResultsError(
                f"line {number} of {path} is no row ({error}); build the board again"
            ) from error
        if version != SCHEMA_VERSION:
            raise ResultsError(
                f"line {number} of {path} has schema {version!r} and this patheval reads "
                f"{SCHEMA_VERSION}; build the board again"
            )
    return rows


def _csv_cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value
