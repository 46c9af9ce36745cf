import hashlib
import json
from pathlib import Path

import pytest
from answering_lm import AnsweringLM, evaluate

from patheval.golden.case import Case
from patheval.tasks.word_problem.golden import replay
from patheval.tasks.word_problem.sequences import A5, GROUPS, S5

ORDERS = {"a5": 60, "s5": 120}
# Written by jopetty/word-problem at 8f910f9.
RECORDED = {
    "a5": [
        (
            [59, 38, 33, 41, 50, 46, 13, 1, 18, 16, 12, 56, 52, 18, 39, 23, 54, 27, 15, 14],
            [59, 21, 6, 32, 15, 47, 57, 59, 41, 21, 51, 25, 13, 3, 54, 31, 0, 27, 12, 1],
        ),
        (
            [48, 41, 20, 9, 57, 20, 5, 5, 50, 36, 48, 43, 32, 58, 22, 33, 49, 37, 51, 34],
            [48, 25, 9, 5, 18, 47, 43, 41, 30, 16, 0, 43, 14, 30, 45, 4, 50, 23, 34, 20],
        ),
    ],
    "s5": [
        (
            [84, 5, 27, 34, 9, 27, 12, 33, 76, 43, 44, 25, 32, 112, 77, 73, 20, 87, 19, 45],
            [84, 89, 62, 83, 94, 114, 106, 36, 59, 24, 20, 99, 9, 40, 1, 97, 110, 0, 19, 111],
        ),
        (
            [118, 76, 66, 82, 101, 93, 27, 3, 37, 32, 25, 113, 105, 37, 78, 47, 109, 55, 31, 29],
            [118, 19, 31, 113, 19, 89, 62, 61, 95, 111, 68, 79, 55, 45, 93, 98, 89, 112, 65, 84],
        ),
    ],
}


@pytest.mark.parametrize("name", GROUPS)
def test_recorded_products_of_the_original_are_reproduced(name):
    for numbers, products in RECORDED[name]:
        assert GROUPS[name].prefix_products(numbers) == products


@pytest.mark.parametrize("name", GROUPS)
def test_elements_form_the_group(name):
    group = GROUPS[name]
    order = ORDERS[name]
    assert len(group.elements) == order
    assert group.elements[0] == (1, 2, 3, 4, 5)
    for left in range(order):
        row = [group.product(left, right) for right in range(order)]
        assert sorted(row) == list(range(order))
        assert (row[0], group.product(0, left)) == (left, left)
    for a, b, c in [(7, 31, 59), (44, 2, 17), (58, 57, 13)]:
        assert group.product(group.product(a, b), c) == group.product(a, group.product(b, c))


@pytest.mark.parametrize(("name", "source"), [("a5", A5), ("s5", S5)])
def test_elements_are_drawn_uniformly_and_labelled_with_the_product(name, source):
    drawn = []
    for index in range(100):
        sequence = source.training_sequence(0, index)
        assert len(sequence.symbols) == 20
        numbers = [int(symbol) for symbol in sequence.symbols]
        assert [int(label) for label in sequence.labels.values()] == (
            GROUPS[name].prefix_products(numbers)
        )
        assert list(sequence.labels) == list(range(20))
        drawn += numbers
    assert len(set(drawn)) == ORDERS[name]
    assert sum(drawn) / len(drawn) == pytest.approx((ORDERS[name] - 1) / 2, rel=0.06)


@pytest.mark.parametrize("name", GROUPS)
def test_knowing_model_scores_one_and_silent_one_zero(bpe_folder, name):
    task = f"path_{name}"

    def knowing(context, continuation):
        product = GROUPS[name].prefix_products([int(word) for word in context.split()])[-1]
        return -0.1, continuation == f" {product}"

    lm = AnsweringLM(score=knowing)
    results = evaluate(task, lm, tokenizer=bpe_folder)
    scores = results["results"][task]
    assert (scores["acc,none"], scores["error,none"], scores["sequence_acc,none"]) == (1, 0, 1)
    assert results["n-samples"][task]["original"] == 1000
    assert len(lm.requests) == 60
    silent = AnsweringLM(score=lambda context, continuation: (-9.0, False))
    scores = evaluate(task, silent, tokenizer=bpe_folder)["results"][task]
    assert (scores["acc,none"], scores["error,none"], scores["sequence_acc,none"]) == (0, 1, 0)


def test_documents_are_the_recorded_ones_and_unlike_training(bpe_folder):
    docs = S5.test_split(tokenizer=bpe_folder)["test"]
    assert docs[0]["text"] != " ".join(S5.training_sequence(0, 0).symbols)
    digest = hashlib.sha256(json.dumps([dict(docs[i]) for i in (1, 0)]).encode()).hexdigest()
    assert digest[:16] == "f3f1d5de74c41ba3"


def test_recorded_cases_are_replayed():
    [(numbers, products), _] = RECORDED["a5"]
    fields = {"kind": "generated", "task": "a5", "input": numbers, "target": products}
    [check] = replay(Case(fields, Path("golden.jsonl"), 1))
    assert check.passed
    [check] = replay(Case(fields | {"task": "s5"}, Path("golden.jsonl"), 1))
    assert not check.passed
