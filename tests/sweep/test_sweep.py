"""Sweeps of the zoo's models with the reference model: planned, run, resumed, put on a board."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from rich.console import Console

from patheval.cli.main import cli
from patheval.errors import EngineError, PathEvalError, PrerequisiteError, RequestError
from patheval.leaderboard import board as boards
from patheval.sweep import lock, progress, run
from patheval.sweep import plan as plans
from patheval.sweep.options import read_options

METADATA = {"num_samples": 3}


@pytest.fixture(autouse=True)
def _no_shared_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHEVAL_RESUME", "off")
    monkeypatch.setenv("PATHEVAL_CACHE", str(tmp_path / "cache"))


def options(out, **given):
    models = given.pop("models", ("rope=zoo:rope", "path=zoo:path"))
    base = {
        "model": models,
        "suite": "phonebook",
        "lengths": "256,512",
        "backend": "path-ref",
        "metadata": METADATA,
        "out": str(out),
    }
    return read_options({**base, **given}, None)


def execute(plan):
    outcomes = []
    run.run_plan(plan, outcomes.append)
    return outcomes


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished sweep of two models and two lengths."""
    out = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATHEVAL_RESUME", "off")
        plan = plans.make_plan(options(out))
        outcomes = execute(plan)
    return out, plan, outcomes


def test_the_plan_has_every_cell_longest_first(finished):
    _, plan, outcomes = finished
    assert plan.faults == plan.notes == []
    assert plan.max_length == 512
    order = [(cell.model.name, cell.task) for cell in plan.cells]
    assert order == [
        ("rope", "path_phonebook_512"),
        ("rope", "path_phonebook_256"),
        ("path", "path_phonebook_512"),
        ("path", "path_phonebook_256"),
    ]
    assert [cell.num_tokens for cell in plan.cells[:2]] == [3 * 462, 3 * 206]
    assert [outcome.status for outcome in outcomes] == ["done"] * 4


def test_results_are_lm_evals_and_make_a_board(finished):
    out, _, outcomes = finished
    board = boards.build([out], name="sweep", baseline="rope")
    assert board.models == ["rope", "path"]
    assert [c.title for c in board.columns if c.kind == "score"] == ["256", "512"]
    for outcome in outcomes:
        (cell,) = [
            c
            for (model, column), c in board.cells.items()
            if model == outcome.cell.model.name and c.row.task == outcome.cell.task
            and column.kind == "score"
        ]  # fmt: skip
        assert cell.estimate.value == outcome.metrics["exact_match"][0]
        assert not cell.row.marks
        assert cell.row.n == 3
        assert cell.row.model_type == "path-ref"
        assert len(cell.row.checkpoint_sha256) == 64
        assert json.loads(cell.row.metadata) == METADATA
    paired = [c.difference.method for c in board.cells.values() if c.difference]
    assert set(paired) <= {"mcnemar", "paired"}


def test_models_with_one_tokenizer_get_the_same_prompts(finished):
    out, *_ = finished
    hashes = {}
    for path in out.glob("*/results_*.json"):
        for task, value in json.loads(path.read_text())["task_hashes"].items():
            hashes.setdefault(task, set()).add(value)
    assert len(hashes) == 2
    assert all(len(values) == 1 for values in hashes.values())


def test_counts_are_each_cells_own(finished):
    out, *_ = finished
    for path in out.glob("*/results_*.json"):
        config = json.loads(path.read_text())["config"]
        assert config["num_prompts"] == 3
        assert config["phases"]["generate_until"]["num_requests"] == 3


def test_finished_cells_are_kept(finished):
    out, *_ = finished
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    plan = plans.make_plan(options(out))
    assert plan.waiting == []
    outcomes = execute(plan)
    assert [outcome.status for outcome in outcomes] == ["kept"] * 4
    assert outcomes[0].metrics == finished[2][0].metrics
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*")} == before


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"num_samples": 4}},
        {"metadata": METADATA | {"data_seed": 1}},
        {"model_args": {"dtype": "float64"}},
        {"max_length": "1k"},
        {"limit": 2.0},
        {"models": ("rope=zoo:fox", "path=zoo:path-fox")},
    ],
    ids=str,
)
def test_whatever_changes_scores_makes_a_new_cell(finished, change):
    assert len(plans.make_plan(options(finished[0], **change)).waiting) == 4


def test_results_without_all_their_samples_are_run_again(finished, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(finished[0], out)
    samples = sorted(out.glob("rope/samples_path_phonebook_512*"))
    samples[0].write_text("".join(samples[0].read_text().splitlines(keepends=True)[:-1]))
    next(out.glob("path/samples_path_phonebook_256*")).unlink()
    waiting = plans.make_plan(options(out)).waiting
    assert [(c.model.name, c.task) for c in waiting] == [
        ("rope", "path_phonebook_512"),
        ("path", "path_phonebook_256"),
    ]


def test_every_fault_is_found_before_anything_runs(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    plan = plans.make_plan(
        options(
            tmp_path / "out",
            models=("good=zoo:rope", f"broken={broken}", "gone=zoo:nothing"),
            tasks=("path_nothing_*",),
            max_length="400",
        )
    )
    text = "\n".join(plan.faults)
    assert "no task matches path_nothing_*" in text
    assert "model broken: " in text
    assert "model gone: " in text
    assert "max_length is 400 and path_phonebook_512 needs 512; pass --max-length 512" in text
    assert not (tmp_path / "out").exists()
    with pytest.raises(PathEvalError, match="faults"):
        run.run_plan(plan, print)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"model_args": "dtyp=float64"}, "model rope, path: dtyp='float64' .*did you mean dtype"),
        ({"model_args": "dtype=float65"}, "model rope, path: dtype is 'float65'; pass one of auto"),
        ({"model_args": "overlength=skp"}, "model rope, path: overlength is 'skp'"),
        ({"model_args": "max_gen_toks=x"}, "model rope, path: max_gen_toks is 'x'"),
        ({"backend": "path-reff"}, "model rope, path: --backend is 'path-reff', .*path-ref"),
        ({"models": ("rope=./zo",)}, "model rope: there is no folder ./zo"),
    ],
)
def test_arguments_are_checked_in_the_plan(tmp_path, given, fault):
    plan = plans.make_plan(options(tmp_path, **given))
    assert len(plan.faults) == 1
    assert re.match(fault, plan.faults[0])


def test_data_that_are_not_fetched_come_with_the_command_that_fetches_them(tmp_path, monkeypatch):
    class Manager:
        def __init__(self, real):
            self.real = real

        def load(self, names):
            if names == ["path_phonebook_256"]:
                raise ValueError("no data") from ConnectionError("Couldn't reach the hub")
            return self.real.load(names)

    real = plans.task_manager
    monkeypatch.setattr(plans, "task_manager", lambda *given: Manager(real(*given)))
    plan = plans.make_plan(options(tmp_path))
    assert plan.faults == [
        "rope on path_phonebook_256, path on path_phonebook_256: ValueError: no data",
        "1 of lm-eval's tasks lack their data; with a network, run `HF_HUB_OFFLINE=0 lm_eval run "
        "--model dummy --limit 1 --tasks path_phonebook_256`",
    ]


@pytest.mark.parametrize("place", ["a_file", "a_file/below"])
def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path, place):
    (tmp_path / "a_file").write_text("")
    plan = plans.make_plan(options(tmp_path / place, models=("rope=zoo:rope",)))
    (fault,) = plan.faults
    assert "is no folder; name another folder with --out" in fault


def test_a_read_only_folder_is_a_fault(tmp_path, monkeypatch):
    # Root may write everywhere, so that the answer is given here.
    monkeypatch.setattr(plans.os, "access", lambda path, mode: False)
    plan = plans.make_plan(options(tmp_path, models=("rope=zoo:rope",)))
    assert f"{tmp_path} may not be written to" in plan.faults[0]


def test_a_checkpoint_that_goes_after_the_check_fails_its_cells_alone(tmp_path):
    from patheval.zoo import resolve

    gone = tmp_path / "gone"
    shutil.copytree(resolve("zoo:rope"), gone)
    plan = plans.make_plan(
        options(tmp_path / "out", models=(f"gone={gone}", "path=zoo:path"), lengths="256")
    )
    assert plan.faults == []
    shutil.rmtree(gone)
    outcomes = execute(plan)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert str(gone) in outcomes[0].reason


def test_names_with_spaces_slashes_and_unicode_keep_apart(tmp_path):
    names = ("my org/model: 1", "my org|model: 1", "модель ю")
    plan = plans.make_plan(
        options(tmp_path, models=tuple(f"{name}=zoo:rope" for name in names), lengths="256")
    )
    assert {outcome.status for outcome in execute(plan)} == {"done"}
    board = boards.build([tmp_path], name="sweep", baseline=names[0])
    assert set(board.models) == set(names)
    for path in tmp_path.glob("*/results_*"):
        if json.loads(path.read_text())["config"]["sweep"]["name"] == names[1]:
            path.unlink()
    again = plans.make_plan(plan.options)
    assert [cell.model.name for cell in again.waiting] == [names[1]]


def test_a_cell_that_fails_stops_no_other(tmp_path, monkeypatch):
    plan = plans.make_plan(options(tmp_path, models=("rope=zoo:rope",)))
    real, loads = run._run_cell, []
    monkeypatch.setattr(run, "_load", lambda *a, load=run._load: loads.append(1) or load(*a))

    def fail(plan, cell, model):
        if cell.task == "path_phonebook_512":
            raise RuntimeError("CUDA out\nof memory")
        return real(plan, cell, model)

    monkeypatch.setattr(run, "_run_cell", fail)
    outcomes = execute(plan)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert outcomes[0].reason == "RuntimeError: CUDA out of memory"
    assert not outcomes[0].is_lasting
    assert len(loads) == 2  # An engine that ran out of memory is not trusted again.
    monkeypatch.setattr(run, "_run_cell", real)
    again = execute(plans.make_plan(options(tmp_path, models=("rope=zoo:rope",))))
    assert sorted(outcome.status for outcome in again) == ["done", "kept"]


def test_a_model_that_does_not_load_stops_no_other_model(tmp_path, monkeypatch):
    plan = plans.make_plan(options(tmp_path))
    real = run._load

    def load(plan, cell):
        if cell.model.name == "rope":
            raise PathEvalError("no GPU; add one")
        return real(plan, cell)

    monkeypatch.setattr(run, "_load", load)
    outcomes = execute(plan)
    assert [outcome.status for outcome in outcomes] == ["failed"] * 2 + ["done"] * 2
    assert outcomes[1].reason == "not loaded: no GPU; add one"
    assert outcomes[1].is_lasting
    assert progress.failure_lines(outcomes[:2]) == [
        "failed: rope on path_phonebook_512, path_phonebook_256: not loaded: no GPU; add one"
    ]
    assert "2 will fail again until what is said above is mended" in progress.closing_line(
        outcomes, tmp_path
    )


@pytest.mark.parametrize(
    ("error", "is_lasting", "loads"),
    [
        (RequestError("too long; pass more"), True, 1),
        (EngineError("the process has died; run again"), False, 2),
    ],
)
def test_what_running_again_cannot_mend_is_not_run_again(
    tmp_path, monkeypatch, caplog, error, is_lasting, loads
):
    plan = plans.make_plan(options(tmp_path, models=("rope=zoo:rope",)))
    real, loaded = run._run_cell, []
    monkeypatch.setattr(run, "_load", lambda *a, load=run._load: loaded.append(1) or load(*a))

    def fail(plan, cell, model):
        if cell.task == "path_phonebook_512":
            raise error
        return real(plan, cell, model)

    monkeypatch.setattr(run, "_run_cell", fail)
    outcomes = execute(plan)
    assert [(o.status, o.is_lasting) for o in outcomes] == [("failed", is_lasting), ("done", False)]
    assert outcomes[0].reason == str(error)
    assert len(loaded) == loads
    assert not any(record.exc_info for record in caplog.records)
    again = "the same command runs the failed ones again"
    assert (again in progress.closing_line(outcomes, tmp_path)) != is_lasting


def test_the_engines_start_is_no_part_of_a_cells_time(tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(run, "_load", lambda plan, cell: object())
    monkeypatch.setattr(run, "_run_cell", lambda plan, cell, model: (tmp_path, {}))
    said, outcomes = [], []
    plan = plans.make_plan(options(tmp_path, models=("rope=zoo:rope",)))
    run.run_plan(plan, outcomes.append, said.append)
    assert [outcome.seconds for outcome in outcomes] == [100, 100]
    assert "rope took 100 s to load" in said


def test_a_folder_takes_one_sweep_at_a_time(tmp_path):
    plan = plans.make_plan(options(tmp_path, models=("rope=zoo:rope",)))
    code = "import sys; from patheval.sweep.lock import *\nwith locked(Path(sys.argv[1])): input()"
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE)
    while not (tmp_path / lock.LOCK_NAME).is_file() or not (tmp_path / lock.LOCK_NAME).read_text():
        assert holder.poll() is None
        time.sleep(0.01)
    message = f"is being written by the sweep of process {holder.pid} on .*; wait for it"
    with pytest.raises(PrerequisiteError, match=message):
        execute(plan)
    with pytest.raises(PrerequisiteError, match=message):
        lock.check_free(tmp_path)
    holder.kill()
    holder.wait()
    assert [outcome.status for outcome in execute(plan)] == ["done", "done"]


def test_what_another_sweep_finished_meanwhile_is_kept(tmp_path):
    plans_made = [plans.make_plan(options(tmp_path, models=("rope=zoo:rope",))) for _ in range(2)]
    assert {outcome.status for outcome in execute(plans_made[0])} == {"done"}
    assert {outcome.status for outcome in execute(plans_made[1])} == {"kept"}


def test_ctrl_c_says_what_is_kept(tmp_path, monkeypatch):
    def stop(plan, cell):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_load", stop)
    result = CliRunner().invoke(cli, command(tmp_path / "out"))
    assert result.exit_code == 130
    assert result.output.rstrip().endswith(
        "stopped: finished cells and answers are kept, and the same command goes on from there"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (31, "31 s"), (89, "89 s"), (119.4, "119 s"), (121, "2 min"), (7300, "2.0 h")],
)
def test_times_are_in_seconds_up_to_two_minutes(seconds, text):
    assert progress.duration(seconds) == text


def test_unknown_lengths_are_not_written_as_nothing(tmp_path):
    tasks = "path_phonebook_512,path_mqrar_n1"
    plan = plans.make_plan(options(tmp_path, models=("rope=zoo:rope",), suite=None, tasks=tasks))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(progress.plan_table(plan))
    assert "not known" in console.export_text()
    line = progress.work_line(plan, 20_000)
    assert "at most 1,386 prompt tokens" in line
    assert "; of 1 the prompts' lengths are not known" in line
    plan.cells = [cell for cell in plan.cells if cell.num_tokens is None]
    assert "tokens" not in progress.work_line(plan, 20_000)


def test_data_are_prepared_before_an_engine_is_loaded(tmp_path, monkeypatch):
    cached = []

    def load(plan, cell):
        cached.append(sum(path.is_file() for path in (tmp_path / "cache").rglob("*")))
        raise PathEvalError("stop here")

    monkeypatch.setattr(run, "_load", load)
    said = []
    run.run_plan(plans.make_plan(options(tmp_path / "out")), lambda outcome: None, said.append)
    # Three samples at each of two lengths, shared by two models with one tokenizer.
    assert cached == [6, 6]
    assert said[:2] == ["preparing path_phonebook_512", "preparing path_phonebook_256"]


def test_each_engine_is_loaded_once(tmp_path, monkeypatch):
    loads = []
    monkeypatch.setattr(
        run, "_load", lambda plan, cell, load=run._load: loads.append(cell) or load(plan, cell)
    )
    execute(plans.make_plan(options(tmp_path)))
    assert [cell.model.name for cell in loads] == ["rope", "path"]


def test_the_live_table_shows_means_counts_and_failures(finished):
    _, plan, outcomes = finished
    live = progress.LiveTable(plan, "sweep.log")
    console = Console(width=120, record=True, file=io.StringIO())
    live._outcomes = outcomes[:1]
    console.print(live.render())
    text = console.export_text()
    assert "1 of 4 cells" in text
    assert "; starting; about " in text
    assert " left" in text
    live._outcomes = outcomes
    console.print(live.render())
    text = console.export_text()
    assert "4 of 4 cells" in text
    assert "starting" not in text
    assert "log in" not in text  # Only where a terminal is drawn on, all else goes to a log.
    failed = run.Outcome(outcomes[1].cell, "failed", {}, 1.0, "why")
    live._outcomes = [outcomes[0], failed]
    console.print(live.render())
    assert "1 failed" in console.export_text()
    assert progress.outcome_line(failed) == "failed: rope on path_phonebook_256: why"


def command(out, *more):
    return [
        *("sweep", "--model", "rope=zoo:rope", "--model", "path=zoo:path", "--out", str(out)),
        *("--suite", "phonebook", "--lengths", "256,512", "--backend", "path-ref"),
        *("--metadata", json.dumps(METADATA), *more),
    ]


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    out = tmp_path / "out"
    result = CliRunner().invoke(cli, command(out, "--dry-run"), catch_exceptions=False)
    assert result.exit_code == 0
    assert "4 of 4 cells to run, max_length 512" in result.output
    assert "4,008" in result.output
    assert not out.exists()


def test_a_limit_shortens_the_plan(tmp_path):
    result = CliRunner().invoke(cli, command(tmp_path, "--dry-run", "--limit", "1"))
    assert "1,336" in result.output  # A third of all tokens.


def test_means_over_unlike_tasks_say_of_how_many(tmp_path):
    tasks = "path_ruler_niah_single_1_512,path_ruler_vt_512,path_ruler_niah_single_1_1k"
    plan = plans.make_plan(options(tmp_path, models=("rope=zoo:rope",), suite=None, tasks=tasks))
    live = progress.LiveTable(plan, "sweep.log")
    live._outcomes = [
        run.Outcome(cell, "done", {"score,none": (0.5, 0.1)}, 1.0) for cell in plan.cells
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(live.render())
    text = console.export_text()
    assert "50.0 (2/13)" in text
    assert "50.0 (1/13)" in text
    tasks = "path_mqrar_n1,path_mqrar_n2,path_phonebook_512"
    plan = plans.make_plan(options(tmp_path, models=("rope=zoo:rope",), suite=None, tasks=tasks))
    live = progress.LiveTable(plan, "sweep.log")
    live._outcomes = [
        run.Outcome(cell, "done", {"acc,none": (0.5, 0.1)}, 1.0) for cell in plan.cells
    ]
    console.print(live.render())
    assert "/13)" not in console.export_text()


def test_the_command_fails_with_its_faults_listed(tmp_path):
    result = CliRunner().invoke(cli, command(tmp_path / "out", "--max-length", "300"))
    assert "fault: max_length is 300" in result.output
    assert isinstance(result.exception, PathEvalError)


@pytest.mark.slow
def test_a_killed_sweep_resumes(tmp_path, finished):
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "patheval", *command(out)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.glob("rope/samples_*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("*/results_*.json")}
    assert 1 <= len(kept) < 4
    again = subprocess.run(arguments, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "4 of 4 cells are in" in again.stdout
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in kept.items())

    def results(folder):
        found = {}
        for path in sorted(folder.glob("*/results_*.json")):
            content = json.loads(path.read_text())
            found[content["config"]["sweep"]["key"]] = content["results"]
        return found

    assert results(out) == results(finished[0])
