import hashlib
import json

import pytest
from answering_lm import AnsweringLM, evaluate

from patheval.tasks.mqrar.sequences import N_BACK, VALUES, VARIABLES, label

N = [1, 2, 3, 4]


def nth_last(context, n_back):
    """Reads the answer from the text alone: what stood behind the variable n times ago."""
    *before, variable = context.split(" ")
    values = [
        value for name, value in zip(before[::2], before[1::2], strict=True) if name == variable
    ]
    return values[-n_back]


def test_labels_of_a_worked_example():
    symbols = ["k1", "v5", "k2", "v6", "k1", "v7", "k1", "v8", "k2", "v9", "k1", "v0"]
    assert label(symbols, n_back=1).labels == {4: "v5", 6: "v7", 8: "v6", 10: "v8"}
    assert label(symbols, n_back=2).labels == {6: "v5", 10: "v7"}
    assert label(symbols, n_back=3).labels == {10: "v5"}
    assert label(symbols, n_back=4).labels == {}


@pytest.mark.parametrize("n_back", N)
def test_sequences_have_the_size_of_the_paper(n_back):
    sequence = N_BACK[n_back].training_sequence(0, 0)
    assert len(sequence.symbols) == 768
    assert set(sequence.symbols[::2]) == set(VARIABLES)
    assert len(VARIABLES) == 32
    assert set(sequence.symbols[1::2]) <= set(VALUES)
    # Every occurrence of a variable but its first n.
    assert len(sequence.labels) == 384 - 32 * n_back


@pytest.mark.parametrize("n_back", N)
def test_knowing_model_scores_one_and_silent_one_zero(bpe_folder, n_back):
    task = f"path_mqrar_n{n_back}"

    def knowing(context, continuation):
        return -0.1, continuation == f" {nth_last(context, n_back)}"

    lm = AnsweringLM(score=knowing)
    results = evaluate(task, lm, limit=2, tokenizer=bpe_folder)
    scores = results["results"][task]
    assert (scores["acc,none"], scores["error,none"], scores["sequence_acc,none"]) == (1, 0, 1)
    assert results["n-samples"][task]["original"] == 200
    silent = AnsweringLM(score=lambda context, continuation: (-9.0, False))
    scores = evaluate(task, silent, limit=2, tokenizer=bpe_folder)["results"][task]
    assert (scores["acc,none"], scores["error,none"], scores["sequence_acc,none"]) == (0, 1, 0)


def test_latest_value_does_not_solve_the_second_last(bpe_folder):
    lm = AnsweringLM(
        score=lambda context, continuation: (-1.0, continuation == f" {nth_last(context, 1)}")
    )
    scores = evaluate("path_mqrar_n2", lm, tokenizer=bpe_folder)["results"]["path_mqrar_n2"]
    # One of 32 values agrees by chance, in three sequences of 320 labels: four standard errors.
    assert scores["acc,none"] == pytest.approx(1 / 32, abs=0.023)


def test_documents_are_the_recorded_ones_and_unlike_training(bpe_folder):
    docs = N_BACK[1].test_split(tokenizer=bpe_folder)["test"]
    assert docs[0]["text"] != docs[1]["text"]
    assert docs[0]["text"] != " ".join(N_BACK[1].training_sequence(0, 0).symbols)
    digest = hashlib.sha256(json.dumps([dict(docs[i]) for i in (1, 0)]).encode()).hexdigest()
    assert digest[:16] == "d90ee72e5eb7eee6"
