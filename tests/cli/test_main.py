import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import patheval
from patheval.cli import main as command_line
from patheval.errors import PathEvalError, UnsupportedError


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(command_line.cli, arguments)


def fail_with(error, monkeypatch):
    @click.command()
    def fail():
        raise error

    monkeypatch.setitem(command_line.cli.commands, "fail", fail)
    monkeypatch.setattr(sys, "argv", ["patheval", "fail"])


def test_errors_of_ours_are_one_line(monkeypatch, capsys):
    fail_with(UnsupportedError("block_size is 100; use a multiple of 64."), monkeypatch)
    with pytest.raises(SystemExit) as exit_:
        command_line.main()
    assert exit_.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "error: block_size is 100; use a multiple of 64.\n"


def test_other_errors_keep_their_traceback(monkeypatch):
    fail_with(ZeroDivisionError("x"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        command_line.main()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model paht --tasks path_phonebook_1k", "--model is 'paht', .*did you mean path "),
        ("--tasks path_phonebok_512", "no task path_phonebok_512; did you mean path_phonebook_512"),
        (
            "--model path-ref --model_args pretrained=x,dtyp=float32 --tasks piqa",
            "dtyp='float32' in --model_args is not an argument; did you mean dtype",
        ),
        ("--model path -a pretrained=x overlength=skp", "overlength is 'skp'; pass one of error"),
        ("--model path -a pretrained=./nowhere", "there is no folder ./nowhere"),
        ("--config nothing.yaml", "--config cannot be read .Config file not found"),
    ],
)
def test_options_are_checked_before_lm_eval_runs(invoke, monkeypatch, arguments, message):
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: pytest.fail("ran"))
    result = invoke("run", *arguments.split())
    assert isinstance(result.exception, PathEvalError)
    assert re.search(message, str(result.exception))


def test_options_may_come_from_a_file(invoke, monkeypatch, tmp_path):
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: pytest.fail("ran"))
    path = tmp_path / "run.yaml"
    path.write_text("model: path-ref\nmodel_args: pretrained=x,dtyp=float32\ntasks: [piqa]\n")
    assert "dtyp='float32'" in str(invoke("run", "--config", str(path)).exception)


def test_tasks_of_others_are_lm_evals_to_find(invoke, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: seen.append(sys.argv[-1]))
    (tmp_path / "path_own.yaml").write_text("task: path_own\n")
    for tasks in ("pika", "path_*_nothing", str(tmp_path / "path_own.yaml"), "path_phonebook"):
        assert invoke("run", "--model", "dummy", "--tasks", tasks).exit_code == 0
    own = ("--include_path", str(tmp_path), "--tasks", "path_own")
    assert invoke("run", "--model", "dummy", *own).exit_code == 0
    assert len(seen) == 5


@pytest.mark.parametrize(("model", "says"), [("path", True), ("dummy", False)])
def test_ctrl_c_says_what_is_kept(invoke, monkeypatch, model, says):
    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", stop)
    result = invoke("run", "--model", model, "--tasks", "piqa")
    assert ("stopped: finished answers are kept" in result.output) == says
    assert result.exit_code == (130 if says else 1)


@pytest.mark.slow
def test_a_misspelt_task_of_others_is_one_line(invoke):
    result = invoke("run", "--model", "dummy", "--tasks", "phonebok_512")
    assert isinstance(result.exception, UnsupportedError)
    assert "there is no task phonebok_512; did you mean " in str(result.exception)


def test_help_names_every_command(invoke):
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(f"\n  {name} " in result.output for name in command_line.cli.commands)


@pytest.mark.parametrize(
    "command",
    [[sys.executable, "-m", "patheval"], [Path(sys.executable).with_name("patheval")]],
    ids=["module", "script"],
)
def test_version(command, tmp_path):
    command = [*command, "--version"]
    version = subprocess.check_output(command, cwd=tmp_path, text=True)
    assert version == f"patheval, version {patheval.__version__}\n"


def test_run_hands_its_options_to_lm_eval(invoke, monkeypatch):
    seen = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: seen.append(sys.argv))
    monkeypatch.setattr(sys, "argv", [])
    options = ["--model", "path", "-a", "pretrained=x,dtype=float32", "--help", "--json=y"]
    assert invoke("run", *options).exit_code == 0
    assert seen == [["lm_eval", "run", *options]]


@pytest.mark.slow
def test_run_works_without_start_up_files(run_python, tmp_path):
    (tmp_path / "documents.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "own.yaml").write_text("""
task: own
dataset_path: json
dataset_kwargs: {data_files: documents.jsonl}
test_split: train
output_type: generate_until
doc_to_text: text
doc_to_target: text
metric_list: [{metric: exact_match}]
""")
    code = """
import sys
from patheval.cli.main import main
options = "run --model dummy --tasks own --include_path . --output_path results.json"
sys.argv = ["patheval", *options.split()]
main()
from lm_eval.api.registry import model_registry
assert "path" in model_registry
"""
    table = run_python(code, PATHEVAL_NO_AUTOLOAD="1", HF_HOME=str(tmp_path / "cache"))
    assert "exact_match" in table


def test_tasks_lists_names_by_kind(invoke):
    everything = invoke("tasks").output.split()
    tasks = invoke("tasks", "--kind", "tasks").output.split()
    assert tasks
    assert set(tasks) <= set(everything)


def test_tasks_filters_by_glob(invoke):
    first = invoke("tasks").output.split()[0]
    assert invoke("tasks", f"{first[:-1]}?").output.split()[0] == first


def test_tasks_says_what_did_not_match(invoke):
    result = invoke("tasks", "nothing*")
    assert result.exit_code == 2
    assert "no name matches 'nothing*'" in result.output
    assert "did you mean path_phonebook_1k" in invoke("tasks", "path_phonebok_1k").output
