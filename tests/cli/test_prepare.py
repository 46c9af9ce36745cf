import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from byte_tokenizer import byte_tokenizer

from patheval.cli import main as cli
from patheval.tasks.phonebook.generate import phonebook


@pytest.fixture
def tokenizer(tmp_path):
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHEVAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepare(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["patheval", "prepare", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return exit_.value.code or 0, *capsys.readouterr()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_samples_are_built_once_and_equal_those_of_a_run(
    tokenizer, cached, monkeypatch, capsys, workers
):
    arguments = [
        "path_phonebook_512,path_ruler_fwe_1k",
        "path_phonebook_1*",
        "--tokenizer",
        tokenizer,
        "--limit",
        "30",
        "--workers",
        workers,
    ]
    code, out, _ = prepare(monkeypatch, capsys, *arguments)
    assert code == 0 and re.fullmatch(r"120 samples of 4 tasks are ready after \d+ s\n", out), out
    assert len(list(cached.rglob("*.json.gz"))) == 120
    docs = phonebook(target_length=512, tokenizer=tokenizer)["test"]
    assert [docs.is_stored(index) for index in (0, 29, 30)] == [True, True, False]
    stored = docs[29]
    monkeypatch.setenv("PATHEVAL_CACHE", "off")
    assert phonebook(target_length=512, tokenizer=tokenizer)["test"][29] == stored
    monkeypatch.setenv("PATHEVAL_CACHE", str(cached))
    assert prepare(monkeypatch, capsys, *arguments)[1].startswith("120 samples of 4 tasks")


def test_metadata_reach_the_tasks(tokenizer, cached, monkeypatch, capsys):
    metadata = json.dumps({"length": 700, "num_samples": 3})
    code, out, _ = prepare(
        monkeypatch, capsys, "path_phonebook_any", "--tokenizer", tokenizer, "--metadata", metadata
    )
    assert code == 0 and out.startswith("3 samples of 1 tasks")


def test_missing_source_is_one_line_with_its_command(
    tokenizer, cached, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PATHEVAL_DATA", str(tmp_path))
    code, out, err = prepare(monkeypatch, capsys, "path_ruler_qa_2_4k", "--tokenizer", tokenizer)
    assert (code, out) == (2, "")
    assert "run `hf download namlh2004/hotpotqa" in err and err.count("\n") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sample_that_cannot_be_built_ends_it(tokenizer, cached, monkeypatch, capsys, workers):
    code, _, err = prepare(
        monkeypatch,
        capsys,
        "path_ruler_vt_512",
        "--tokenizer",
        tokenizer,
        "--workers",
        workers,
        "--limit",
        "60",
    )
    assert code == 2 and "ruler_vt cannot fit 512 tokens" in err


def start(tokenizer, cached):
    arguments = ["prepare", "path_phonebook_8k", "--tokenizer", tokenizer, "--workers", "2"]
    arguments += ["--metadata", '{"num_samples": 600}']
    return subprocess.Popen(
        [sys.executable, "-c", "from patheval.cli.main import main; main()", *arguments],
        env=os.environ | {"PATHEVAL_CACHE": str(cached)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(process):
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    )
    return [int(pid) for pid in listed.stdout.split()]


def wait_until(holds, seconds=120):
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_second_run_finishes_what_a_killed_one_began(tokenizer, cached):
    killed, other = start(tokenizer, cached), start(tokenizer, cached)
    workers = wait_until(lambda: children(killed) if len(children(killed)) == 2 else [])
    wait_until(lambda: any(cached.rglob("*.json.gz")))
    killed.kill()
    killed.wait()
    wait_until(lambda: not any(map(is_running, workers)))
    out, err = other.communicate(timeout=120)
    assert (other.returncode, err) == (0, "")
    assert out.startswith("600 samples of 1 tasks are ready")
    files = [file for file in cached.rglob("*") if file.is_file()]
    assert sum(file.name.endswith(".json.gz") for file in files) == 600


@pytest.mark.slow
def test_worker_that_is_killed_is_one_line(tokenizer, cached):
    process = start(tokenizer, cached)
    worker, _ = wait_until(lambda: children(process) if len(children(process)) == 2 else [])
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "was killed" in err and "fewer --workers" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["path_ruler_nope"], "no task, group or tag is called 'path_ruler_nope'"),
        (["path_phonebok_1k"], "did you mean path_phonebook_1k"),
        (["path_phonebook_512", "--metadata", "{"], "no JSON"),
        (["path_phonebook_512", "--metadata", "[]"], "no JSON object"),
    ],
)
def test_wrong_arguments_are_named(tokenizer, cached, monkeypatch, capsys, arguments, message):
    code, _, err = prepare(monkeypatch, capsys, *arguments, "--tokenizer", tokenizer)
    assert code == 2 and message in err


def test_nothing_is_prepared_without_a_cache(tokenizer, monkeypatch, capsys):
    monkeypatch.setenv("PATHEVAL_CACHE", "off")
    code, _, err = prepare(monkeypatch, capsys, "path_phonebook", "--tokenizer", tokenizer)
    assert code == 2 and "PATHEVAL_CACHE is off" in err
