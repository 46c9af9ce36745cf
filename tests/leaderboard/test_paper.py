"""The published numbers: transcribed right, apart from measured ones, with derived errors."""

import pytest
from golden_results import four_models

from patheval.leaderboard import board as boards
from patheval.leaderboard import paper
from patheval.leaderboard.table import AVERAGE

ROWS = paper.published_rows()


def values(benchmark, subtask="", table="", length=None):
    return {
        (row.model, row.length): 100 * row.value
        for row in ROWS
        if (row.benchmark, row.subtask) == (benchmark, subtask)
        and row.source.endswith(table)
        and length in (None, row.length)
    }


def test_every_row_is_published_and_has_its_source():
    assert {row.kind for row in ROWS} == {"published"}
    assert {row.source.rpartition(" ")[2] for row in ROWS} == set("123457")
    # Tables 1, 2, 3, 4, 5 and 7, by models and columns.
    assert len(ROWS) == 4 * 3 + 4 * 9 + 4 * 13 + 4 * 3 + 2 * 10 + 4 * 33


def test_phonebook_values_are_of_96_prompts_and_babilong_of_500():
    for value in values("phonebook").values():
        assert abs(value * 96 / 100 - round(value * 96 / 100)) < 0.1
    for value in values("babilong", AVERAGE).values():
        assert abs(value * 5 - round(value * 5)) < 1e-6


def test_averages_of_table_7_are_those_of_table_3():
    printed = values("longbench_e", AVERAGE)
    sets = {row.subtask for row in ROWS if row.source.endswith("Table 7")}
    assert len(sets) == 11
    for key, value in printed.items():
        mean = sum(values("longbench_e", name)[key] for name in sets) / 11
        assert mean == pytest.approx(value, abs=0.11)


def test_averages_of_table_2():
    printed = values("zero_shot", AVERAGE)
    for model in {model for model, _ in printed}:
        own = [
            100 * row.value
            for row in ROWS
            if row.model == model and row.benchmark == "zero_shot" and row.metric.startswith("acc")
            and row.subtask != AVERAGE
        ]  # fmt: skip
        assert len(own) == 6
        assert sum(own) / 6 == pytest.approx(printed[model, None], abs=0.051)


@pytest.mark.parametrize(
    ("benchmark", "model", "length", "stderr"),
    [
        ("phonebook", "RoPE 760M", 2048, 4.8),
        ("phonebook", "PaTH 760M", 4096, 4.1),
        ("phonebook", "PaTH-FoX 760M", 4096, 2.5),
        ("babilong", "RoPE 760M", 0, 2.1),
        ("babilong", "PaTH-FoX 760M", 16384, 1.3),
    ],
)
def test_derived_standard_errors(benchmark, model, length, stderr):
    (row,) = [r for r in ROWS if (r.benchmark, r.model, r.length) == (benchmark, model, length)]
    assert 100 * row.stderr == pytest.approx(stderr, abs=0.06)


def test_values_of_unknown_samples_have_no_error():
    assert all(row.stderr is None for row in ROWS if row.n == 0)
    assert all(row.stderr is None for row in ROWS if row.benchmark == "ruler")


def test_board_marks_the_papers_best():
    board = paper.paper_board()
    column = next(c for c in board.columns if c.name == "PhoneBook 8k")
    assert board.cell("PaTH-FoX 760M", column).rank == 1
    assert board.cell("PaTH-FoX 760M", column).difference.method == "unpaired"
    ruler = next(c for c in board.columns if c.name == "RULER 4k")
    assert (ruler.kind, board.cell("PaTH 760M", ruler).rank) == ("average", 1)


def test_line_up_takes_equal_columns_of_equal_attention(tmp_path):
    board = boards.build([four_models(tmp_path)], name="mine")
    text = paper.line_up(board)
    line = "| PhoneBook 4k | path-fox | 93.8 ±2.5 | path-fox | 82.3 ±3.9 | \u221211.5 ±4.6 |"
    assert line in text.splitlines()
    assert "| RULER" not in text  # Four of thirteen tasks are not RULER's average.
    assert text.count("Zero-shot piqa") == 4


def test_line_up_without_a_common_column_says_so(tmp_path):
    board = boards.build([four_models(tmp_path)], name="mine")
    board.rows = [row for row in board.rows if row.length == 512]
    assert "No column of the board" in paper.line_up(board)
