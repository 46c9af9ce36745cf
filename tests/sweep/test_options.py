"""What a sweep is asked for, from the command line, from YAML, or both."""

from pathlib import Path

import pytest

from patheval.errors import UnsupportedError
from patheval.leaderboard.catalogue import LONGBENCH_E
from patheval.sweep.options import Model, read_options
from patheval.sweep.suites import SUITES, select

GIVEN = {"model": ("rope=zoo:rope", "path=ckpt=1/x"), "suite": "ruler,ppl", "out": "results"}


def test_command_line_alone():
    options = read_options({**GIVEN, "lengths": "4k,512,1k", "model_args": "dtype=auto,a=1"}, None)
    assert options.models == (Model("rope", "zoo:rope"), Model("path", "ckpt=1/x"))
    assert options.suites == ("ruler", "ppl")
    assert options.lengths == (512, 1024, 4096)
    assert options.model_args == {"dtype": "auto", "a": 1}
    assert options.out == Path("results")
    assert options.arguments(options.models[0], 99) == {
        "pretrained": "zoo:rope",
        "dtype": "auto",
        "a": 1,
        "max_length": 99,
    }


def test_yaml_holds_the_same_and_the_command_line_wins(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        """
        model:
          rope: zoo:rope
          path: {pretrained: /ckpt, dtype: float32}
        suite: [phonebook]
        lengths: [1k, 2048]
        max-length: 8k
        metadata: {num_samples: 5}
        out: here
        """
    )
    options = read_options({"suite": "ruler", "out": None, "tasks": ()}, path)
    assert options.models[1] == Model("path", "/ckpt", {"dtype": "float32"})
    assert options.suites == ("ruler",)
    assert (options.lengths, options.max_length) == ((1024, 2048), 8192)
    assert options.metadata == {"num_samples": 5}
    assert options.out == Path("here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ()}, "no model is named"),
        ({"model": ("rope",)}, "write NAME=CHECKPOINT"),
        ({"model": ("a=x", "a=y")}, "two models are called a"),
        ({"suite": None}, "nothing is to be run"),
        ({"out": None}, "no folder is named"),
        ({"lengths": "4x"}, "lengths is '4x'; write tokens, or 4k"),
        ({"lengths": "1k,,-2k"}, "lengths is '-2k'"),
        ({"lengths": {"a": 1}}, "write lengths such as 1k"),
        ({"max_length": "0"}, "max_length is '0'"),
        ({"limit": -1}, "positive number"),
        ({"limit": float("nan")}, "positive number"),
        ({"limit": True}, "positive number"),
        ({"model_args": "max_length=512"}, "max_length=512 is among .*; pass --max-length"),
        ({"model_args": "pretrained=x"}, "name checkpoints with --model NAME=CHECKPOINT"),
        ({"model": ("..=x",)}, "a model is called '..'"),
        ({"model": ("/a/b=x",)}, "begins with none of"),
        ({"model": (" =x",)}, "a model is called ' '"),
        ({"model": ("a\nb=x",)}, "is printable"),
        ({"model": ("a" * 121 + "=x",)}, "at most 120 bytes"),
    ],
)
def test_faults_of_the_command_line(change, message):
    with pytest.raises(UnsupportedError, match=message):
        read_options({**GIVEN, **change}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "holds no options"),
        ("a: [", "cannot be read"),
        ("sweet: table3", "unknown option sweet; it may have model, suite"),
        ("model: {a: 3}", "model a is 3; write a checkpoint"),
        ("model: 3", "write NAME: CHECKPOINT"),
        ("model: {a: x, a: y}", "'a' stands twice"),
        ("suite: ruler\nsuite: ppl", "'suite' stands twice"),
        ("lengths: 1.5", "write a list of names"),
        ("metadata: [1]", "write key: value pairs"),
        ("? [1]\n: 2", "cannot be read"),
    ],
)
def test_faults_of_the_file(tmp_path, text, message):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    model = () if text.startswith("model") else ("rope=zoo:rope",)
    with pytest.raises(UnsupportedError, match=message):
        read_options({"model": model, "suite": "ruler", "out": "x"}, path)
    with pytest.raises(UnsupportedError, match="cannot be read"):
        read_options({}, tmp_path / "none.yaml")


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnsupportedError, match="cannot be read"):
        read_options(GIVEN, path)


RULER = SUITES["ruler"][0].subtasks
NAMES = (
    [f"path_ruler_{task}_{label}" for task in RULER for label in ("4k", "8k", "64k", "any")]
    + [f"path_phonebook_{label}" for label in ("1k", "2k", "4k", "8k", "any")]
    + [f"path_babilong_qa{i}_{label}" for i in range(1, 8) for label in ("0k", "4k", "64k")]
    + ["path_babilong_offline_qa1_4k", "path_fflm_sparse", "piqa", "path_ruler_offline_qa_1_4k"]
    + [f"path_longbench_e_{s}_{b}" for s in LONGBENCH_E for b in ("0-4k", "4-8k", "8k+")]
    + ["path_longbench_e_passage_count_0-4k"]
)  # fmt: skip


def test_a_suite_takes_its_tasks_and_lengths_longest_first():
    found = select(NAMES, ["ruler"], [4096, 8192], [])
    assert found.faults == ()
    assert len(found.tasks) == 26
    assert all(name.endswith("_8k") for name in found.tasks[:13])
    assert not any("offline" in name or "any" in name for name in found.tasks)


def test_table_3_has_the_papers_lengths():
    found = select(NAMES, ["table3"], [], [])
    lengths = {name.rpartition("_")[2] for name in found.tasks if "phonebook" in name}
    assert lengths == {"2k", "4k", "8k"}
    assert {name.rpartition("_")[2] for name in found.tasks if "babilong" in name} == {"0k", "4k"}
    assert not any("qa6" in name or "passage" in name for name in found.tasks)
    assert sum("longbench" in name for name in found.tasks) == 33


def test_buckets_end_within_the_longest_length():
    found = select(NAMES, ["table7"], [4096, 8192], [])
    assert {name.rpartition("_")[2] for name in found.tasks} == {"0-4k", "4-8k"}


def test_all_faults_at_once():
    found = select(NAMES, ["ruler", "nonsense"], [4096], ["path_x_*"])
    assert len(found.faults) == 2
    assert "no suite nonsense" in found.faults[0]
    assert "no task matches path_x_*" in found.faults[1]
    (misspelt,) = select(NAMES, [], [], ["path_phonebok_1k"]).faults
    assert "no task matches path_phonebok_1k; did you mean path_phonebook_1k" in misspelt
    without = [name for name in NAMES if "ruler_vt" not in name]
    assert "ruler tasks that do not exist: vt" in select(without, ["ruler"], [], []).faults[0]
    assert "and there are none" in select(NAMES, ["ppl"], [], []).faults[0]
    assert "has the length 2k" in select(NAMES, ["ruler"], [2048, 4096], []).faults[0]


def test_tasks_can_be_left_out():
    found = select(NAMES, ["ruler"], [4096], [], ["path_ruler_cwe_*", "path_ruler_qa_1_4k"])
    assert len(found.tasks) == 11
    assert not any("cwe" in name or "qa_1" in name for name in found.tasks)
    wrong = select(NAMES, ["ruler"], [4096], [], ["path_phonebook_*"])
    assert "--skip path_phonebook_* matches none" in wrong.faults[0]


def test_patterns_add_stand_ins_and_tasks_of_any_length():
    found = select(NAMES, ["phonebook"], [1024], ["path_babilong_offline_*", "path_phonebook_any"])
    assert set(found.tasks) == {
        "path_phonebook_1k",
        "path_babilong_offline_qa1_4k",
        "path_phonebook_any",
    }
