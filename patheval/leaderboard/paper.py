"""Numbers printed in the PaTH paper, as rows of their own kind, and beside a user's runs.

Yang et al., "PaTH Attention" (arXiv 2505.16381), tables 1 to 5 and 7. The paper gives neither
sample sizes nor errors. Where the printed digits or the test set tell the number of samples, the
standard error of a share p is sqrt(p (1 - p) / n); elsewhere there is none.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from . import catalogue, tables
from .board import Board
from .schema import Row
from .table import AVERAGE, Column
from .uncertainty import Estimate, from_reported, unpaired_difference

SOURCE = "arXiv 2505.16381"

_ATTENTION = {"RoPE": "rope", "FoX": "fox", "PaTH": "path", "PaTH-FoX": "path-fox", "SBA": ""}
_FOUR = ("RoPE", "FoX", "PaTH", "PaTH-FoX")

# Columns: benchmark, subtask, length, metric, scale ("%" or ""), n; then the models' values.
_Line = tuple[str, str, str, str, str, int, tuple[float, ...]]

_TABLE_1_MODELS = ("RoPE", "SBA", "FoX", "PaTH")
# 0.0001 % needs at least a million reads; the test set's size is not given.
_TABLE_1: tuple[_Line, ...] = (
    ("fflm", "iid", "", "error", "%", 0, (6.9, 9.6, 8.3, 0)),
    ("fflm", "sparse", "", "error", "%", 0, (40.3, 38.9, 36.3, 0.0001)),
    ("fflm", "dense", "", "error", "%", 0, (0.01, 0, 0, 0)),
)

# n: the sizes of the test sets that lm-eval scores.
_TABLE_2: tuple[_Line, ...] = (
    ("zero_shot", "wikitext", "", "word_perplexity", "", 0, (19.01, 18.33, 18.03, 17.35)),
    ("zero_shot", "lambada_openai", "", "perplexity", "", 0, (19.77, 18.28, 16.79, 16.23)),
    ("zero_shot", "lambada_openai", "", "acc", "%", 5153, (40.4, 41.7, 44.0, 44.1)),
    ("zero_shot", "piqa", "", "acc", "%", 1838, (70.2, 70.8, 70.5, 70.8)),
    ("zero_shot", "hellaswag", "", "acc_norm", "%", 10042, (50.3, 50.9, 51.5, 52.2)),
    ("zero_shot", "winogrande", "", "acc", "%", 1267, (54.9, 57.1, 56.0, 57.1)),
    ("zero_shot", "arc_easy", "", "acc", "%", 2376, (67.2, 65.7, 68.9, 67.3)),
    ("zero_shot", "arc_challenge", "", "acc_norm", "%", 1172, (33.3, 32.6, 34.4, 33.9)),
    ("zero_shot", AVERAGE, "", "acc", "%", 0, (52.7, 53.1, 54.2, 54.2)),
)

# n: every PhoneBook value is a multiple of 1/96 and every BABILong value one of 1/500, as 96
# prompts and 5 tasks of 100 samples give. RULER's and LongBench-E's cannot be told.
_TABLE_3: tuple[_Line, ...] = (
    ("ruler", AVERAGE, "4k", "score", "%", 0, (35.7, 41.6, 44.6, 42.3)),
    ("ruler", AVERAGE, "8k", "score", "%", 0, (1.3, 29.5, 34.8, 34.0)),
    ("ruler", AVERAGE, "16k", "score", "%", 0, (0.0, 4.9, 18.7, 22.6)),
    ("babilong", AVERAGE, "0k", "score", "%", 500, (33.0, 23.8, 33.8, 28.6)),
    ("babilong", AVERAGE, "4k", "score", "%", 500, (13.8, 20.2, 24.6, 25.6)),
    ("babilong", AVERAGE, "8k", "score", "%", 500, (0.0, 8.2, 16.8, 19.2)),
    ("babilong", AVERAGE, "16k", "score", "%", 500, (0.0, 4.4, 11.6, 10.0)),
    ("phonebook", "", "2k", "exact_match", "%", 96, (32.3, 62.5, 55.2, 89.6)),
    ("phonebook", "", "4k", "exact_match", "%", 96, (15.6, 38.5, 20.8, 93.8)),
    ("phonebook", "", "8k", "exact_match", "%", 96, (0.0, 17.7, 0.0, 66.6)),
    ("longbench_e", AVERAGE, "4k", "score", "%", 0, (18.7, 23.4, 27.2, 23.4)),
    ("longbench_e", AVERAGE, "8k", "score", "%", 0, (3.7, 16.9, 22.5, 21.8)),
    ("longbench_e", AVERAGE, "16k", "score", "%", 0, (2.0, 11.7, 14.4, 16.1)),
)

_TABLE_7_MODELS = ("FoX", "PaTH-FoX", "PaTH", "RoPE")
_TABLE_7_LENGTHS = ("4k", "8k", "16k")
# One line for each set, the three buckets one after the other. TREC's values fit 60, 80 and 160
# samples.
_TABLE_7: Mapping[str, Sequence[tuple[float, ...]]] = {
    "2wikimqa": ((21.0, 23.7, 28.7, 23.9), (15.3, 22.5, 20.8, 0.9), (9.4, 8.4, 7.3, 0.1)),
    "hotpotqa": ((20.3, 16.2, 19.0, 25.2), (9.3, 16.1, 22.8, 0.8), (5.6, 7.7, 8.8, 0.4)),
    "multifieldqa_en": (
        *((39.1, 39.6, 38.6, 18.0), (24.9, 31.4, 27.2, 5.1), (16.0, 19.5, 19.2, 1.9)),
    ),
    "qasper": ((22.4, 24.6, 25.9, 15.1), (14.9, 19.8, 16.8, 1.8), (7.0, 10.1, 10.6, 1.9)),
    "multi_news": ((9.1, 6.9, 12.1, 10.2), (7.3, 9.8, 9.6, 3.1), (6.1, 8.3, 8.3, 1.7)),
    "gov_report": ((14.4, 10.2, 22.3, 12.4), (14.5, 13.6, 17.9, 4.9), (5.9, 11.9, 11.6, 2.5)),
    "trec": ((35.0, 36.7, 40.0, 23.3), (27.5, 26.3, 35.0, 1.2), (20.6, 26.3, 20.0, 0.0)),
    "triviaqa": ((33.2, 28.9, 36.0, 21.8), (18.2, 27.6, 32.0, 2.8), (13.7, 31.6, 18.4, 0.4)),
    "samsum": ((21.4, 27.1, 26.8, 19.3), (16.9, 27.6, 23.6, 3.2), (9.1, 15.7, 15.6, 0.7)),
    "lcc": ((19.2, 21.4, 22.3, 22.1), (18.8, 23.3, 18.6, 7.9), (18.2, 18.9, 19.0, 4.8)),
    "repobench-p": ((21.8, 22.7, 27.3, 14.6), (18.4, 22.5, 22.7, 9.2), (17.5, 19.3, 19.2, 7.6)),
}
_TREC_SAMPLES = (60, 80, 160)

_TABLE_4_MODELS = ("base", "RoPE", "FoX", "PaTH")
_TABLE_4: tuple[_Line, ...] = (
    ("converted_smollm2", "gsm8k", "", "score", "%", 1319, (8.6, 19.9, 15.5, 20.1)),
    ("converted_smollm2", "humaneval", "", "score", "%", 164, (16.4, 23.1, 21.3, 25.6)),
    ("converted_smollm2", "mbpp_plus", "", "score", "%", 0, (38.6, 47.1, 48.2, 51.3)),
)

_TABLE_5_MODELS = ("RoPE", "PaTH")
# n: from the printed decimals, which are whole numbers of these test sets.
_TABLE_5: tuple[_Line, ...] = (
    ("converted_qwen", "mmlu", "", "score", "%", 0, (74.21, 73.28)),
    ("converted_qwen", "hellaswag", "", "score", "%", 0, (85.20, 84.83)),
    ("converted_qwen", "winogrande", "", "score", "%", 1267, (71.51, 68.90)),
    ("converted_qwen", "gpqa_diamond", "", "score", "%", 198, (33.33, 34.34)),
    ("converted_qwen", "theoremqa", "", "score", "%", 800, (18.12, 21.88)),
    ("converted_qwen", "gsm8k", "", "score", "%", 1319, (80.29, 80.67)),
    ("converted_qwen", "math", "", "score", "%", 5000, (69.10, 65.38)),
    ("converted_qwen", "humaneval", "", "score", "%", 164, (82.32, 77.44)),
    ("converted_qwen", "mbpp", "", "score", "%", 257, (74.71, 75.10)),
    ("converted_qwen", "ruler", "4k", "score", "%", 0, (94.37, 93.24)),
)


def published_rows() -> list[Row]:
    """Returns every number of the paper's tables 1 to 5 and 7, as rows of kind "published"."""
    return [
        *_rows("Table 1", "1 layer", _TABLE_1_MODELS, _TABLE_1),
        *_rows("Table 2", "760M", _FOUR, _TABLE_2),
        *_rows("Table 3", "760M", _FOUR, _TABLE_3),
        *_rows("Table 4", "SmolLM2-1.7B", _TABLE_4_MODELS, _TABLE_4),
        *_rows("Table 5", "Qwen2.5-7B-Instruct", _TABLE_5_MODELS, _TABLE_5),
        *_rows("Table 7", "760M", _TABLE_7_MODELS, _table_7_lines()),
    ]


def _table_7_lines() -> Iterator[_Line]:
    for name, buckets in _TABLE_7.items():
        for label, n, values in zip(_TABLE_7_LENGTHS, _TREC_SAMPLES, buckets, strict=True):
            samples = n if name == "trec" else 0
            yield "longbench_e", name, label, "score", "%", samples, values


def _rows(
    table: str, size: str, models: Sequence[str], lines: Sequence[_Line] | Iterator[_Line]
) -> Iterator[Row]:
    for benchmark, subtask, label, metric, scale, n, values in lines:
        for model, printed in zip(models, values, strict=True):
            value = printed / 100 if scale else printed
            estimate = from_reported(value, None, n, is_share=bool(scale))
            stderr = math.sqrt(value * (1 - value) / n) if n and scale else None
            yield Row(
                kind="published",
                model=f"{model} {size}",
                attention=_ATTENTION.get(model, ""),
                benchmark=benchmark,
                subtask=subtask,
                length=catalogue.tokens(label) if label else None,
                task="",
                metric=metric,
                unit="share" if scale else "",
                value=value,
                stderr=stderr,
                ci_low=estimate.low,
                ci_high=estimate.high,
                n=n,
                higher_is_better=metric not in ("error", "perplexity", "word_perplexity"),
                source=f"{SOURCE}, {table}",
            )


def paper_board() -> Board:
    """Returns the board of the published numbers alone."""
    return Board("The PaTH paper's numbers", "RoPE 760M", published_rows(), train_length=4096)


NOTHING_IN_COMMON = (
    "No column of the board is one of the paper's for the same kind of attention: it prints RULER, "
    "BABILong, PhoneBook and LongBench-E from 2k to 16k, and zero-shot tasks."
)


def line_up(board: Board) -> str:
    """Writes published and measured values side by side, in Markdown.

    Models are matched by their kind of attention. A board's models are in general not the paper's:
    the report says how far apart they are, not whether one of them is wrong.

    Args:
        board: The user's board.
    """
    published = [row for row in published_rows() if row.attention and "760M" in row.model]
    lines = [
        f"# {board.name} beside the PaTH paper",
        f"Published: {SOURCE}, 760M models trained on 50B tokens at 4096. ± is one standard error; "
        "the paper prints none, and those here follow from the number of samples where it can be "
        "told. `n`: the difference is noise; without it, it is larger than the choice of "
        "samples explains.",
        "| benchmark | attention | published | model | measured | difference |\n"
        "| --- | --- | ---: | --- | ---: | ---: |",
    ]
    found = 0
    for row in published:
        columns = [column for column in board.columns if _is_same(column, row)]
        for column in columns:
            for model in board.models:
                cell = board.cell(model, column)
                if cell is None or cell.row.attention != row.attention:
                    continue
                found += 1
                theirs = Estimate(row.value or 0.0, row.stderr, row.ci_low, row.ci_high, row.n)
                difference = unpaired_difference(cell.estimate, theirs)
                if difference is None:
                    gap = cell.estimate.value - theirs.value
                    sign = "+" if gap >= 0 else tables.MINUS
                    text = sign + tables.format_value(abs(gap), row.unit)
                else:
                    text = tables.format_difference(difference, row.unit)
                marks = f" ({', '.join(cell.row.marks)})" if cell.row.marks else ""
                cells = [
                    column.name,
                    row.attention,
                    _with_error(row.value, row.stderr, row.unit),
                    model,
                    _with_error(cell.estimate.value, cell.estimate.stderr, row.unit) + marks,
                    text,
                ]
                lines[2] += f"\n| {' | '.join(cells)} |"
    if not found:
        lines[2] = NOTHING_IN_COMMON
    return "\n\n".join(lines) + "\n"


def _is_same(column: Column, row: Row) -> bool:
    same = (column.benchmark, column.subtask, column.length)
    if same != (row.benchmark, row.subtask, row.length):
        return False
    if column.share_of_tasks:
        return False  # An average of some tasks is not the paper's average.
    return row.metric in ("score", column.metric) or column.kind == "average"


def _with_error(value: float | None, stderr: float | None, unit: str) -> str:
    error = tables.format_error(stderr, unit)
    return tables.format_value(value, unit) + (f" ±{error}" if error else "")
