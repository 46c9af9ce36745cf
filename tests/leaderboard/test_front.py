"""leaderboards/: built from committed results, and known to be stale when it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from golden_results import Run, four_models, scores

from patheval.cli.main import cli
from patheval.errors import ResultsError
from patheval.leaderboard import board as boards
from patheval.leaderboard import front
from patheval.leaderboard.trim import trim_results

ROOT = Path(__file__).parents[2]
SPEEDS = {
    "rows": [
        {
            "bench": "prefill",
            "shape": {"batch": 2, "seq_len": 16384},
            "impl": impl,
            "median_ms": ms,
            "ratio_to": {},
            "card": "NVIDIA H200",
            "driver": "570.1",
            "versions": {"torch": "2.11.0"},
            "commit": "0123456789abcdef",
        }
        for impl, ms in (("patheval", 5.914), ("fla", 36.5))
    ]
}


@pytest.fixture
def folder(tmp_path):
    """A leaderboards folder with results and speeds."""
    runs = tmp_path / "runs"
    four_models(runs)
    trim_results(runs, tmp_path / "boards/results")
    performance = tmp_path / "boards/performance"
    performance.mkdir()
    (performance / "prefill.json").write_text(json.dumps(SPEEDS))
    return tmp_path / "boards"


def test_the_front_page_shows_zoo_speeds_and_paper(folder):
    front.write_front(folder, plots=False)
    text = (folder / "README.md").read_text()
    for part in (
        "| **91.7** ±2.8",
        "Difference from rope:",
        "| batch 2, seq_len 16384 | **5.91** | 36.5 |",
        "torch 2.11.0, driver 570.1, commit 0123456789ab, [prefill.json](performance/prefill.json)",
        "### PhoneBook, published",
        "## How a row is earned",
        "## How to add yours",
    ):
        assert part in text
    for link in ("zoo/README.md", "zoo/index.html", "paper/README.md", "paper/index.html"):
        assert f"]({link})" in text
        assert (folder / link).is_file()


def test_check_passes_at_once_and_in_another_process(folder):
    front.write_front(folder, plots=False)
    assert front.stale_files(folder) == []
    arguments = [sys.executable, "-m", "patheval", "leaderboard", "front", str(folder), "--check"]
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        result = subprocess.run(arguments, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr


def test_check_finds_new_results_and_edited_files(folder):
    front.write_front(folder, plots=False)
    readme = folder / "README.md"
    readme.write_text(readme.read_text() + "edited\n")
    assert front.stale_files(folder) == [readme]
    front.write_front(folder, plots=False)
    Run("rope", {"path_phonebook_16k": scores(3, 96)}, time="2026-06-01T10-00-00.1").write(
        folder / "results"
    )
    stale = front.stale_files(folder)
    assert set(stale) == {readme, folder / "zoo/rows.jsonl", folder / "zoo/README.md"}
    result = CliRunner().invoke(cli, ["leaderboard", "front", str(folder), "--check"])
    assert result.exit_code == 1
    assert f"stale: {readme}" in result.output


def test_nothing_measured_yet(tmp_path):
    front.write_front(tmp_path, plots=False)
    text = (tmp_path / "README.md").read_text()
    assert "No measured results are published yet." in text
    assert "No measured speeds are published yet." in text
    assert not (tmp_path / "zoo").exists()


def test_committed_results_must_be_whole(folder):
    Run("rope", {"path_phonebook_1k": [1.0]}, limit=1, originals={"path_phonebook_1k": 96},
        time="2026-06-01T10-00-00.1").write(folder / "results")  # fmt: skip
    with pytest.raises(ResultsError, match="1 of 96 samples"):
        front.write_front(folder, plots=False)


@pytest.mark.parametrize("text", ["", "[]", '{"rows": [{"bench": "x"}]}', '{"rows": [3]}'])
def test_damaged_speeds_are_an_error(folder, text):
    (folder / "performance/prefill.json").write_text(text)
    with pytest.raises(ResultsError, match="no file of speeds"):
        front.write_front(folder, plots=False)


def test_the_projects_own_boards_are_not_stale():
    assert front.stale_files(ROOT / "leaderboards") == []


def test_trimmed_results_give_the_same_board(tmp_path):
    """Values, intervals, paired differences and depth maps need no prompts."""
    from patheval.leaderboard.page import page_data

    runs, small = four_models(tmp_path / "runs"), tmp_path / "small"
    before, after = trim_results(runs, small)
    assert after < before
    whole = boards.build([runs], name="x", baseline="rope")
    trimmed = boards.build([small], name="x", baseline="rope")
    assert list(whole.cells) == list(trimmed.cells)
    for key, cell in whole.cells.items():
        assert trimmed.cells[key].estimate == cell.estimate
        assert trimmed.cells[key].difference == cell.difference
    assert page_data(trimmed)["heat"] == page_data(whole)["heat"]
    assert "prompt 0 of seed" not in next(small.rglob("samples_*")).read_text()


def test_trim_refuses_its_own_source_and_empty_folders(tmp_path):
    runs = four_models(tmp_path / "runs")
    with pytest.raises(ResultsError, match="outside it"):
        trim_results(runs, runs / "small")
    with pytest.raises(ResultsError, match="no results file"):
        trim_results(tmp_path / "none", tmp_path / "small")
