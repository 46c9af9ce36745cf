"""The replay itself: what passes, what fails, and what cannot be replayed."""

import json

import pytest

from patheval.golden import registry
from patheval.golden.case import Case, Check, GoldenError
from patheval.golden.check import read_cases, replay

NUMBER = {
    "id": "phonebook-1",
    "benchmark": "phonebook",
    "task": "phonebook",
    "kind": "single",
    "prediction": " 8023417765\nAnn Lee: 6",
    "references": ["8023417765"],
    "expected_score": 1.0,
}


def case(tmp_path, **fields):
    return Case(NUMBER | fields, tmp_path / "golden.jsonl", 1)


@pytest.mark.parametrize(
    ("expected", "got", "passed"),
    [
        ("a", "a", True),
        ("a", "a ", False),
        (28.57, 28.57 + 1e-12, True),
        (28.57, 28.56, False),
        ({"mean": 0.5, "std": None}, {"std": None, "mean": 0.5}, True),
        ({"mean": 0.5}, {"mean": 0.5, "std": 0.1}, False),
        ([1, "x"], (1.0, "x"), True),
        ([1], [1, 2], False),
        (True, 1, False),
        (None, 0, False),
    ],
)
def test_equality(expected, got, passed):
    assert Check("score", expected, got).passed is passed


def test_difference_of_long_texts_is_shown_where_it_is():
    check = Check("prompt", "x" * 500 + "Ada", "x" * 500 + "Ben", reason="names")
    assert str(check) == (
        f"prompt: expected '{'x' * 20}Ada' around character 500, got '{'x' * 20}Ben' "
        "(on purpose: names)"
    )


def test_right_case_passes_and_wrong_one_fails(tmp_path):
    assert replay(case(tmp_path)).failures == ()
    wrong = replay(case(tmp_path, expected_score=0.0))
    assert wrong.failures == ("score: expected 0.0, got 1.0",)


def test_case_that_nothing_replays_has_failed(tmp_path):
    [unknown] = replay(case(tmp_path, benchmark="phonebok")).failures
    assert unknown.startswith("no benchmark 'phonebok'; there are babilong, ")
    assert replay(case(tmp_path, kind="sung")).failures == (
        "phonebook cannot replay the kind 'sung'",
    )


def test_case_without_what_its_kind_needs_has_failed(tmp_path):
    fields = {name: value for name, value in NUMBER.items() if name != "references"}
    [failure] = replay(Case(fields, tmp_path / "golden.jsonl", 3)).failures
    assert failure.startswith("line 3 of ") and "has no field 'references'" in failure


@pytest.mark.parametrize(
    "fields",
    [
        {"prediction": None},
        {"references": []},
        {"references": 3},
        {"kind": "aggregate", "prediction": []},
        {"kind": "aggregate", "prediction": "x"},
        {"kind": "generated", "prompt": None},
        {"benchmark": "ruler", "kind": "aggregate", "prediction": [], "references": []},
        {"benchmark": "word_problem", "task": "a5", "kind": "generated", "input": 3, "target": []},
    ],
)
def test_case_whose_fields_have_other_types_has_failed(tmp_path, fields):
    [failure] = replay(case(tmp_path, **fields)).failures
    assert failure.startswith("a field is not as recorded cases have it (")


def test_missing_input_file_is_named(tmp_path):
    with pytest.raises(GoldenError, match=f"{tmp_path}/inputs/facts.txt, which is missing"):
        case(tmp_path).input_file("facts.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no case"),
        ("{", "line 1 of .* is no JSON"),
        ("[1]", "line 1 of .* is no case: it has no text as benchmark and task and kind;"),
        ('{"benchmark": "ruler", "task": "vt"}', "it has no text as kind;"),
        ('{"benchmark": [], "task": 3, "kind": "single"}', "no text as benchmark and task;"),
    ],
)
def test_file_that_is_none_is_named(tmp_path, content, message):
    (tmp_path / "golden.jsonl").write_text(content)
    with pytest.raises(GoldenError, match=message):
        read_cases([tmp_path / "golden.jsonl"])


def test_missing_file_is_named(tmp_path):
    with pytest.raises(GoldenError, match=r"golden\.jsonl cannot be read"):
        read_cases([tmp_path / "golden.jsonl"])


def test_line_separators_inside_a_text_end_no_line(tmp_path):
    text = json.dumps(NUMBER | {"note": "a\u2028b"}, ensure_ascii=False)
    (tmp_path / "golden.jsonl").write_text(f"{text}\n\n{text}\n")
    assert [c.line for c in read_cases([tmp_path / "golden.jsonl"])] == [1, 3]


@pytest.mark.parametrize("benchmark", registry.ADAPTERS)
def test_every_benchmark_of_the_table_can_be_replayed(benchmark):
    assert callable(registry.replay_function(benchmark))
