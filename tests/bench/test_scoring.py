"""The scoring benchmark: texts of exact size, honest arithmetic, and both routes in one run."""

from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer

from patheval.bench.scoring import (
    LM_EVAL,
    OURS,
    WORKLOADS,
    Model,
    TextMaker,
    Workload,
    _rows,
    _word_tokenizer,
    main,
    make_checkpoint,
)
from patheval.checkpoint.reader import open_checkpoint
from patheval.errors import UnsupportedError
from patheval.tokenization import TokenCodec, load_tokenizer

TINY = Model(hidden_size=64, num_layers=1, num_heads=2, intermediate_size=64, vocab_size=1000)


@pytest.mark.parametrize("source", ["words", "zoo:path"])
@pytest.mark.parametrize("workload", ["short", "letters", "long_unaligned"])
def test_texts_have_the_tokens_that_the_workload_says(source: str, workload: str) -> None:
    tokenizer = _word_tokenizer(1000) if source == "words" else load_tokenizer(source)
    size = WORKLOADS[workload]
    pairs = TextMaker(tokenizer).pairs(size, 3, seed=0)
    assert len(pairs) == len(set(pairs)) == 3 * size.num_choices
    assert len({context for context, _ in pairs}) == 3
    for context, continuation in TokenCodec(tokenizer).encode_pairs(pairs):
        assert (len(context), len(continuation)) == (size.context, size.continuation)


def test_texts_differ_between_repetitions_and_not_between_routes() -> None:
    make, other = TextMaker(_word_tokenizer(1000)), TextMaker(_word_tokenizer(1000))
    size = Workload(2, 2, 10, 3)
    assert make.pairs(size, 2, seed=1) == other.pairs(size, 2, seed=1)
    assert not set(make.pairs(size, 2, seed=1)) & set(make.pairs(size, 2, seed=2))


def test_a_tokenizer_without_words_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="1 words"):
        TextMaker(byte_tokenizer())


@pytest.mark.parametrize("attention", ["path", "path-fox", "fox", "rope"])
def test_made_checkpoints_are_of_the_kind(attention: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_checkpoint(tmp_path / "made", attention, TINY))
    assert checkpoint.config.attention == attention
    assert len(checkpoint.fingerprint()) == 64


def test_rows_compare_the_fastest_repetitions() -> None:
    def report(seconds: list[float], scores: list[float]) -> dict[str, Any]:
        own = {"seconds": seconds, "scores": scores}
        return {"workloads": {"letters": own}, "peak_gpu_memory_bytes": None}

    measured = {LM_EVAL: report([9.0, 8.0], [-1.0, -2.0]), OURS: report([2.0, 3.0], [-1.5, -2.0])}
    theirs, ours = _rows(measured, ["letters"])
    assert (theirs.speedup, theirs.max_difference) == (1.0, 0.0)
    assert (ours.speedup, ours.max_difference) == (4.0, 0.5)
    assert (ours.choices_per_second, ours.context_tokens_per_second) == (1.0, 500.0)
    (alone,) = _rows({OURS: measured[OURS]}, ["letters"])
    assert alone.speedup is None and alone.max_difference is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workloads": ["huge"]}, "workload is 'huge'; pass some of short"),
        ({"routes": ["hf"]}, "route is 'hf'"),
        ({"attention": "linear"}, "attention is 'linear'"),
    ],
)
def test_unknown_names_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        main(**arguments)


@pytest.mark.slow
def test_both_routes_in_one_run_give_equal_scores() -> None:
    report = main(
        attention="path",
        model=TINY,
        workloads=["letters"],
        fraction=0.003,
        repeats=1,
        dtype="float32",
    )
    theirs, ours = report["rows"]
    assert (theirs["route"], ours["route"]) == (LM_EVAL, OURS)
    assert ours["num_choices"] == 12
    assert ours["max_difference"] < 1e-3
    assert report["environment"]["versions"]["lm-eval"]
