"""Results folders of every kind, and what a board makes of them."""

import json
import math
import time

import numpy as np
import pytest
from click.testing import CliRunner
from golden_results import Run, four_models, perplexity_run, scores
from scipy import stats

from patheval.cli.main import cli
from patheval.errors import ResultsError
from patheval.leaderboard import board as boards
from patheval.leaderboard.page import positions
from patheval.leaderboard.schema import MARKS
from patheval.leaderboard.table import AVERAGE
from patheval.leaderboard.tables import markdown
from patheval.leaderboard.write import write_board

TASK = "path_phonebook_1k"
BASE = {TASK: scores(40, 96, 1)}
BETTER = {TASK: scores(70, 96, 2)}


def pair(folder, **other):
    """A baseline, and a better model with whatever is to be tested."""
    Run("rope", BASE).write(folder)
    Run("path", other.pop("scores", BETTER), attention="path", **other).write(folder)
    return build(folder)


def build(folder, **options):
    return boards.build([folder], name="test", baseline=options.pop("baseline", "rope"), **options)


def shown(board, model, task=TASK):
    rows = [r for r in board.rows if r.model == model and r.task == task and r.status == "shown"]
    assert len(rows) <= 1
    return rows[0] if rows else None


def cell(board, model, task=TASK):
    row = shown(board, model, task)
    (found,) = [c for (m, _), c in board.cells.items() if m == model and c.row is row]
    return found


def test_good_runs_are_compared(tmp_path):
    board = pair(tmp_path)
    found = cell(board, "path")
    assert (found.row.marks, found.rank) == ((), 1)
    assert found.difference.method == "mcnemar"
    assert found.difference.value == pytest.approx(30 / 96)
    assert cell(board, "rope").rank == 2
    row = found.row
    assert (row.n, row.tokens_min, row.tokens_max, row.data_seed) == (96, 900, 902, 0)
    assert row.versions["vllm"] == "0.32.0"
    assert (row.commit, row.date) == ("abc1234", "2026-05-01T10:00:00+00:00")
    speed = {c.title: x.estimate.value for (m, c), x in board.cells.items() if c.kind == "speed"}
    assert speed == {
        "tokens read / s": 1800,
        "ms / generated token, prompts included": 50,
        "peak GPU memory, GiB": 3,
    }
    assert not board.problems


REFUSED = {
    "limit": ({"limit": 10, "originals": {TASK: 500}}, "96 of 500 samples"),
    "samples option": ({"originals": {TASK: 97}}, "96 of 97 samples"),
    "not a number": ({"results": {TASK: {"exact_match,none": float("nan")}}}, "not finite"),
    "infinite": ({"results": {TASK: {"exact_match,none": float("inf")}}}, "not finite"),
    "null": ({"results": {TASK: {"exact_match,none": None}}}, "not finite"),
    "no value": ({"results": {TASK: {"exact_match,none": "N/A"}}}, "not finite"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_with_a_reason(tmp_path, kind):
    options, reason = REFUSED[kind]
    board = pair(tmp_path, **options)
    assert shown(board, "path") is None
    (row,) = [r for r in board.rows if r.model == "path" and r.metric == "exact_match"]
    assert row.status == "refused"
    assert reason in row.reason
    assert board.models == ["rope"]


def test_limit_that_reaches_every_sample_is_no_limit(tmp_path):
    board = pair(tmp_path, limit=500)
    assert cell(board, "path").difference is not None


def test_limit_without_counts_is_refused(tmp_path):
    board = pair(tmp_path, limit=10, top={"n-samples": {}}, log_samples=False)
    assert shown(board, "path") is None


def test_allowed_limit_is_marked_and_not_compared(tmp_path):
    Run("rope", BASE).write(tmp_path)
    Run("path", {TASK: [1.0] * 10}, limit=10, originals={TASK: 96}).write(tmp_path)
    board = build(tmp_path, allow_limit=True)
    found = cell(board, "path")
    assert "limited" in found.row.marks
    assert (found.difference, found.rank) == (None, 0)


NOT_COMPARED = {
    "truncated": {"config": {"num_prompts_truncated": 3}},
    "skipped": {"config": {"num_prompts_skipped": 1}},
    "other-version": {"version": 2},
    "other-prompts": {"seed": 7},
    "other-fewshot": {"top": {"n-shot": {TASK: 2}}},
}


@pytest.mark.parametrize("mark", NOT_COMPARED)
def test_shown_but_not_compared(tmp_path, mark):
    board = pair(tmp_path, **NOT_COMPARED[mark])
    found = cell(board, "path")
    assert mark in found.row.marks
    assert (found.difference, found.rank) == (None, 0)


def test_other_chat_template_is_not_compared(tmp_path):
    board = pair(tmp_path, top={"chat_template_sha": "f00"})
    assert cell(board, "path").row.marks == ("other-fewshot",)


def test_a_marked_baseline_compares_nothing(tmp_path):
    Run("rope", BASE, config={"num_prompts_truncated": 1}).write(tmp_path)
    Run("path", BETTER).write(tmp_path)
    board = build(tmp_path)
    assert cell(board, "path").difference is None
    assert cell(board, "path").rank == 0


def test_cut_prompts_of_other_backends_are_found(tmp_path):
    board = pair(tmp_path, model_type="hf", num_tokens=900, max_length=940)
    assert "truncated" in cell(board, "path").row.marks
    fits = pair(tmp_path / "fits", model_type="vllm", num_tokens=900, max_length=960)
    assert "truncated" not in cell(fits, "path").row.marks


def test_other_backends_without_lengths_say_so(tmp_path):
    board = pair(tmp_path, model_type="hf", log_samples=False)
    row = cell(board, "path").row
    assert {"unchecked-length", "no-samples"} <= set(row.marks)
    assert cell(board, "path").difference.method == "unpaired"


def test_other_max_length_is_marked_and_bars_rolling_perplexity(tmp_path):
    board = pair(tmp_path, max_length=4096)
    assert cell(board, "path").row.marks == ("max-length",)
    assert cell(board, "path").difference is not None
    folder = tmp_path / "rolling"
    for model, limit in (("rope", 8192), ("path", 4096)):
        Run(model, {"wikitext": [20.0, 30.0]}, metric="word_perplexity", max_length=limit).write(
            folder
        )
    assert "other-length" in cell(build(folder), "path", "wikitext").row.marks


def test_stand_in_data_have_columns_of_their_own(tmp_path):
    stand_in = {"path_phonebook_offline_1k": scores(80, 96)}
    board = pair(tmp_path, scores=BETTER | stand_in)
    row = cell(board, "path", "path_phonebook_offline_1k").row
    assert row.benchmark == "phonebook_offline"
    assert "stand-in" in row.marks
    groups = dict.fromkeys(column.group for column in board.columns)
    assert list(groups) == ["PhoneBook", "PhoneBook, stand-in data", "Speed"]


def test_half_written_results_file(tmp_path):
    path = Run("path", BETTER).write(tmp_path)
    path.write_text(path.read_text()[:1000])
    Run("rope", BASE).write(tmp_path)
    board = build(tmp_path)
    (problem,) = board.problems
    assert problem.file.endswith(f"path/{path.name}")
    assert "cut off" in problem.reason


def test_empty_results_file(tmp_path):
    path = Run("path", BETTER).write(tmp_path)
    path.write_text("")
    Run("rope", BASE).write(tmp_path)
    assert len(build(tmp_path).problems) == 1


@pytest.mark.parametrize("content", ["[1, 2]", '{"results": {}}', '{"results": {"a": 3}}', "{}"])
def test_files_that_are_no_results(tmp_path, content):
    Run("rope", BASE).write(tmp_path)
    (tmp_path / "results_2026-05-01T10-00-00.000002.json").write_text(content)
    assert len(build(tmp_path).problems) == 1


def edited(folder, change, **options):
    """A baseline, and a run whose results file was changed."""
    Run("rope", BASE).write(folder)
    path = Run("path", BETTER, attention="path", **options).write(folder)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return build(folder)


UNREADABLE = {
    "date of no calendar": lambda c: c.update(date=1e30),
    "counts as a list": lambda c: c.update({"n-samples": [1]}),
    "endless time": lambda c: c["config"].update(
        phases={"generate_until": {"wall_seconds": 1, "prompt_tokens": 1e400}}
    ),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_fields_of_the_wrong_kind_are_a_problem_of_their_file_alone(tmp_path, kind):
    board = edited(tmp_path, UNREADABLE[kind])
    assert board.models == ["rope"]
    (problem,) = board.problems
    assert "not laid out as lm-eval does" in problem.reason


def test_a_file_of_endless_brackets(tmp_path):
    (tmp_path / "results_2026-05-01T10-00-00.000002.json").write_text("[" * 100_000)
    Run("rope", BASE).write(tmp_path)
    assert "not readable as JSON" in build(tmp_path).problems[0].reason


def test_a_byte_order_mark_is_read_over(tmp_path):
    path = Run("rope", BASE).write(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert build(tmp_path).problems == []


def test_half_surrogates_do_not_keep_a_board_from_being_written(tmp_path):
    path = Run("path", BETTER).write(tmp_path / "runs")
    samples = path.with_name(f"samples_{TASK}_2026-05-01T10-00-00.000001.jsonl")
    samples.write_text(samples.read_text().replace('[" wrong"]', '[" \\ud800"]'))
    board = edited(tmp_path / "runs", lambda c: c.update(model_name="x\ud800y"))
    assert board.models == ["rope", "x?y"]
    write_board(board, tmp_path / "board", plots=False)
    assert "x?y" in (tmp_path / "board/index.html").read_text()


def test_links_in_circles_are_walked_once(tmp_path):
    Run("rope", BASE).write(tmp_path / "runs")
    for number in range(3):
        (tmp_path / f"runs/rope/link{number}").symlink_to("..")
    (tmp_path / "runs/a_link").symlink_to("rope")
    board = build(tmp_path)
    assert board.num_files == 1
    assert board.rows[0].file.endswith("/runs/rope/results_2026-05-01T10-00-00.000001.json")


def test_negative_standard_errors_are_none(tmp_path):
    no_error = {TASK: {"exact_match_stderr,none": -1.0}}
    board = pair(tmp_path, log_samples=False, results=no_error)
    assert cell(board, "path").row.stderr == pytest.approx((70 * 26 / 96**2 / 95) ** 0.5)


def test_a_prompt_that_stands_twice_pairs_nothing(tmp_path):
    path = Run("path", BETTER).write(tmp_path)
    samples = path.with_name(f"samples_{TASK}_2026-05-01T10-00-00.000001.jsonl")
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join([*lines[:-1], lines[0]]))
    Run("rope", BASE).write(tmp_path)
    board = build(tmp_path)
    assert "a prompt stands in it twice" in board.problems[0].reason
    assert cell(board, "path").difference.method == "unpaired"


def test_names_cannot_break_a_table(tmp_path):
    evil = {"a|b<i>": {"acc,none": 0.5, "acc_stderr,none": 0.1}}
    board = edited(tmp_path, lambda c: c["results"].update(evil) or c.update(model_name="x|\ny"))
    text = markdown(board)
    assert r"a\|b\<i\>" in text
    assert r"| x\| y |" in text
    for line in text.splitlines():
        assert "a|b" not in line


def test_averages_of_other_tasks_at_each_length_are_not_summed_up(tmp_path):
    def run(model, seed):
        tasks = {
            f"path_ruler_{task}_{length}": scores(50, 100, seed + i)
            for i, task in enumerate(("niah_single_1", "vt", "cwe"))
            for length in ("4k", "8k", "16k")
            if (task, length) != ("cwe", "16k")
        }
        Run(model, tasks, metric="string_match_all").write(tmp_path)

    run("rope", 1)
    run("path", 2)
    board = build(tmp_path)
    averages = [c for c in board.columns if c.subtask == AVERAGE]
    assert [c.title for c in averages] == ["4k (3/13)", "8k (3/13)", "16k (2/13)"]
    assert not [c for c in board.columns if c.kind == "summary"]
    assert "nothing sums up the lengths" in markdown(board)


def test_half_written_samples_file(tmp_path):
    path = Run("path", BETTER).write(tmp_path)
    samples = path.with_name(f"samples_{TASK}_2026-05-01T10-00-00.000001.jsonl")
    samples.write_text(samples.read_text()[:-50])
    Run("rope", BASE).write(tmp_path)
    board = build(tmp_path)
    assert "line 96" in board.problems[0].reason
    assert cell(board, "path").row.marks == ("no-samples",)
    assert cell(board, "path").difference.method == "unpaired"


def test_missing_samples_lines(tmp_path):
    path = Run("path", BETTER).write(tmp_path)
    samples = path.with_name(f"samples_{TASK}_2026-05-01T10-00-00.000001.jsonl")
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:-5]))
    Run("rope", BASE).write(tmp_path)
    board = build(tmp_path)
    assert "91 samples where the results file counts 96" in board.problems[0].reason


def test_samples_that_do_not_give_the_value_are_not_used(tmp_path):
    board = pair(tmp_path, results={TASK: {"exact_match,none": 0.9}})
    assert "no-samples" in cell(board, "path").row.marks
    assert cell(board, "path").estimate.value == 0.9


def test_standard_error_not_given(tmp_path):
    board = pair(tmp_path, log_samples=False, results={TASK: {"exact_match_stderr,none": "N/A"}})
    row = cell(board, "path").row
    assert row.stderr == pytest.approx((70 * 26 / 96**2 / 95) ** 0.5)  # From counts of right.
    fraction = {"path_ruler_vt_1k": [0.2, 0.4, 0.6]}
    folder = tmp_path / "fraction"
    no_error = {"path_ruler_vt_1k": {"string_match_all_stderr,none": "N/A"}}
    Run("rope", fraction, metric="string_match_all", log_samples=False, results=no_error).write(
        folder
    )
    assert "no-stderr" in cell(build(folder), "rope", "path_ruler_vt_1k").row.marks


def test_missing_task_leaves_an_incomplete_average(tmp_path):
    names = [f"path_ruler_{task}_4k" for task in ("niah_single_1", "vt", "cwe")]
    all_three = {name: scores(50, 100, i) for i, name in enumerate(names)}
    Run("rope", all_three, metric="string_match_all").write(tmp_path)
    two = dict(list(all_three.items())[:2])
    Run("path", two, metric="string_match_all").write(tmp_path)
    board = build(tmp_path)
    (column,) = [c for c in board.columns if c.subtask == AVERAGE]
    assert column.title == "4k (3/13)"
    assert board.cell("rope", column).row.marks == ()
    found = board.cell("path", column)
    assert (found.row.marks, found.difference, found.rank) == (("incomplete",), None, 0)


def test_newest_of_several_runs_counts_and_a_difference_is_marked(tmp_path):
    Run("rope", BASE).write(tmp_path)
    for number, right in enumerate((50, 70)):
        time_id = f"2026-05-0{number + 1}T10-00-00.000001"
        own = {TASK: scores(right, 96)}
        Run("path", own, time=time_id, date=1777629600.0 + 86400 * number).write(tmp_path)
    board = build(tmp_path)
    assert cell(board, "path").estimate.value == pytest.approx(70 / 96)
    assert cell(board, "path").row.marks == ("runs-differ",)
    statuses = [r.status for r in board.rows if r.model == "path" and r.metric == "exact_match"]
    assert sorted(statuses) == ["shown", "superseded"]


def test_a_refused_newer_run_does_not_replace_an_older_one(tmp_path):
    pair(tmp_path)
    Run("path", BETTER, time="2026-06-01T10-00-00.1", date=1.8e9, limit=5,
        originals={TASK: 500}).write(tmp_path)  # fmt: skip
    assert cell(build(tmp_path), "path").row.marks == ()


def test_equal_names_of_different_weights_are_kept_apart(tmp_path):
    for place, sha in (("a", "1" * 64), ("b", "2" * 64)):
        Run("rope", BASE, sha256=sha).write(tmp_path / place)
    board = build(tmp_path, baseline="")
    assert board.models == ["rope [11111111]", "rope [22222222]"]


def test_same_weights_on_two_backends_are_kept_apart(tmp_path):
    Run("rope", BASE).write(tmp_path / "a")
    Run("rope", BASE, model_type="path-ref", time="2026-05-02T10-00-00.1").write(tmp_path / "b")
    assert build(tmp_path, baseline="").models == ["rope [path-ref]", "rope [path]"]


@pytest.mark.parametrize("name", ["./tiny", "Модель-β/路径", ".hidden", "a b [c] |d|"])
def test_hidden_and_unicode_names(tmp_path, name):
    folder = tmp_path / ".results"
    Run("rope", BASE).write(folder)
    Run(name, BETTER).write(folder)
    board = boards.build([tmp_path], name="test", baseline="rope")
    (other,) = set(board.models) - {"rope"}
    assert other == {"./tiny": "tiny", ".hidden": ".hidden"}.get(name, name)
    assert cell(board, other).difference.value > 0


def test_absolute_paths_and_tokens_do_not_reach_the_board(tmp_path):
    model_args = {"pretrained": "/home/me/secret/path-760m", "hub_token": "hf_x", "dtype": "auto"}
    board = pair(
        tmp_path, config={"model_args": model_args}, top={"model_name": "/home/me/x/path-760m"}
    )
    (row,) = [r for r in board.rows if r.model == "path-760m" and r.status == "shown"]
    assert json.loads(row.model_args) == {"pretrained": ".../path-760m", "dtype": "auto"}


def test_model_args_as_text(tmp_path):
    args = "pretrained=org/model,dtype=bfloat16"
    board = pair(tmp_path, model_type="hf", config={"model_args": args})
    assert json.loads(shown(board, "path").model_args)["dtype"] == "bfloat16"


def test_results_of_older_harnesses(tmp_path):
    old = {
        "results": {"piqa": {"acc": 0.7, "acc_stderr": 0.01, "acc_norm": 0.71}},
        "versions": {"piqa": 0},
        "config": {"model": "hf", "model_args": "pretrained=org/old", "limit": None},
    }
    (tmp_path / "results_2023-05-01T10-00-00.json").write_text(json.dumps(old))
    Run("rope", {"piqa": scores(70, 100)}, metric="acc", version=1).write(tmp_path)
    board = build(tmp_path)
    row = cell(board, "org/old", "piqa").row
    assert (row.value, row.stderr) == (0.7, 0.01)
    assert {"other-version", "no-samples"} <= set(row.marks)


def test_lm_evals_own_ruler_has_lengths_as_metrics(tmp_path):
    results = {"niah_single_1": {"4096,none": 0.9, "8192,none": 0.4, "131072,none": -1}}
    content = json.loads(Run("m").write(tmp_path / "x").read_text()) | {"results": results}
    (tmp_path / "results_2026-05-01T10-00-00.5.json").write_text(json.dumps(content))
    board = build(tmp_path, baseline="")
    found = [(c.benchmark, c.length) for c in board.columns if c.benchmark == "lm_eval_ruler"]
    assert found == [("lm_eval_ruler", 4096), ("lm_eval_ruler", 8192)]


def test_filters_and_further_metrics_are_secondary(tmp_path):
    extra = {"exact_match,flexible": 0.99, "exact_match_stderr,flexible": 0.01}
    board = pair(tmp_path, results={TASK: extra})
    statuses = {(r.metric, r.filter): r.status for r in board.rows if r.model == "path"}
    assert statuses == {
        ("exact_match", "none"): "shown",
        ("exact_match", "flexible"): "secondary",
        ("empty", "none"): "secondary",
    }


def test_groups_of_lm_eval_are_recomputed(tmp_path):
    group = {"path_ruler_4k": {"alias": "x", "string_match_all,none": 0.5, "sample_count": {}}}
    path = Run("rope", {"path_ruler_vt_4k": scores(50, 100)}, metric="string_match_all").write(
        tmp_path
    )
    content = json.loads(path.read_text())
    content["results"] |= group
    content["groups"] = group
    content["group_subtasks"] = {"path_ruler_4k": ["path_ruler_vt_4k"]}
    path.write_text(json.dumps(content))
    board = build(tmp_path)
    assert {r.task: r.status for r in board.rows if r.metric == "string_match_all"} == {
        "path_ruler_vt_4k": "shown",
        "path_ruler_4k": "recomputed",
    }


def test_perplexity_has_an_error_by_text_and_is_paired(tmp_path):
    rng = np.random.default_rng(1)
    base = {512: rng.normal(3.0, 0.2, 40), 1024: rng.normal(2.8, 0.2, 40)}
    base = {end: list(map(float, own)) for end, own in base.items()}
    better = {end: [x - 0.1 for x in own] for end, own in base.items()}
    perplexity_run("rope", base).write(tmp_path)
    perplexity_run("path", better).write(tmp_path)
    board = build(tmp_path)
    (found,) = [c for (m, column), c in board.cells.items() if m == "path" and column.length]
    whole = np.mean(list(better.values()), axis=0)
    perplexity = math.exp(whole.mean())
    assert found.estimate.value == pytest.approx(perplexity)
    assert found.estimate.stderr == pytest.approx(perplexity * stats.sem(whole))
    expected = perplexity - math.exp(whole.mean() + 0.1)
    assert found.difference.value == pytest.approx(expected)
    assert found.difference.stderr < 0.2 * found.estimate.stderr
    assert found.rank == 1
    (plot,) = positions(board)
    assert plot["ticks"] == [[512, "512"], [1024, "1k"]]
    end, value, low, high = plot["models"][str(board.models.index("path"))][0]
    own = np.array(better[512])
    assert (end, value) == (512, pytest.approx(math.exp(own.mean()), rel=1e-4))
    half = stats.t.ppf(0.975, 39) * stats.sem(own)
    assert high / low == pytest.approx(math.exp(2 * half), rel=1e-3)


def test_ratio_metrics_have_errors_clustered_by_document(tmp_path):
    """word_perplexity logs (log-probability, words): jackknife over documents as reference."""
    rng = np.random.default_rng(2)
    words = rng.integers(50, 500, 60)
    logprobs = -words * rng.normal(3.0, 0.3, 60)
    own = [[float(a), float(b)] for a, b in zip(logprobs, words, strict=True)]
    value = math.exp(-logprobs.sum() / words.sum())
    run = Run("rope", {"wikitext": [0.0] * 60}, metric="x")
    run.further["wikitext"] = {"word_perplexity": own}
    run.results = {"wikitext": {"word_perplexity,none": value}}
    run.write(tmp_path)
    found = cell(build(tmp_path), "rope", "wikitext")
    without = [
        math.exp(-np.delete(logprobs, i).sum() / np.delete(words, i).sum()) for i in range(60)
    ]
    jackknife = math.sqrt(59 / 60 * np.sum((without - np.mean(without)) ** 2))
    assert found.estimate.stderr == pytest.approx(jackknife, rel=0.02)


def test_mostly_empty_answers_are_marked(tmp_path):
    path = Run("path", {TASK: scores(0, 96)}).write(tmp_path)
    samples = path.with_name(f"samples_{TASK}_2026-05-01T10-00-00.000001.jsonl")
    samples.write_text(samples.read_text().replace('[" wrong"]', '[" "]'))
    Run("rope", BASE).write(tmp_path)
    assert cell(build(tmp_path), "path").row.marks == ("empty",)


def test_no_folder_no_file_no_row_no_baseline(tmp_path):
    with pytest.raises(ResultsError, match="does not exist"):
        build(tmp_path / "none")
    with pytest.raises(ResultsError, match="no results file"):
        build(tmp_path)
    Run("path", BETTER, limit=3, originals={TASK: 500}).write(tmp_path)
    with pytest.raises(ResultsError, match="first reason: 96 of 500"):
        build(tmp_path)
    Run("zoo:path", BETTER).write(tmp_path)
    with pytest.raises(ResultsError, match=r"no model with results is called rope; .* zoo:path"):
        build(tmp_path)
    assert build(tmp_path, baseline="PATH").baseline == "zoo:path"
    Run("org/path", BETTER).write(tmp_path)
    with pytest.raises(ResultsError, match="may be org/path or zoo:path"):
        build(tmp_path, baseline="path")


def test_nothing_is_dropped(tmp_path):
    """Every value of every readable file is a row, whatever its fate."""
    four_models(tmp_path)
    Run("path", BETTER, limit=3, originals={TASK: 500}, time="2026-07-01T10-00-00.1").write(
        tmp_path
    )
    values = 0
    for path in tmp_path.rglob("results_*.json"):
        for task in json.loads(path.read_text())["results"].values():
            values += sum("," in key and "_stderr" not in key for key in task)
    board = build(tmp_path)
    assert len(board.rows) == values
    assert {mark for row in board.rows for mark in row.marks} <= set(MARKS)


def test_answers_of_an_earlier_run_tell_no_speed(tmp_path):
    kept = {"prompt_tokens": 0, "generated_tokens": 0, "wall_seconds": 4e-5}
    board = pair(tmp_path, config={"phases": {"generate_until": kept}, "peak_gpu_memory_bytes": 1})
    assert {model for (model, column) in board.cells if column.kind == "speed"} == {"rope"}


def test_a_board_leaves_nothing_of_the_board_before(tmp_path):
    Run("rope", BASE | {"piqa": scores(50, 100)}).write(tmp_path / "a")
    Run("rope", BASE).write(tmp_path / "b")
    write_board(build(tmp_path / "a"), tmp_path / "board", plots=False)
    assert (tmp_path / "board/tables/zero_shot.tex").is_file()
    mine = tmp_path / "board/notes.md"
    mine.write_text("mine")
    write_board(build(tmp_path / "b"), tmp_path / "board", plots=False)
    assert not (tmp_path / "board/tables/zero_shot.tex").exists()
    assert mine.is_file()


@pytest.mark.parametrize("command", ["build", "trim", "paper"])
def test_where_nothing_can_be_written(tmp_path, command):
    Run("rope", BASE).write(tmp_path / "runs")
    (tmp_path / "file").write_text("")
    arguments = ["leaderboard", command, str(tmp_path / "runs"), "--out", str(tmp_path / "file/x")]
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, ResultsError)
    assert "cannot be written (Not a directory)" in str(result.exception)


def test_a_single_results_file_and_overlapping_folders(tmp_path):
    path = Run("rope", BASE).write(tmp_path / "runs")
    board = boards.build([path, tmp_path, tmp_path / "runs"], name="test")
    assert board.num_files == 1


@pytest.mark.slow
def test_a_thousand_runs_in_twenty_seconds(tmp_path):
    for number in range(1000):
        tasks = {TASK: scores(number % 97, 96, number)}
        name, time_id = f"model-{number // 2}", f"2026-05-01T10-00-00.{number}"
        sha256 = f"{number // 2:064d}"
        Run(name, tasks, time=time_id, sha256=sha256, date=number).write(tmp_path)
    start = time.process_time()
    board = build(tmp_path, baseline="model-0")
    write_board(board, tmp_path / "board")
    assert len(board.models) == 500
    assert len(board.columns) == 4
    assert time.process_time() - start < 20
