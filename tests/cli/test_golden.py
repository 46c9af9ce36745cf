import json

import pytest

from patheval.cli import main as cli

CASE = {
    "id": "phonebook-1",
    "benchmark": "phonebook",
    "task": "phonebook",
    "kind": "single",
    "prediction": "8023417765",
    "references": ["8023417765"],
    "expected_score": 1.0,
}


@pytest.fixture
def golden_file(tmp_path):
    def write(*cases):
        path = tmp_path / "golden.jsonl"
        path.write_text("".join(f"{json.dumps(case)}\n" for case in cases))
        return str(path)

    return write


def check(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["patheval", "golden", "check", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return exit_.value.code or 0, *capsys.readouterr()


def test_all_pass(golden_file, monkeypatch, capsys):
    code, out, _ = check(monkeypatch, capsys, golden_file(CASE, CASE))
    assert (code, out) == (0, "2 passed, 0 failed\n")


def test_failures_have_a_line_each_and_status_1(golden_file, monkeypatch, capsys):
    wrong = CASE | {"id": "phonebook-2", "expected_score": 0.5}
    other = CASE | {"id": "x-3", "benchmark": "x"}
    code, out, _ = check(monkeypatch, capsys, golden_file(CASE, wrong, other))
    lines = out.splitlines()
    assert code == 1
    assert lines[0] == "phonebook-2: score: expected 0.5, got 1.0"
    assert lines[1].startswith("x-3: no benchmark 'x'")
    assert lines[2:] == ["1 passed, 2 failed"]


def test_benchmark_can_be_chosen(golden_file, monkeypatch, capsys):
    file = golden_file(CASE, CASE | {"benchmark": "x"})
    code, out, _ = check(monkeypatch, capsys, file, "--benchmark", "phonebook")
    assert (code, out) == (0, "1 passed, 0 failed\n")
    code, _, err = check(monkeypatch, capsys, file, "--benchmark", "ruler")
    assert code == 2 and "hold no case of ruler" in err


def test_broken_file_is_one_line_and_status_2(golden_file, monkeypatch, capsys):
    code, out, err = check(monkeypatch, capsys, golden_file())
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
