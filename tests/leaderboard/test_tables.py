"""What a reader is told beside a board's numbers."""

import re

import pytest
from golden_results import Run, four_models, scores

from patheval.leaderboard import board as boards
from patheval.leaderboard import paper, tables
from patheval.leaderboard.page import page_data
from patheval.leaderboard.table import EFFECTIVE, EFFECTIVE_RULER, SPEEDS


def sweep(folder, **models):
    """PhoneBook of 100 prompts at 1k, 2k and 4k: right answers by model."""
    for model, right in models.items():
        tasks = {
            f"path_phonebook_{length}": scores(own, 100)
            for length, own in zip(("1k", "2k", "4k"), right, strict=True)
        }
        Run(model, tasks).write(folder)
    return boards.build([folder], name="b", baseline=next(iter(models)))


def column(board, title):
    return next(c for c in board.columns if c.title == title)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return boards.build([four_models(folder)], name="b", baseline="rope")


def test_effective_length_is_relative_to_the_models_own_start(tmp_path):
    board = sweep(tmp_path, strong=(100, 84, 84), weak=(20, 17, 17), none=(0, 0, 0))
    own = column(board, EFFECTIVE)
    values = {m: board.cell(m, own).row.value for m in board.models}
    assert values == {"strong": 1024, "weak": 4096, "none": None}
    assert {board.cell(m, own).rank for m in board.models} == {0}
    text = tables.markdown(board)
    assert re.search(r"^\| none \|.*\| none \|$", text, re.MULTILINE)
    assert "- effective length: the longest length up to which every score is at least 85 %" in text
    assert "it compares no models by itself" in text


def test_no_length_is_no_second_best():
    board = paper.paper_board()
    text = tables.markdown(board)
    assert "<u>none</u>" not in text
    # The first length always counts, and BABILong's is 0k.
    babilong = next(c for c in board.columns if c.name == f"BABILong {EFFECTIVE}")
    cell = board.cell("RoPE 760M", babilong)
    assert tables.format_value(cell.row.value, "tokens") == "0k"


def test_a_length_that_one_model_reaches_is_best_and_none_is_not_second(tmp_path):
    for model, right in {"good": 99, "bad": 50}.items():
        tasks = {
            f"path_ruler_{task}_{length}": scores(right, 100)
            for task in ("niah_single_1", "vt")
            for length in ("1k", "2k")
        }
        Run(model, tasks, metric="score").write(tmp_path)
    board = boards.build([tmp_path], name="b")
    own = column(board, EFFECTIVE_RULER)
    found = {m: (board.cell(m, own).row.value, board.cell(m, own).rank) for m in board.models}
    assert found == {"good": (2048, 1), "bad": (None, 0)}
    assert page_data(board)["cells"][board.models.index("bad")][board.columns.index(own)][0] is None


def test_every_column_that_needs_it_is_defined_in_the_readme_and_on_the_page(four):
    text = tables.markdown(four)
    about = {c["about"] for c in page_data(four)["columns"]}
    for title in ("mean", "wAvg(inc)", "wAvg(dec)", EFFECTIVE, EFFECTIVE_RULER):
        assert text.count(f"\n- {title}: ") == 1
        assert any(line.startswith(f"{title}: ") for line in about)
    for title in {c.title for c in four.columns if c.kind == "speed"}:
        assert title in SPEEDS
        assert f"\n{title}: " in text
        assert any(line.startswith(f"{title}: ") for line in about)
    assert "the reading of their prompts included" in text


def test_shares_of_tasks_are_explained_by_the_numbers_in_the_headings(four):
    text = tables.markdown(four)
    headings = set(re.findall(r"\(\d+/\d+\)", "".join(c.title for c in four.columns)))
    explained = set(re.findall(r"(\(\d+/\d+\)): the mean of ", text))
    assert headings == explained == {"(4/13)", "(2/8)", "(3/6)"}
    assert "(4/13): the mean of 4 of RULER's 13 tasks, which is not RULER's score." in text
    assert "retrieval (2/8): the mean of 2 of RULER's 8 retrieval tasks." in text


def test_the_number_of_samples_is_told(tmp_path):
    board = sweep(tmp_path, a=(1, 1, 1))
    text = "Samples behind each value of a task: 100 (PhoneBook)."
    assert tables.sample_sizes(board) == text
    assert text in tables.markdown(board)
    assert page_data(board)["sizes"] == text
    Run("a", {"path_phonebook_8k": scores(3, 48)}, time="2026-05-03T10-00-00.1").write(tmp_path)
    Run("a", {"path_ruler_vt_8k": scores(3, 9)}, time="2026-05-04T10-00-00.1").write(tmp_path)
    board = boards.build([tmp_path], name="b")
    assert tables.sample_sizes(board).endswith("9 (RULER), 48 to 100 (PhoneBook).")
    assert tables.sample_sizes(paper.paper_board()) == ""


def test_a_footnote_has_one_letter_in_all_tables_and_on_the_page(tmp_path):
    Run("a", {"path_phonebook_1k": scores(3, 96)}, config={"num_prompts_truncated": 1}).write(
        tmp_path
    )
    Run("a", {"path_phonebook_offline_1k": scores(3, 9)}, time="2026-05-04T10-00-00.1").write(
        tmp_path
    )
    board = boards.build([tmp_path], name="b")
    letters = tables.used_marks(board)
    assert letters["truncated"] == "a"
    # As the page's script letters them: in the order of what it is given.
    assert list(page_data(board)["marks"]) == list(letters)
    assert "".join(letters.values()) == "abcdefgh"[: len(letters)]
    text = tables.markdown(board)
    for mark, letter in letters.items():
        assert set(re.findall(rf"<sup>(\w)</sup> {mark}:", text)) == {letter}


def test_speeds_have_no_footnotes_about_scores(tmp_path):
    Run("a", {"path_phonebook_offline_1k": scores(3, 96)}).write(tmp_path)
    Run("b", {"path_phonebook_1k": scores(3, 96)}, config={"num_prompts_truncated": 1}).write(
        tmp_path
    )
    board = boards.build([tmp_path], name="b")
    marks = {(m, c.kind): cell.row.marks for (m, c), cell in board.cells.items()}
    assert marks["a", "score"] == ("stand-in",)
    assert marks["a", "speed"] == ()
    assert marks["b", "speed"] == ("truncated",)
