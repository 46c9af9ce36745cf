"""What changed between two boards."""

import pytest
from click.testing import CliRunner
from golden_results import Run, four_models, scores

from patheval.cli.main import cli
from patheval.errors import ResultsError
from patheval.leaderboard import board as boards
from patheval.leaderboard import diff
from patheval.leaderboard.write import write_board

TASK = "path_phonebook_1k"


def board(folder, *runs):
    for run in runs:
        run.write(folder / "runs")
    made = boards.build([folder / "runs"], name="b")
    write_board(made, folder / "board", plots=False)
    return folder / "board"


def flipped(values, lost, gained):
    """Scores of a later model: so many right answers lost, so many wrong ones gained."""
    values = list(values)
    right = [i for i, value in enumerate(values) if value]
    wrong = [i for i, value in enumerate(values) if not value]
    for i in right[:lost] + wrong[:gained]:
        values[i] = 1 - values[i]
    return values


BEFORE = scores(60, 96)


@pytest.mark.parametrize(
    ("lost", "gained", "kind", "status"),
    [
        (0, 0, "same", 0),
        (3, 3, "same", 0),
        (3, 2, "within noise", 0),
        (10, 0, "worse", 1),
        (0, 10, "better", 0),
    ],
)
def test_moves_beyond_two_standard_errors(tmp_path, lost, gained, kind, status):
    a = board(tmp_path / "a", Run("m", {TASK: BEFORE}))
    b = board(tmp_path / "b", Run("m", {TASK: flipped(BEFORE, lost, gained)}, sha256="2" * 64))
    (change,) = diff.compare(a, b, sigmas=2)
    assert change.kind == kind
    assert change.difference.method == "mcnemar"
    result = CliRunner().invoke(cli, ["leaderboard", "diff", str(a), str(b)])
    assert result.exit_code == status, result.output
    assert f"1 {kind}" in result.output


def test_the_number_of_standard_errors_counts(tmp_path):
    a = board(tmp_path / "a", Run("m", {TASK: BEFORE}))
    b = board(tmp_path / "b", Run("m", {TASK: flipped(BEFORE, 10, 0)}))
    stderr = diff.compare(a, b, sigmas=2)[0].difference.stderr
    moved = 10 / 96 / stderr
    assert diff.compare(a, b, sigmas=moved - 0.01)[0].kind == "worse"
    assert diff.compare(a, b, sigmas=moved + 0.01)[0].kind == "within noise"


def test_small_moves_are_counted_apart_and_listed_when_asked(tmp_path):
    a = board(tmp_path / "a", Run("m", {TASK: BEFORE}))
    b = board(tmp_path / "b", Run("m", {TASK: flipped(BEFORE, 3, 2)}))
    arguments = ["leaderboard", "diff", str(a), str(b)]
    output = CliRunner().invoke(cli, arguments).output
    assert output == "1 values: 1 within noise; --all lists every one\n"
    output = CliRunner().invoke(cli, [*arguments, "--all"]).output
    assert "within noise" in output.partition("1 values")[0]
    assert output.endswith("1 values: 1 within noise\n")


def test_lower_is_better_metrics_regress_upwards(tmp_path):
    error = {"path_fflm_sparse": [0.0] * 90 + [1.0] * 6}
    worse = {"path_fflm_sparse": [0.0] * 60 + [1.0] * 36}
    down = {"top": {"higher_is_better": {"path_fflm_sparse": {"error": False}}}}
    a = board(tmp_path / "a", Run("m", error, metric="error", **down))
    b = board(tmp_path / "b", Run("m", worse, metric="error", **down))
    assert [change.kind for change in diff.compare(a, b, sigmas=2)] == ["worse"]


def test_new_gone_and_not_comparable(tmp_path):
    a = board(tmp_path / "a", Run("m", {TASK: BEFORE, "path_phonebook_2k": BEFORE}))
    b = board(tmp_path / "b", Run("m", {TASK: BEFORE, "path_phonebook_4k": BEFORE}, seed=5))
    kinds = {c.column.title: (c.kind, c.marks) for c in diff.compare(a, b, sigmas=2)}
    assert kinds["1k"] == ("not comparable", ("other-prompts",))
    assert kinds["2k"] == ("gone", ())
    assert kinds["4k"] == ("new", ())
    arguments = ["leaderboard", "diff", str(a), str(b)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert CliRunner().invoke(cli, [*arguments, "--strict"]).exit_code == 1


@pytest.mark.parametrize("sigmas", [-1, float("nan"), float("inf")])
def test_a_number_of_errors_that_is_none_is_refused(tmp_path, sigmas):
    with pytest.raises(ResultsError, match="--sigmas is"):
        diff.compare(tmp_path, tmp_path, sigmas=sigmas)


def test_without_tolerance_any_loss_is_a_regression_and_no_change_is_none(tmp_path):
    a = board(tmp_path / "a", Run("m", {TASK: BEFORE}))
    b = board(tmp_path / "b", Run("m", {TASK: flipped(BEFORE, 1, 0)}))
    assert [change.kind for change in diff.compare(a, b, sigmas=0)] == ["worse"]
    assert [change.kind for change in diff.compare(a, a, sigmas=0)] == ["same"]


def test_without_stored_scores_the_comparison_is_unpaired(tmp_path):
    a = board(tmp_path / "a", Run("m", {TASK: BEFORE}, log_samples=False))
    b = board(tmp_path / "b", Run("m", {TASK: flipped(BEFORE, 10, 0)}))
    (change,) = diff.compare(a, b, sigmas=2)
    assert (change.kind, change.difference.method) == ("within noise", "unpaired")


def test_averages_are_compared_and_equal_boards_are_equal(tmp_path):
    a = tmp_path / "a"
    write_board(boards.build([four_models(tmp_path / "r")], name="x"), a, plots=False)
    changes = diff.compare(a, a, sigmas=2)
    assert {change.kind for change in changes} == {"same"}
    assert {"average", "summary", "family", "score"} <= {c.column.kind for c in changes}
    assert {c.model for c in changes} == {"rope", "fox", "path", "path-fox"}


def test_models_of_other_names(tmp_path):
    a = board(tmp_path / "a", Run("step-1", {TASK: BEFORE}))
    b = board(tmp_path / "b", Run("step-2", {TASK: BEFORE}))
    assert [c.model for c in diff.compare(a, b, sigmas=2)] == ["step-2"]
    c = board(tmp_path / "c", Run("x", {TASK: BEFORE}), Run("y", {TASK: BEFORE}))
    with pytest.raises(ResultsError, match="--model BEFORE=AFTER"):
        diff.compare(a, c, sigmas=2)
    assert diff.compare(a, c, sigmas=2, models={"step-1": "y"})[0].kind == "same"
    with pytest.raises(ResultsError, match="no model z"):
        diff.compare(a, c, sigmas=2, models={"step-1": "z"})


def test_folders_that_are_no_boards(tmp_path):
    a = board(tmp_path / "a", Run("m", {TASK: BEFORE}))
    with pytest.raises(ResultsError, match="name the folder of a board"):
        diff.compare(a, tmp_path, sigmas=2)
    rows = a / "rows.jsonl"
    text = rows.read_text()
    rows.write_text(text.replace('"schema": 1', '"schema": 99', 1))
    with pytest.raises(ResultsError, match="schema 99"):
        diff.compare(a, a, sigmas=2)
    rows.write_text(text[:-20])
    with pytest.raises(ResultsError, match="is no row"):
        diff.compare(a, a, sigmas=2)


def test_json(tmp_path):
    a = board(tmp_path / "a", Run("m", {TASK: BEFORE}))
    result = CliRunner().invoke(cli, ["leaderboard", "diff", str(a), str(a), "--json"])
    assert '"column": "PhoneBook 1k"' in result.output
