"""leaderboards/: built from committed results, and known to be stale when it is."""

import dataclasses
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from golden_results import Run, four_models, scores

from patheval.cli.main import cli
from patheval.errors import ResultsError
from patheval.leaderboard import board as boards
from patheval.leaderboard import front, speed_plots, states
from patheval.leaderboard.trim import trim_results

ROOT = Path(__file__).parents[2]
SPEEDS = {
    "rows": [
        {
            "bench": "prefill",
            "shape": {
                "batch": 2,
                "seq_len": 16384,
                "num_heads": 32,
                "head_dim": 64,
                "kind": "path",
                "mean_log_fgate": None,
            },
            "impl": impl,
            "median_ms": ms,
            "ratio_to": {"fla": 5.914 / 36.5} if impl == "patheval" else {},
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
        "| path | 2 x 16k, 32 heads of 64 | **5.91** | 36.5 | 0.16 |",
        "torch 2.11.0, driver 570.1, commit 0123456789ab, [prefill.json](performance/prefill.json)",
        "### PhoneBook, published",
        "## How a row is earned",
        "## How to add yours",
    ):
        assert part in text
    for link in ("zoo/README.md", "zoo/index.html", "paper/README.md", "paper/index.html"):
        assert f"]({link})" in text
        assert (folder / link).is_file()


def write_pictures(folder):
    """Empty files in place of the plots, which take longest."""
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (folder / "README.md").read_text()):
        (folder / picture).parent.mkdir(exist_ok=True)
        (folder / picture).touch()


def state_rows(a5_steps=4000):
    """Flip-flop by two kinds and three seeds, A5 with one and two layers; recipes of 4000 steps."""
    errors = {
        ("fflm", "rope", 1, "path_fflm_sparse"): (400, 300, 500),
        ("fflm", "path", 1, "path_fflm_sparse"): (0, 0, 3),
        ("a5", "path", 1, "path_a5"): (200, 50, 50),
        ("a5", "path", 2, "path_a5"): (1, 2, 3),
    }
    return [
        states.StateRow(family, attention, layers, seed, task, wrong / 1000, wrong, 1000, 10,
                        a5_steps if family == "a5" else 4000, 4000, 60.0, "batched logits",
                        "NVIDIA H200", "2.11.0", "0" * 64, None)
        for (family, attention, layers, task), own in errors.items()
        for seed, wrong in enumerate(own, start=1)
    ]  # fmt: skip


def test_state_tracking_errors_are_shown_beside_the_zoo_and_alone(folder):
    states.write(state_rows(), folder / "results/states.jsonl")
    assert front.stale_files(folder, plots=False)
    front.write_front(folder, plots=False)
    text = (folder / "README.md").read_text()
    assert "### Table 3 in miniature: long context" in text
    assert "### Table 1 in miniature: state tracking" in text
    assert "| rope | 1 | 3 | 40 (30 to 50) |" in text
    assert "| path | 1 | 3 | 0.1 (0 to 0.3) |" in text
    assert "path 2." in text
    assert "[states.jsonl](results/states.jsonl)" in text
    shutil.rmtree(folder / "results" / "rope")
    for other in ("fox", "path", "path-fox"):
        shutil.rmtree(folder / "results" / other)
    front.write_front(folder, plots=False)
    text = (folder / "README.md").read_text()
    assert "| rope | 1 | 3 | 40 (30 to 50) |" in text
    assert "Table 3 in miniature" not in text


def test_tables_of_state_tracking_say_that_lm_eval_did_not_write_them():
    parts = list(states.markdown_parts(state_rows()))
    for place, part in enumerate(parts):
        if part.startswith("| attention"):
            assert "No results file of lm-eval" in parts[place - 1]
            assert "batched logits" in parts[place - 1]
    assert sum("path_fflm_sparse 1,000" in part for part in parts) == 1


def test_trainings_cut_short_are_told_and_nothing_is_concluded_from_them():
    whole = "\n".join(states.markdown_parts(state_rows()))
    assert "cut short" not in whole
    assert "90 % of the labels: path 2." in whole
    cut = "\n".join(states.markdown_parts(state_rows(a5_steps=875)))
    _, _, a5 = cut.partition("### A5")
    assert "path_a5 875 of 4000 with 1 layer; path_a5 875 of 4000 with 2 layers" in a5
    assert "say nothing about what a full training" in a5
    assert "| path | 2 | 3 | 0.2 (0.1 to 0.3) | 875 of 4000 |" in a5
    assert "Fewest layers" not in cut
    assert cut.count("cut short") == 1


def test_whole_trainings_beside_cut_ones_still_conclude():
    rows = state_rows()
    rows += [dataclasses.replace(r, attention="fox", steps=9) for r in rows if r.family == "a5"]
    parts = "\n".join(states.markdown_parts(rows))
    assert "90 % of the labels: path 2." in parts
    assert "recipe's: path_a5 9 of 4000 with 1 layer; path_a5 9 of 4000 with 2 layers" in parts


def test_cut_trainings_with_more_layers_leave_the_conclusion_to_fewer():
    rows = [row for row in state_rows() if row.family == "a5"]
    one, two = ([row for row in rows if row.num_layers == layers] for layers in (1, 2))
    three = [dataclasses.replace(row, num_layers=3, steps=9) for row in two]
    parts = "\n".join(states.markdown_parts(one + three))
    assert "90 % of the labels: path none of 1." in parts
    # One seed in three is right in 80 % of the labels, two in 95 %.
    assert "does not suffice" not in parts
    parts = "\n".join(states.markdown_parts(one + two + three))
    assert "90 % of the labels: path 2." in parts
    # Fewer layers than learned it were not trained to the end.
    parts = "\n".join(
        states.markdown_parts([*(dataclasses.replace(row, steps=9) for row in one), *two])
    )
    assert "Fewest layers" not in parts


def test_what_no_model_learned_is_put_down_to_the_training():
    rows = [
        dataclasses.replace(row, wrong=500 + row.seed, error=(500 + row.seed) / 1000)
        for row in state_rows()
        if row.family == "a5"
    ]
    parts = list(states.markdown_parts(rows))
    assert "90 % of the labels: path none of 1 to 2." in parts[-2]
    assert "budget does not suffice" in parts[-1]
    assert "4000 steps" in parts[-1]


def test_families_of_one_table_have_their_own_steps_and_seeds_that_learned():
    errors = {
        ("mqrar1", "rope"): (900, 0, 800),
        ("mqrar1", "path"): (0, 1, 2),
        ("mqrar2", "rope"): (900, 900, 900),
        ("mqrar2", "path"): (0, 0, 0),
    }
    example = state_rows()[0]
    rows = [
        dataclasses.replace(
            example,
            family=family,
            attention=attention,
            seed=seed,
            task=f"path_{family}",
            wrong=wrong,
            error=wrong / 1000,
            steps=4000 if family == "mqrar1" else 443,
        )
        for (family, attention), own in errors.items()
        for seed, wrong in enumerate(own, start=1)
    ]
    parts = "\n".join(states.markdown_parts(rows))
    assert "Steps made of the recipe's: path_mqrar2 443 of 4000 with 1 layer;" in parts
    assert "| path_mqrar1 4000; path_mqrar2 443 of 4000 |" in parts
    assert "90 % of the labels of path_mqrar1: rope 1 of 3, path 3 of 3." in parts
    assert "labels of path_mqrar2" not in parts


def test_damaged_state_tracking_errors_are_an_error(folder):
    path = folder / "results/states.jsonl"
    states.write(state_rows(), path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ResultsError, match=r"line 12 of .*states\.jsonl"):
        front.write_front(folder, plots=False)
    assert not (folder / "README.md").exists()


@pytest.mark.slow
def test_every_picture_of_the_front_page_is_there_or_stale(folder):
    front.write_front(folder)
    text = (folder / "README.md").read_text()
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert "zoo/plots/sweep_ruler.svg" in pictures
    assert "zoo/plots/depth_ruler_niah_single_1.svg" in pictures
    assert front.stale_files(folder) == []
    (folder / pictures[0]).unlink()
    assert front.stale_files(folder) == [folder / pictures[0]]


def test_check_passes_at_once_and_in_another_process(folder):
    front.write_front(folder, plots=False)
    assert front.stale_files(folder, plots=False) == []
    write_pictures(folder)
    arguments = [sys.executable, "-m", "patheval", "leaderboard", "front", str(folder), "--check"]
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        result = subprocess.run(arguments, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr


def test_check_finds_new_results_and_edited_files(folder):
    front.write_front(folder, plots=False)
    readme = folder / "README.md"
    readme.write_text(readme.read_text() + "edited\n")
    assert front.stale_files(folder, plots=False) == [readme]
    front.write_front(folder, plots=False)
    Run("rope", {"path_phonebook_16k": scores(3, 96)}, time="2026-06-01T10-00-00.1").write(
        folder / "results"
    )
    stale = front.stale_files(folder, plots=False)
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


def test_kinds_of_attention_have_one_colour_in_all_pictures_of_the_projects_page():
    assert front.zoo_board(ROOT / "leaderboards").models == list(speed_plots.KINDS)


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
    kept = next(small.rglob("samples_*"))
    assert "prompt 0 of seed" not in gzip.decompress(kept.read_bytes()).decode()
    again = tmp_path / "again"
    trim_results(small, again)
    assert (again / kept.relative_to(small)).read_bytes() == kept.read_bytes()


def test_trimmed_results_tell_nothing_of_the_machine(tmp_path):
    runs, small = four_models(tmp_path / "runs"), tmp_path / "small"
    path = next(runs.rglob("results_*.json"))
    data = json.loads(path.read_text())
    data["pretty_env_info"] = (
        "PyTorch version: 2.11.0\nGPU 0: NVIDIA H200\nNvidia driver version: 580.1\n"
        "cuDNN version: Probably one of the following:\n/usr/lib/libcudnn.so.9\n\n"
        "CPU:\nFlags: fpu\n\nVersions of relevant libraries:\n[pip3] numpy==2.5.2"
    )
    for config in data["configs"].values():
        config.setdefault("metadata", {})["config_source"] = "/home/me/task.yaml"
    path.write_text(json.dumps(data))
    trim_results(runs, small)
    trimmed = json.loads((small / path.relative_to(runs)).read_text())
    assert trimmed.pop("pretty_env_info") == (
        "PyTorch version: 2.11.0\nGPU 0: NVIDIA H200\nNvidia driver version: 580.1"
    )
    assert all("config_source" not in own["metadata"] for own in trimmed["configs"].values())
    assert trimmed["results"] == data["results"]


def test_trim_keeps_what_utf_8_lacks(tmp_path):
    """JSON may hold half of a surrogate pair, as an escape."""
    odd = "half \ud83d of a pair, \ud83d\ude00, \\\\ud83d and é"
    runs, small = four_models(tmp_path / "runs"), tmp_path / "small"
    path, samples = next(runs.rglob("results_*.json")), next(runs.rglob("samples_*"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": odd}))
    record, *others = map(json.loads, samples.read_text().splitlines())
    records = [record | {"filtered_resps": [odd]}, *others]
    samples.write_text("".join(json.dumps(own) + "\n" for own in records))
    trim_results(runs, small)
    results = json.loads((small / path.relative_to(runs)).read_text(encoding="utf-8"))
    odd = json.loads(json.dumps(odd))  # joins the whole pair
    assert results["chat_template"] == odd
    kept = next(small.rglob(f"{samples.name}*"))
    first = gzip.decompress(kept.read_bytes()).decode().splitlines()[0]
    assert json.loads(first)["filtered_resps"] == [odd]


def test_trim_refuses_its_own_source_and_empty_folders(tmp_path):
    runs = four_models(tmp_path / "runs")
    with pytest.raises(ResultsError, match="outside it"):
        trim_results(runs, runs / "small")
    with pytest.raises(ResultsError, match="no results file"):
        trim_results(tmp_path / "none", tmp_path / "small")
