"""The flip-flop tasks, and what all state-tracking tasks share."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from answering_lm import AnsweringLM, evaluate, manager
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from patheval.errors import UnsupportedError
from patheval.golden.case import Case
from patheval.tasks.fflm.golden import replay
from patheval.tasks.fflm.sequences import ALPHABET, DENSE, IID, SPARSE, label

SOURCES = {
    "iid": (IID, 0.8, 16_000),
    "sparse": (SPARSE, 0.98, 160_000),
    "dense": (DENSE, 0.1, 4000),
}


@pytest.fixture(scope="session")
def symbol_folder(tmp_path_factory):
    """A tokenizer as models trained for the task have it: one token for each symbol."""
    vocabulary = {symbol: number for number, symbol in enumerate(["<s>", "<unk>", *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path_factory.mktemp("symbols")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return str(folder)


def last_written(context):
    """Reads the answer from the text alone: the bit behind the last w."""
    return re.findall(r"w ([01])", context)[-1]


def knowing(context, continuation):
    assert context.endswith(" r")
    return -0.1, continuation == f" {last_written(context)}"


@pytest.mark.parametrize("split", SOURCES)
def test_strings_follow_the_definition(split):
    source, ignore, num_samples = SOURCES[split]
    assert source.num_samples == num_samples
    instructions = []
    for index in range(60):
        symbols = source.training_sequence(0, index).symbols
        assert len(symbols) == 512
        assert (symbols[0], symbols[-2]) == ("w", "r")
        assert set(symbols[1::2]) == {"0", "1"}
        stored = None
        for instruction, bit in zip(symbols[::2], symbols[1::2], strict=True):
            assert instruction in "wri"
            if instruction == "w":
                stored = bit
            assert instruction != "r" or bit == stored
        instructions += symbols[2:-2:2]
    share = {letter: instructions.count(letter) / len(instructions) for letter in "wri"}
    # Four standard errors of 60 x 254 draws.
    assert share["i"] == pytest.approx(ignore, abs=0.013)
    assert share["w"] == pytest.approx((1 - ignore) / 2, abs=0.013)


def test_recorded_string_has_its_recorded_reads():
    # Written by an independent sampler of FFL(0.98).
    recorded = (
        "w1i1i0i1i1i0i0i1r1i1i1i1i0i0i1i0i1i1i1i1i0i1i0i0i0i1i0i0i0i1r1i1i0i0i0i1i1i0i0i0"
        "i1i1i0i0i1i1i0i1i1i0i1i0i0i0i0i1i0i1i0i0i0i1i1i0i0i0i1i1i1i0i1i1i1i1i0i0i0i0i0i1"
        "i1i0i0i0i0i0i0i0i1i1i0i1i1i0i1i1i1i1i1i0i0i0i1i1i1i1i0i0i1i0i0i1i0i1i0i0i1i1i1i1"
        "i1i1i1i1i0i0i0i0i1i1i0i1i1i1i0i1i0i0i0i0i0i1i0i1i0i0i0i0i0i0i1i1i0i0i0i1i0i0i0i1"
        "i0i0r1i1i0i1i1i1i0i1i1i1i1i1i1i0i1i1i1i1i0i1i1i1i0i0i1i0i0i0i1i0i0i0i1i1i1i1i1i0"
        "i0i1i1i0i1i1i1i1i0i0i0i0w0i0i1i1i1i0i0i0i1i1i0i1i0i1i1i0i1i0i1i1i1i0i1i0i0i0i1i0"
        "i1i0i1i1i0i1i1i0i0i1i1i1i0i1i1r0"
    )
    assert label(recorded).labels == {16: "1", 60: "1", 324: "1", 510: "0"}
    assert label("w1i1w0i0r0i0i1r0w1r1").labels == {8: "0", 14: "0", 18: "1"}


@pytest.mark.parametrize("split", SOURCES)
def test_knowing_model_makes_no_error_and_silent_one_only_errors(symbol_folder, split):
    task = f"path_fflm_{split}"
    lm = AnsweringLM(score=knowing)
    results = evaluate(task, lm, tokenizer=symbol_folder)
    scores = results["results"][task]
    assert (scores["error,none"], scores["acc,none"], scores["sequence_acc,none"]) == (0, 1, 1)
    assert results["n-samples"][task] == {"original": SOURCES[split][2], "effective": 3}
    reads = sum(sample["doc"]["text"].count("r") for sample in results["samples"][task])
    assert len(lm.requests) == reads
    silent = AnsweringLM(score=lambda context, continuation: (-9.0, False))
    scores = evaluate(task, silent, tokenizer=symbol_folder)["results"][task]
    assert (scores["error,none"], scores["acc,none"], scores["sequence_acc,none"]) == (1, 0, 0)


def test_error_is_the_share_of_all_reads(symbol_folder):
    lm = AnsweringLM(score=lambda context, continuation: (-1.0, len(context) > 200))
    results = evaluate("path_fflm_dense", lm, tokenizer=symbol_folder)
    texts = [sample["doc"]["text"] for sample in results["samples"]["path_fflm_dense"]]
    early = sum(text[:200].count("r") for text in texts)
    reads = sum(text.count("r") for text in texts)
    scores = results["results"]["path_fflm_dense"]
    assert scores["error,none"] == early / reads
    assert scores["acc,none"] == pytest.approx(1 - early / reads)


def test_tokenizers_for_prose_are_asked_as_well(tokenizer_folders):
    lm = AnsweringLM(score=knowing)
    for kind in ("bpe-2k", "chars-bos"):
        results = evaluate("path_fflm_sparse", lm, limit=1, tokenizer=tokenizer_folders[kind])
        assert results["results"]["path_fflm_sparse"]["error,none"] == 0


def test_tokenizer_that_does_not_tell_symbols_apart_is_refused(tmp_path):
    vocabulary = {"<unk>": 0, "w": 1, "r": 2, "i": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<unk>", unk_token="<unk>"
    ).save_pretrained(tmp_path)
    # Reads well "w r i" but gives both bits one token, so that any bit would seem right.
    with pytest.raises(UnsupportedError, match="does not give each symbol of path_fflm_iid tokens"):
        IID.test_split(tokenizer=str(tmp_path))


def test_chat_template_and_examples_are_refused(symbol_folder):
    task = manager(tokenizer=symbol_folder).load(["path_fflm_iid"])["tasks"]["path_fflm_iid"]
    doc = task.eval_docs[0]
    with pytest.raises(UnsupportedError, match="asks about bare sequences; run it without"):
        task.construct_requests(doc, f"User: {doc['text']}", metadata=("path_fflm_iid", 0, 1))


@pytest.mark.parametrize("split", SOURCES)
def test_no_test_string_is_a_training_string(symbol_folder, split):
    docs = SOURCES[split][0].test_split(tokenizer=symbol_folder, num_samples=300)["test"]
    test = {doc["text"] for doc in docs}
    training = {
        " ".join(SOURCES[split][0].training_sequence(seed, index).symbols)
        for seed in (0, 1)
        for index in range(300)
    }
    assert (len(test), len(training), len(test & training)) == (300, 600, 0)


@pytest.mark.parametrize("metadata", [{"num_samples": 0}, {"data_seed": "x"}])
def test_settings_that_make_no_sense_are_refused(symbol_folder, metadata):
    with pytest.raises(UnsupportedError, match="correct it in --metadata"):
        IID.test_split(tokenizer=symbol_folder, **metadata)


def test_documents_depend_on_nothing_but_their_key(symbol_folder):
    docs = IID.test_split(tokenizer=symbol_folder)["test"]
    backwards = IID.test_split(tokenizer=symbol_folder, num_samples=5)["test"]
    assert [backwards[index] for index in (4, 3, 2, 1, 0)] == [docs[i] for i in (4, 3, 2, 1, 0)]
    other_seed = IID.test_split(tokenizer=symbol_folder, data_seed=1)["test"]
    texts = {docs[0]["text"], docs[1]["text"], other_seed[0]["text"]}
    assert len(texts | {" ".join(IID.training_sequence(0, 0).symbols)}) == 4
    # Recorded once: the data are the same on every platform and Python version.
    digest = hashlib.sha256(json.dumps([dict(docs[i]) for i in range(3)]).encode()).hexdigest()
    assert digest[:16] == "5324cd2fe56b848b"


def test_recorded_cases_are_replayed():
    fields = {"kind": "by_definition", "text": "w1i0r1w0r0", "read_positions": [5, 9]}
    case = Case(fields | {"read_bits": ["1", "0"]}, Path("golden.jsonl"), 1)
    assert [check.passed for check in replay(case)] == [True, True]
    case = Case(fields | {"read_bits": ["1", "1"]}, Path("golden.jsonl"), 1)
    assert [check.passed for check in replay(case)] == [True, False]
    assert list(replay(Case({"kind": "other"}, Path("golden.jsonl"), 1))) == []
