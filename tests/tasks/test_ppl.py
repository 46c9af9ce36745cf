"""Perplexity by position: buckets, texts, and the numbers of a real model."""

import itertools
import math

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from answering_lm import AnsweringLM, evaluate, manager
from datasets import Dataset

from patheval.errors import PrerequisiteError, UnsupportedError
from patheval.tasks.ppl import texts
from patheval.tasks.ppl.generate import LONGEST, bucket_edges, build_doc, exp_mean, ppl
from patheval.tasks.texts import Text
from patheval.tasks.tokenization import load_tokenizer

LABELS = ["512", "1k", "2k", "4k", "8k", "16k", "32k", "64k"]
REAL, OFFLINE = ["pg19", "codeparrot", "narrativeqa"], ["plays", "code"]


def task_name(corpus, label):
    return f"path_ppl_{corpus}_{label}" + ("_offline" if corpus in OFFLINE else "")


def prose(number, num_words):
    return " ".join(f"Word{(number + n * n) % 997} is here." for n in range(num_words // 3))


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """A data folder with two long texts and one short one in each data set."""
    contents = [prose(1, 60_000), "Too short.", prose(2, 90_000)]
    books = tmp_path / "emozilla/pg19-test/data"
    books.mkdir(parents=True)
    titles = ["First", "Second", "Third"]
    Dataset.from_dict({"short_book_title": titles, "text": contents}).to_parquet(
        books / "test.parquet"
    )
    code = tmp_path / "codeparrot/codeparrot-clean-valid"
    code.mkdir(parents=True)
    files = [f"def function_{n}(argument):\n    return argument + {n}\n" * 40 for n in range(300)]
    Dataset.from_dict({"content": files}).to_json(code / "train.json")
    for number in (0, 1, 4):
        path = tmp_path / f"deepmind/narrativeqa/data/test-0000{number}-of-00008.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        # As in the original, a story is there once for each of its questions.
        documents = [
            {"id": f"{number}-{n}", "text": contents[n], "kind": "book"} for n in (0, 0, 1)
        ]
        parquet.write_table(pa.table({"document": documents, "answers": [[], [], []]}), path)
    return {"data_dir": str(tmp_path), "own_data": True}


def counting(tokenizer):
    """Gives each token the log-probability -1 / (its position), as a function of the text alone."""

    def score(context, continuation):
        start, end = tokenizer.num_tokens(context), tokenizer.num_tokens(context + continuation)
        return -sum(1 / position for position in range(start, end)), False

    return score


def test_buckets_double_and_end_at_the_length():
    assert bucket_edges(512) == [512]
    assert bucket_edges(4096) == [512, 1024, 2048, 4096]
    assert bucket_edges(3000) == [512, 1024, 2048, 3000]


@pytest.mark.parametrize("kind", ["bpe-2k", "bpe-12k", "bpe-2k-bos", "chars-bos"])
def test_cuts_leave_the_tokens_in_front_as_they_were(tokenizer_folders, kind):
    tokenizer = load_tokenizer({"tokenizer": tokenizer_folders[kind]})
    text = Text(
        "t", "  Once upon\n\n  a time. " + prose(3, 3000) + "\n\tdef f(x):\n        return x\n" * 99
    )
    doc = build_doc(tokenizer, text, 4096, 0, "")
    whole = tokenizer._encode(doc["text"])
    assert doc["num_tokens"] == len(whole)
    assert doc["labels"] == ["512", "1k", "2k", "4k"]
    edges = [doc["ends_tokens"][0], 512, 1024, 2048, 4096]
    for end, num_tokens, edge in zip(doc["ends"], doc["ends_tokens"], edges, strict=True):
        assert whole[:num_tokens] == tokenizer._encode(doc["text"][:end])
        assert edge - 16 < num_tokens <= edge
        assert end == len(doc["text"]) or doc["text"][end].isspace()
    assert doc["text"][: doc["ends"][0]] == "  Once"


def test_tokenizer_whose_tokens_span_words_is_refused(tokenizer_folders):
    tokenizer = load_tokenizer({"tokenizer": tokenizer_folders["two-lines"]})
    noise = (
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    )
    with pytest.raises(UnsupportedError, match="pass one that splits text at spaces"):
        build_doc(tokenizer, Text("t", f"{noise}\n" * 9000), 4096, 0, "")


@pytest.mark.parametrize("corpus", REAL + OFFLINE)
def test_losses_are_those_of_the_tokens_in_each_bucket(data_folder, english_folder, corpus):
    given = {"tokenizer": english_folder, **data_folder}
    tokenizer = load_tokenizer(given)
    name = task_name(corpus, "1k")
    lm = AnsweringLM(score=counting(tokenizer))
    results = evaluate(name, lm, limit=2, **given)
    scores = results["results"][name]
    bounds = [sample["doc"]["ends_tokens"] for sample in results["samples"][name]]

    def expected(first, last):
        """Mean of 1 / position over the positions from one bound of a text to another."""
        means = [
            sum(1 / position for position in range(own[first], own[last]))
            / (own[last] - own[first])
            for own in bounds
        ]
        return sum(means) / len(means)

    assert scores["nll_512,none"] == pytest.approx(expected(0, 1))
    assert scores["nll_1k,none"] == pytest.approx(expected(1, 2))
    assert scores["nll,none"] == pytest.approx(expected(0, 2))
    losses = [sample["nll"] for sample in results["samples"][name]]
    assert scores["perplexity,none"] == pytest.approx(math.exp(sum(losses) / len(losses)))
    for sample in results["samples"][name]:
        assert 0.97 * 1024 <= sample["doc"]["num_tokens"] <= 1024
        # Each request is the beginning of the next, so that a text is read once.
        wholes = ["".join(pair) for pair in sample["arguments"]]
        assert wholes[-1] == sample["doc"]["text"]
        assert all(b.startswith(a) for a, b in itertools.pairwise(wholes))
        assert [pair[0] for pair in sample["arguments"]][1:] == wholes[:-1]


def test_certain_model_has_perplexity_one(data_folder, english_folder):
    lm = AnsweringLM(score=lambda context, continuation: (0.0, True))
    results = evaluate("path_ppl_pg19_512", lm, tokenizer=english_folder, **data_folder)
    scores = results["results"]["path_ppl_pg19_512"]
    assert (scores["nll,none"], scores["perplexity,none"], scores["nll_512,none"]) == (0, 1, 0)
    assert exp_mean([1.0, 3.0]) == pytest.approx(math.exp(2))


def test_all_lengths_use_the_same_texts_and_short_ones_are_left_out(data_folder, english_folder):
    given = {"tokenizer": english_folder, **data_folder}
    for length in (512, 4096, LONGEST):
        docs = ppl(corpus="pg19", target_length=length, **given)["test"]
        assert [doc["name"] for doc in docs] == ["First", "Third"]
    short, long = (ppl(corpus="pg19", target_length=n, **given)["test"][1] for n in (512, LONGEST))
    assert long["text"].startswith(short["text"])
    assert long["labels"] == LABELS
    assert 0.97 * LONGEST < long["num_tokens"] <= LONGEST


def test_stories_are_taken_once_and_files_are_joined(data_folder):
    stories = texts.narrativeqa(data_folder).texts
    assert [story.name for story in stories] == [f"{n}-{k}" for n in (0, 1, 4) for k in (0, 1)]
    joined = texts.codeparrot(data_folder).texts
    assert all(len(text.content) >= texts.JOINED_CHARS for text in joined)
    assert "".join(text.content for text in joined).count("def function_0(") == 40


def test_any_length_has_no_buckets(data_folder, english_folder):
    given = {"tokenizer": english_folder, "length": 700, **data_folder}
    lm = AnsweringLM(score=lambda context, continuation: (-1.0, False))
    scores = evaluate("path_ppl_codeparrot_any", lm, **given)["results"]["path_ppl_codeparrot_any"]
    assert {key.partition(",")[0] for key in scores if "," in key} == {
        "nll", "nll_stderr", "perplexity", "perplexity_stderr",
    }  # fmt: skip
    with pytest.raises(UnsupportedError, match="length is 100, below the smallest bucket of 512"):
        ppl(corpus="pg19", **(given | {"length": 100}))


def test_lack_of_long_texts_is_an_error(data_folder, english_folder):
    with pytest.raises(UnsupportedError, match="none of the 3 texts of pg19 has 900000 tokens"):
        ppl(corpus="pg19", length=900_000, tokenizer=english_folder, **data_folder)


def test_missing_data_set_is_an_error_with_the_command_that_fetches_it(tmp_path, english_folder):
    for corpus in REAL:
        with pytest.raises(PrerequisiteError, match=r"hf download .*--revision [0-9a-f]{40}"):
            ppl(corpus=corpus, target_length=512, tokenizer=english_folder, data_dir=str(tmp_path))


def test_chat_template_is_refused(english_folder):
    name = "path_ppl_code_512_offline"
    task = manager(tokenizer=english_folder).load([name])["tasks"][name]
    with pytest.raises(UnsupportedError, match="scores bare texts; run it without"):
        task.construct_requests(task.eval_docs[0], "User: text", metadata=(name, 0, 1))


def test_losses_of_a_real_model_equal_those_of_its_logits():
    torch = pytest.importorskip("torch")
    from patheval.model_adapters.path_ref import PathRefLM

    lm = PathRefLM(pretrained="zoo:path-fox", device="cpu")
    name = "path_ppl_plays_1k_offline"
    results = evaluate(name, lm, limit=1, tokenizer="zoo:path-fox")
    [sample] = results["samples"][name]
    ids = lm.tok_encode(sample["doc"]["text"])
    hidden, _ = lm._model.prefill(ids[:-1])
    logprobs = torch.log_softmax(lm._model.logits(hidden), dim=-1)
    losses = -logprobs[range(len(ids) - 1), ids[1:]].double()
    first, half, last = sample["doc"]["ends_tokens"]
    assert last == len(ids)
    expected = {"nll_512": losses[first - 1 : half - 1], "nll_1k": losses[half - 1 :]}
    for metric, part in expected.items():
        assert sample[metric] == pytest.approx(float(part.mean()), abs=1e-4)


def test_every_name_is_listed():
    names = set(manager().match_tasks(["path_ppl_*"]))
    expected = {task_name(corpus, label) for corpus in REAL + OFFLINE for label in [*LABELS, "any"]}
    tags = {f"path_ppl_{corpus}" for corpus in REAL} | {f"path_ppl_{c}_offline" for c in OFFLINE}
    assert names == expected | tags
