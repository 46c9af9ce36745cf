"""What holds for each of RULER's tasks that need no outside text, and recorded prompts."""

import hashlib
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from patheval.errors import UnsupportedError
from patheval.tasks.ruler import cwe, fwe, multikey, niah, vt
from patheval.tasks.tokenization import load_tokenizer

# Generator, generation budget, and tokens of bpe-12k that one more unit takes at most.
TASKS = {
    "niah_multikey_2": (multikey.niah_multikey_2, niah.MAX_GEN_TOKS, 60),
    "niah_multikey_3": (multikey.niah_multikey_3, niah.MAX_GEN_TOKS, 120),
    "vt": (vt.vt, vt.MAX_GEN_TOKS, 30),
    "cwe": (cwe.cwe, cwe.MAX_GEN_TOKS, 60),
    "fwe": (fwe.fwe, fwe.MAX_GEN_TOKS, 60),
}
KINDS = ["bpe-2k", "bpe-12k", "bpe-2k-bos", "chars", "chars-bos", "two-lines"]


def docs_of(name, length, folder, num_samples=3, **metadata):
    make, _, _ = TASKS[name]
    return make(target_length=length, tokenizer=folder, num_samples=num_samples, **metadata)["test"]


def recorded(task):
    """A prompt with its answer prefix, written by NVIDIA/RULER at c3f5e3b for 1024 tokens."""
    return Path(__file__).with_name(f"ruler_{task}_prompt.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TASKS)
def test_counts_and_depths_are_exact(tokenizer_folders, name, kind):
    tokenizer = load_tokenizer({"tokenizer": tokenizer_folders[kind]})
    for doc in docs_of(name, 12_000, tokenizer_folders[kind], 2):
        assert doc["num_tokens"] == tokenizer.num_tokens(doc["prompt"] + doc["answer_prefix"])
        assert doc["num_tokens"] + TASKS[name][1] <= 12_000
        if kind.startswith("chars"):
            start = doc["depth_tokens"] - (kind == "chars-bos")
            text = doc["prompt"][start:].lstrip()
            assert text.startswith(tuple(doc["references"]))


@pytest.mark.parametrize("length", [1024, 4096, 16384])
@pytest.mark.parametrize("name", TASKS)
def test_no_further_unit_would_fit(english_folder, name, length):
    _, max_gen_toks, unit_tokens = TASKS[name]
    for doc in docs_of(name, length, english_folder):
        used = doc["num_tokens"] + max_gen_toks
        assert length - unit_tokens < used <= length
        assert used >= 0.97 * length or name == "niah_multikey_3"


@pytest.mark.parametrize("name", TASKS)
def test_documents_depend_on_nothing_but_their_key(english_folder, name, run_python):
    state = random.getstate()
    docs = list(docs_of(name, 2048, english_folder, 4))
    assert random.getstate() == state
    backwards = docs_of(name, 2048, english_folder, 500)
    assert [backwards[index] for index in reversed(range(4))] == docs[::-1]
    assert docs_of(name, 2048, english_folder, data_seed=1)[0]["prompt"] != docs[0]["prompt"]
    assert len({doc["prompt"] for doc in docs}) == 4
    make = TASKS[name][0]
    code = (
        f"from {make.__module__} import {name} as make\n"
        f"docs = make(target_length=2048, tokenizer={english_folder!r}, num_samples=4)['test']\n"
        "print(list(docs))"
    )
    assert run_python(code, PYTHONHASHSEED="1") == str(docs)


@pytest.mark.parametrize("name", TASKS)
def test_length_that_is_too_short_is_an_error_with_its_numbers(english_folder, name):
    message = rf"ruler_{name} cannot fit 150 tokens: its smallest prompt takes \d+ and generation"
    with pytest.raises(UnsupportedError, match=message):
        docs_of(name, 150, english_folder)[0]


def test_length_that_no_list_of_words_fills_is_an_error(english_folder):
    with pytest.raises(UnsupportedError, match=r"cannot fill 900000 tokens: .* the \d{4} words"):
        docs_of("cwe", 900_000, english_folder)[0]


@pytest.mark.parametrize(
    ("kind", "task"), [("number", "niah_multikey_2"), ("uuid", "niah_multikey_3")]
)
def test_recorded_needles_are_rendered_byte_for_byte(kind, task):
    text = recorded(task)
    query = re.search(r" for (\S+) mentioned in the provided text is$", text)[1]
    pairs = re.findall(rf"magic {kind}s for (.+) is: (\S+)\.$", text, re.MULTILINE)
    assert len(pairs) == {"number": 34, "uuid": 9}[kind]
    context = "\n".join(niah.render_needle(key, value, kind) for key, value in pairs)
    prompt = niah.render_prompt(context, query, kind)
    assert prompt + niah.render_answer_prefix(query, kind) == text


def test_needles_have_distinct_keys_and_one_is_asked_for(english_folder):
    for task, value_form in [
        ("niah_multikey_2", r"\d{7}"),
        ("niah_multikey_3", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
    ]:
        for doc in docs_of(task, 4096, english_folder):
            pairs = re.findall(r"s for (.+) is: (.+)\.$", doc["prompt"], re.MULTILINE)
            assert len(dict(pairs)) == len(pairs) == doc["num_units"] + 1
            assert all(re.fullmatch(value_form, value) for _, value in pairs)
            query = re.search(r" for (.+) mentioned in the provided text is$", doc["answer_prefix"])
            assert [dict(pairs)[query[1]]] == doc["references"]


@pytest.mark.parametrize("task", ["niah_multikey_2", "niah_multikey_3", "vt"])
def test_answer_is_anywhere(english_folder, task):
    docs = docs_of(task, 4096, english_folder, 400)
    depths = sorted(doc["depth_tokens"] / doc["num_tokens"] for doc in docs)
    if task == "vt":  # the first of five lines, behind an eighth of example
        assert 0.12 < depths[0] < depths[200] < 0.35
    else:
        assert [depths[i] for i in (40, 200, 360)] == pytest.approx([0.1, 0.5, 0.9], abs=0.1)


def chain_context(names, value, places, num_lines):
    lines = [niah.NOISE] * num_lines
    chain = vt.render_chain(names, value)
    for place, line in reversed(list(zip(places, chain, strict=True))):
        lines.insert(place, line)
    return "\n".join(lines)


# Names, value and lines of noise before each assignment, of the example and of the task itself.
VT_EXAMPLE_PLACES = [0, 3, 4, 5, 12]
VT_RECORDED = [
    (
        (["MXU", "ECN", "QIV", "TRF", "FAG"], "26023", VT_EXAMPLE_PLACES, 14),
        (["LYXQR", "DXNRI", "SOERJ", "TEOKV", "HFUPI"], "70263", [3, 7, 8, 10, 13], 14),
        "cf70ce3985a4ee44",
    ),
    (
        (["AKO", "AQD", "MBJ", "FIT", "JTV"], "74820", VT_EXAMPLE_PLACES, 14),
        (["KIMBV", "KUYAW", "OMYHK", "XVNTU", "XMHMK"], "77221", [32, 42, 103, 119, 136], 137),
        "0dd165d580a9999f",
    ),
    (
        (["YFP", "VGS", "HRU", "UOB", "NRB"], "69735", VT_EXAMPLE_PLACES, 14),
        (["GCAOZ", "JQUQT", "YFADD", "ROFST", "EPTCV"], "10769", [6, 27, 79, 96, 101], 137),
        "f2442540ffce6a40",
    ),
]


@pytest.mark.parametrize(("example", "main", "sha256"), VT_RECORDED)
def test_recorded_chains_are_rendered_byte_for_byte(example, main, sha256):
    text = (
        vt.render_example(chain_context(*example), example[0], example[1])
        + vt.render_prompt(chain_context(*main), main[1])
        + vt.render_answer_prefix(main[1], len(main[0]))
    )
    assert hashlib.sha256(text.encode()).hexdigest().startswith(sha256)


@pytest.mark.parametrize("length", [512, 4096])
def test_chain_is_followed_to_its_end_after_one_example(tokenizer_folders, length):
    tokenizer = load_tokenizer({"tokenizer": tokenizer_folders["bpe-12k"]})
    for doc in docs_of("vt", length, tokenizer_folders["bpe-12k"]):
        example, main = doc["prompt"].split("\n\nMemorize")
        assert tokenizer.num_tokens(example) <= 500
        for text, letters in [(example, 3), (main, 5)]:
            first, value = re.search(r"VAR (\w+) = (\d{5})\n", text).groups()
            names = [first, *re.findall(r"VAR (\w+) = VAR \w+ \n", text)]
            assert [len(name) for name in names] == [letters] * 5
            assert f"assigned the value {value} in the text above." in text
        assert doc["references"] == names
        assert main.count(niah.NOISE) == doc["num_units"]


def words_of(numbered):
    words = re.split(r" ?\d+\. ", numbered)[1:]
    assert cwe.render_list(words) == numbered
    return words


def test_recorded_word_list_is_rendered_byte_for_byte():
    text = recorded("cwe")
    lines = text.split("\n")
    shown, answers, listed = lines[1], lines[2].rpartition("are: ")[2], lines[4]
    rendered = (
        f"{cwe.render_prompt(words_of(shown))}{cwe.render_answer_prefix()} "
        f"{cwe.render_list(words_of(answers))}\n"
        f"{cwe.render_prompt(words_of(listed))}{cwe.render_answer_prefix()}"
    )
    assert rendered == text
    sizes = cwe.sizes_of(1024)
    assert Counter(Counter(words_of(shown)).values()) == {3: 10, 1: 10}
    assert (sizes.example_common, sizes.example_uncommon) == (3, 1)
    assert set(Counter(words_of(listed)).values()) == {sizes.common, sizes.uncommon}


@pytest.mark.parametrize("length", [1024, 4096])
def test_common_words_are_those_that_occur_most_often(english_folder, length):
    sizes = cwe.sizes_of(length)
    for doc in docs_of("cwe", length, english_folder):
        lines = doc["prompt"].split("\n")
        shown, answers, listed = lines[1], lines[2].rpartition("are: ")[2], lines[4]
        counts, shown_counts = Counter(words_of(listed)), Counter(words_of(shown))
        assert {word for word, n in counts.items() if n == sizes.common} == set(doc["references"])
        assert sorted(counts.values()) == [sizes.uncommon] * doc["num_units"] + [sizes.common] * 10
        assert len(shown_counts) == sizes.example_words
        assert {shown_counts[word] for word in words_of(answers)} == {sizes.example_common}
        assert not set(counts) & set(shown_counts)


@pytest.mark.parametrize(
    ("kind", "length", "smaller"), [("bpe-2k", 1024, 512), ("chars", 4096, 1024)]
)
def test_sizes_are_smaller_where_a_tokenizer_needs_more(tokenizer_folders, kind, length, smaller):
    [doc] = docs_of("cwe", length, tokenizer_folders[kind], 1)
    counts = sorted(Counter(words_of(doc["prompt"].split("\n")[4])).values())
    sizes = cwe.sizes_of(smaller)
    assert counts[-10:] == [sizes.common] * 10
    assert set(counts[:-10]) == {sizes.uncommon}
    assert 0.95 * length <= doc["num_tokens"] + cwe.MAX_GEN_TOKS <= length


def test_recorded_coded_text_is_rendered_byte_for_byte():
    text = recorded("fwe")
    words = text.partition("coded words. ")[2].partition("\n")[0].split(" ")
    assert fwe.render_prompt(words) + fwe.render_answer_prefix() == text
    counts = sorted(Counter(words).values(), reverse=True)
    assert counts == fwe.counts_by_rank(1024 // 50, 402)
    assert counts[:4] == [244, 61, 27, 15]


@pytest.mark.parametrize("length", [512, 1024, 4096])
def test_three_answers_are_clearly_the_most_frequent(english_folder, length):
    for doc in docs_of("fwe", length, english_folder):
        words = doc["prompt"].partition("coded words. ")[2].partition("\n")[0].split(" ")
        assert len(words) == doc["num_units"]
        (dots, _), *ranked = Counter(words).most_common(5)
        assert dots == "..."
        assert {word for word, _ in ranked[:3]} == set(doc["references"])
        assert ranked[2][1] > ranked[3][1]


def test_third_answer_is_clear_from_the_smallest_text_on():
    for total in range(fwe.SMALLEST_TOTAL, 2000):
        counts = [*fwe.counts_by_rank(5, total), 0]
        assert counts[3] > counts[4]
