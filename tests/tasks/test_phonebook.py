import random
from pathlib import Path

import pytest

from patheval.errors import UnsupportedError
from patheval.tasks.phonebook.generate import MAX_GEN_TOKS, phonebook, render_prompt
from patheval.tasks.phonebook.scoring import process_results
from patheval.tasks.tokenization import load_tokenizer

KINDS = ["bpe-2k", "bpe-2k-bos", "chars", "chars-bos"]


def parse(prompt):
    book, examples, query = prompt.split("\n\n")
    entries, examples = (
        [tuple(line.split(": ")) for line in part.split("\n")] for part in (book, examples)
    )
    return entries, examples, query.removesuffix(":")


def test_recorded_prompt_of_the_original_is_rendered_byte_for_byte():
    # Written by the generator of sjelassi/transformers_ssm_copy at 1188c47 with 60 entries.
    recorded = Path(__file__).with_name("phonebook_prompt.txt").read_text()
    entries, examples, query = parse(recorded)
    assert (len(entries), dict(entries)[query]) == (60, "7381798050")
    assert render_prompt(entries, examples, query) == recorded


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [256, 1024, 4096])
def test_prompt_holds_as_many_entries_as_fit(tokenizer_folders, kind, length):
    folder = tokenizer_folders[kind]
    tokenizer = load_tokenizer({"tokenizer": folder})
    for doc in phonebook(target_length=length, tokenizer=folder, num_samples=4)["test"]:
        assert doc["num_tokens"] == tokenizer.num_tokens(doc["prompt"])
        entries, _, _ = parse(doc["prompt"])
        room = length - MAX_GEN_TOKS - doc["num_tokens"]
        longest_entry = max(tokenizer.num_tokens(f"{name}: {number}\n") for name, number in entries)
        assert 0 <= room < longest_entry + 10
        assert len(entries) == doc["num_units"]


def test_entries_have_the_form_of_the_original(bpe_folder):
    for doc in phonebook(target_length=2048, tokenizer=bpe_folder, num_samples=10)["test"]:
        entries, examples, query = parse(doc["prompt"])
        names = [name for name, _ in entries]
        assert len(set(names)) == len(names)
        assert all(
            len(number) == 10 and number.isdigit() and number[0] in "6789" for _, number in entries
        )
        assert len({*examples, (query, doc["references"][0])}) == 3
        assert {*examples, (query, doc["references"][0])} <= set(entries)


def test_names_are_weighted_as_the_census_counts_them(bpe_folder):
    docs = phonebook(target_length=8192, tokenizer=bpe_folder, num_samples=16)["test"]
    people = [name.split() for doc in docs for name, _ in parse(doc["prompt"])[0]]
    share_of = {
        name: sum(name in person for person in people) / len(people)
        for name in ("James", "Mary", "Smith")
    }
    # Percent in the lists, of the 90 that are drawn from; half of the people are men.
    assert share_of["James"] == pytest.approx(0.5 * 3.318 / 90, abs=0.005)
    assert share_of["Mary"] == pytest.approx(0.5 * 2.629 / 90, abs=0.005)
    assert share_of["Smith"] == pytest.approx(1.006 / 90, abs=0.005)


def test_queried_entry_is_anywhere_in_the_book(bpe_folder):
    docs = phonebook(target_length=512, tokenizer=bpe_folder, num_samples=200)["test"]
    depths = sorted(doc["depth_tokens"] / doc["num_tokens"] for doc in docs)
    # The examples and the query end the prompt, so that the book itself is about 0.86 of it.
    assert [depths[i] for i in (20, 100, 180)] == pytest.approx([0.09, 0.44, 0.79], abs=0.09)


def test_depth_is_that_of_the_number_in_the_book(tokenizer_folders):
    [doc] = phonebook(target_length=1024, tokenizer=tokenizer_folders["chars-bos"], num_samples=1)[
        "test"
    ]
    number_start = doc["depth_tokens"] - 1  # the BOS
    assert doc["prompt"][number_start : number_start + 10] == doc["references"][0]


def test_documents_depend_on_nothing_but_their_key(bpe_folder, run_python):
    def build(**metadata):
        return phonebook(target_length=512, tokenizer=bpe_folder, **metadata)["test"]

    state = random.getstate()
    docs = list(build(num_samples=6))
    assert random.getstate() == state
    backwards = build(num_samples=96)
    assert [backwards[index] for index in reversed(range(6))] == docs[::-1]
    assert build(data_seed=1)[0]["prompt"] != docs[0]["prompt"]
    assert len({doc["prompt"] for doc in docs}) == 6
    code = (
        "from patheval.tasks.phonebook.generate import phonebook\n"
        f"docs = phonebook(target_length=512, tokenizer={bpe_folder!r}, num_samples=6)['test']\n"
        "print(list(docs))"
    )
    assert run_python(code, PYTHONHASHSEED="1").strip() == str(docs)


def test_book_too_long_for_the_length_is_an_error(bpe_folder):
    docs = phonebook(length=100, tokenizer=bpe_folder)["test"]
    with pytest.raises(UnsupportedError, match="phonebook cannot fit 100 tokens: its smallest"):
        docs[0]


@pytest.mark.parametrize(
    ("answer", "exact_match", "empty"),
    [
        ("8023417765", 1, 0),
        (" 8023417765\nJohn Smith: 6", 1, 0),
        ("8023417765\u00a0", 1, 0),
        ("8023417765" + " " * 3000, 1, 0),
        ("802-341-7765", 0, 0),
        ("8023417766", 0, 0),
        ("8,023,417,765", 0, 0),
        ("8023417765,", 0, 0),
        ("8023417765\u2028x", 0, 0),
        ("8023417765\u200b", 0, 0),
        ("8023417765\x0bJohn: 612", 0, 0),
        ("８０２３４１７７６５", 0, 0),  # noqa: RUF001
        ("Mary Jones: 8023417765", 0, 0),
        ("8023417765</s>", 0, 0),
        ("\n8023417765", 0, 1),
        ("", 0, 1),
    ],
)
def test_scores_agree_with_the_original(answer, exact_match, empty):
    scores = process_results({"references": ["8023417765"]}, [answer])
    assert scores == {"exact_match": exact_match, "empty": empty}
