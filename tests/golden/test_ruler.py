"""RULER's and PhoneBook's adapters, on cases whose outcome was computed by hand."""

import pytest

from patheval.golden.case import Case
from patheval.golden.check import replay


def outcome(tmp_path, **fields):
    return replay(Case(fields, tmp_path / "golden.jsonl", 1)).failures


NEEDLE = "One of the special magic numbers for wet-hat is: 1234567."
NIAH = {
    "benchmark": "ruler",
    "task": "niah_multivalue",
    "kind": "generated",
    "prompt": (
        "Some special magic numbers are hidden within the following text. Make sure to memorize "
        f"it. I will quiz you about the numbers afterwards.\n{NEEDLE} Ada came.\nWhat are all the "
        "special magic numbers for wet-hat mentioned in the provided text?"
    ),
    "answer_prefix": " The special magic numbers for wet-hat mentioned in the provided text are",
    "references": ["1234567"],
    "parts": {
        "context": f"{NEEDLE} Ada came.",
        "query": "wet-hat",
        "type_needle_v_in_prompt": "numbers",
        "needles_in_order": [{"key": "wet-hat", "value": "1234567", "char_offset": 137}],
    },
}
QA = {
    "benchmark": "ruler",
    "task": "qa_1",
    "kind": "generated",
    "prompt": (
        "Answer the question based on the given documents. Only give me the answer and do not "
        "output any other words.\n\nThe following are given documents.\n\nDocument 1:\nAda\n\n"
        "Document 3:\ncame.\n\nDocument 2:\nBen left.\n\nAnswer the question based on the given "
        "documents. Only give me the answer and do not output any other words.\n\nQuestion: Who?"
    ),
    "answer_prefix": " Answer:",
    "references": ["Ada"],
    "parts": {
        "context": "Document 1:\nAda\n\nDocument 3:\ncame.\n\nDocument 2:\nBen left.",
        "query": "Who?",
    },
}


@pytest.mark.parametrize("recorded", [NIAH, QA], ids=["niah", "qa"])
def test_prompts_are_rendered_again(tmp_path, recorded):
    assert outcome(tmp_path, **recorded) == ()
    [failure] = outcome(tmp_path, **(recorded | {"prompt": recorded["prompt"] + " "}))
    assert failure.startswith("prompt: ")
    [failure] = outcome(tmp_path, **(recorded | {"answer_prefix": "Answer:"}))
    assert failure.startswith("answer prefix: ")


def test_needle_elsewhere_is_a_difference(tmp_path):
    needle = NIAH["parts"]["needles_in_order"][0] | {"char_offset": 138}
    parts = NIAH["parts"] | {"needles_in_order": [needle]}
    [failure] = outcome(tmp_path, **(NIAH | {"parts": parts}))
    assert failure.startswith("needle wet-hat: ")


def test_scores_are_percent_with_two_decimals(tmp_path):
    single = {
        "benchmark": "ruler",
        "task": "vt",
        "kind": "single",
        "prediction": " abc\x00 DEF ",
        "references": ["ABC", "DEF", "GHI"],
        "expected_score": 66.67,
        "postprocessed": "abc\n DEF",
        "is_null": False,
    }
    assert outcome(tmp_path, **single) == ()
    assert outcome(tmp_path, **(single | {"task": "qa_1", "expected_score": 100.0})) == ()
    assert len(outcome(tmp_path, **(single | {"is_null": True, "postprocessed": "abc"}))) == 2
    aggregate = {
        "benchmark": "ruler",
        "task": "vt",
        "kind": "aggregate",
        "prediction": ["a", "", "b"],
        "references": [["a"], ["a"], ["a", "b", "c"]],
        "nulls": "1/3",
        "expected_score": 44.44,
    }
    assert outcome(tmp_path, **aggregate) == ()
    assert outcome(tmp_path, **(aggregate | {"task": "qa_2", "expected_score": 66.67})) == ()
    assert len(outcome(tmp_path, **(aggregate | {"nulls": "0/3"}))) == 1


def test_phonebook(tmp_path):
    prompt = "Ann Lee: 61\nBo Day: 72\nCy Ray: 83\n\nBo Day: 72\nCy Ray: 83\n\nAnn Lee:"
    generated = {
        "benchmark": "phonebook",
        "task": "phonebook",
        "kind": "generated",
        "prompt": prompt,
        "references": ["61"],
        "n_entries": 3,
        "queried_name": "Ann Lee",
        "fewshot": ["Bo Day: 72", "Cy Ray: 83"],
    }
    assert outcome(tmp_path, **generated) == ()
    assert len(outcome(tmp_path, **(generated | {"n_entries": 4, "references": ["72"]}))) == 2
    batches = {
        "benchmark": "phonebook",
        "task": "phonebook",
        "kind": "aggregate",
        "prediction": [[1, 1], [1, 0]],
        "expected_score": {"mean": 0.75, "std": 0.25},
    }
    assert outcome(tmp_path, **batches) == ()
