"""`patheval leaderboard` from the command line."""

import csv
import json
import re
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner
from golden_results import Run, four_models, scores

from patheval.cli.main import cli
from patheval.errors import PrerequisiteError, ResultsError
from patheval.leaderboard.schema import Row, read_json_lines


def invoke(*arguments, **options):
    return CliRunner().invoke(cli, ["leaderboard", *map(str, arguments)], **options)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    four_models(folder / "runs")
    Run("a|b_c*", {"path_phonebook_1k": scores(5, 96)}).write(folder / "runs")
    result = invoke(
        "build", folder / "runs", "--baseline", "rope", "--out", folder / "board",
        "--rename", "path=PaTH 100%", "--trained-at", "2k", catch_exceptions=False,
    )  # fmt: skip
    assert result.exit_code == 0
    assert "5 models" in result.output
    return folder / "board"


def test_every_file_is_there(built):
    names = {path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file()}
    assert names >= {
        *("README.md", "index.html", "board.json", "rows.jsonl", "rows.csv", "scores.jsonl.gz"),
        *("tables/table.csv", "tables/differences.csv", "tables/ruler.tex", "tables/phonebook.tex"),
        *("plots/sweep_ruler.svg", "plots/sweep_ruler.png", "plots/depth_ruler_vt.svg"),
    }


def test_rows_come_back_as_written_and_csv_holds_the_same(built):
    rows = read_json_lines(built / "rows.jsonl")
    assert all(isinstance(row, Row) for row in rows)
    with (built / "rows.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(rows)
    for row, line in zip(rows, table, strict=True):
        assert (line["model"], line["task"], line["schema"]) == (row.model, row.task, "1")
        assert float(line["value"]) == row.value


def test_csv_tables_hold_value_error_and_difference(built):
    with (built / "tables/table.csv").open(newline="") as file:
        values = {line["model"]: line for line in csv.DictReader(file)}
    with (built / "tables/differences.csv").open(newline="") as file:
        differences = {line["model"]: line for line in csv.DictReader(file)}
    gap = float(values["fox"]["PhoneBook 1k value"]) - float(values["rope"]["PhoneBook 1k value"])
    assert float(differences["fox"]["PhoneBook 1k difference"]) == pytest.approx(gap)
    assert differences["rope"]["PhoneBook 1k difference"] == ""
    assert values["a|b_c*"]["RULER 1k (4/13) value"] == ""


def test_markdown_tables_are_whole_and_escape_names(built):
    text = (built / "README.md").read_text()
    for table in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}
        assert len(widths) == 1
    # An underscore inside a word is no emphasis.
    assert r"a\|b_c\*" in text
    assert "**91.7** ±2.8" in text


def test_latex_tables_are_balanced_and_escaped(built):
    text = (built / "tables/phonebook.tex").read_text()
    rows = [
        line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line
    ]
    assert len({line.count("&") for line in rows}) == 1
    assert r"PaTH 100\%" in text
    assert r"a|b\_c*" in text
    assert text.count("{") == text.count("}")
    assert r"\textbf{91.7}" in text


def test_plots_are_svg_and_png(built):
    for path in (built / "plots").iterdir():
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag.endswith("svg")
        else:
            assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_second_build_writes_the_same_bytes(built, tmp_path):
    again = tmp_path / "board"
    invoke(
        "build", built.parent / "runs", "--baseline", "rope", "--out", again,
        "--rename", "path=PaTH 100%", "--trained-at", "2k",
    )  # fmt: skip
    for path in built.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (again / path.relative_to(built)).read_bytes(), path.name


def test_refusals_are_told_and_strict_fails(tmp_path):
    Run("rope", {"path_phonebook_1k": scores(5, 96)}).write(tmp_path / "runs")
    Run("path", {"path_phonebook_1k": [1.0]}, originals={"path_phonebook_1k": 96}).write(
        tmp_path / "runs"
    )
    (tmp_path / "runs/results_2026-05-01T10-00-00.1.json").write_text("{")
    arguments = ("build", tmp_path / "runs", "--out", tmp_path / "board", "--no-plots")
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "refused: path_phonebook_1k of runs/path/" in result.output
    assert "not read in full: runs/results_2026-05-01T10-00-00.1.json" in result.output
    board = json.loads((tmp_path / "board/board.json").read_text())
    assert len(board["problems"]) == 1
    assert "1 of 96 samples" in (tmp_path / "board/README.md").read_text()
    strict = invoke(*arguments, "--strict")
    assert isinstance(strict.exception, ResultsError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rename", "x"), "OLD=NEW"),
        (("--trained-at", "4x"), "write tokens or 4k"),
    ],
)
def test_bad_options(tmp_path, arguments, message):
    result = invoke("build", tmp_path, "--out", tmp_path / "b", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_paper_alone_and_beside_runs(built, tmp_path):
    assert invoke("paper", "--out", tmp_path / "paper").exit_code == 0
    assert (tmp_path / "paper/rows.jsonl").is_file()
    assert invoke("paper", built.parent / "runs", "--out", tmp_path / "mine").exit_code == 0
    assert "PhoneBook 4k" in (tmp_path / "mine/paper.md").read_text()


def test_push_lists_by_default_and_uploads_when_asked(built, monkeypatch):
    calls = []

    class Hub:
        def create_repo(self, *arguments, **options):
            calls.append(("create", arguments, options))

        def upload_folder(self, **options):
            calls.append(("upload", options))
            return type("Commit", (), {"commit_url": "https://hub/commit"})

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    result = invoke("push", built, "me/board")
    assert "nothing was uploaded" in result.output
    assert "rows.jsonl" in result.output
    assert not calls
    result = invoke("push", built, "me/board", "--upload", "--private")
    assert "https://hub/commit" in result.output
    (_, arguments, options), (_, upload) = calls
    assert (arguments, options["repo_type"], options["private"]) == (("me/board",), "dataset", True)
    assert (upload["repo_id"], upload["folder_path"]) == ("me/board", built)


def test_push_without_a_network_or_a_board(built, tmp_path, monkeypatch):
    result = invoke("push", built, "me/board", "--upload")
    assert isinstance(result.exception, PrerequisiteError)
    assert "hf auth login" in str(result.exception)
    assert isinstance(invoke("push", tmp_path, "me/board").exception, ResultsError)
