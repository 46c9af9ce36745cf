import hashlib
import random

import pytest

from patheval.errors import UnsupportedError
from patheval.tasks.ruler.niah import (
    MAX_GEN_TOKS,
    NOISE,
    niah_single_1,
    render_answer_prefix,
    render_needle,
    render_prompt,
)
from patheval.tasks.ruler.scoring import process_results
from patheval.tasks.tokenization import load_tokenizer

KINDS = ["bpe-2k", "bpe-2k-bos", "chars", "chars-bos", "two-lines"]


@pytest.mark.parametrize(
    ("key", "value", "num_lines", "num_before", "sha256"),
    [
        ("determined-envelope", "4612365", 32, 21, "ae6760cbe7db5b2c"),
        ("capable-radiosonde", "7374122", 32, 6, "82dd35e37ce36170"),
        ("roomy-devil", "3094235", 155, 96, "13c663868b8bded4"),
        ("scintillating-slipper", "5918715", 646, 643, "da3900fdb8c723e1"),
    ],
)
def test_recorded_prompts_of_the_original_are_rendered_byte_for_byte(
    key, value, num_lines, num_before, sha256
):
    # Written by the generator of NVIDIA/RULER at c3f5e3b for 1024, 4096 and 16384 tokens.
    lines = [NOISE] * num_lines
    lines.insert(num_before, render_needle(key, value))
    text = render_prompt("\n".join(lines), key) + render_answer_prefix(key)
    assert hashlib.sha256(text.encode()).hexdigest().startswith(sha256)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [640, 2048])
def test_prompt_holds_as_many_lines_as_fit(tokenizer_folders, kind, length):
    folder = tokenizer_folders[kind]
    tokenizer = load_tokenizer({"tokenizer": folder})
    tokens_per_line = tokenizer.num_tokens(f"{NOISE}\n")
    for doc in niah_single_1(target_length=length, tokenizer=folder, num_samples=6)["test"]:
        text = doc["prompt"] + doc["answer_prefix"]
        assert doc["num_tokens"] == tokenizer.num_tokens(text)
        assert 0 <= length - MAX_GEN_TOKS - doc["num_tokens"] < tokens_per_line
        assert doc["num_units"] == text.count(NOISE)


@pytest.mark.parametrize(
    ("kind", "length"), [("bpe-2k", 1024), ("bpe-2k-bos", 8192), ("chars", 4096)]
)
def test_at_least_97_percent_of_the_length_is_used(tokenizer_folders, kind, length):
    docs = niah_single_1(target_length=length, tokenizer=tokenizer_folders[kind], num_samples=20)[
        "test"
    ]
    assert all(0.97 * length <= doc["num_tokens"] + MAX_GEN_TOKS <= length for doc in docs)


def test_needle_is_before_any_line_with_equal_chance(bpe_folder):
    docs = niah_single_1(target_length=2048, tokenizer=bpe_folder, num_samples=300)["test"]
    depths = sorted(doc["depth_tokens"] / doc["num_tokens"] for doc in docs)
    assert [depths[i] for i in (30, 150, 270)] == pytest.approx([0.12, 0.5, 0.88], abs=0.08)


def test_depth_is_that_of_the_value(tokenizer_folders):
    docs = niah_single_1(
        target_length=4096, tokenizer=tokenizer_folders["chars-bos"], num_samples=10
    )["test"]
    for doc in docs:
        value_start = doc["depth_tokens"] - 1  # the BOS
        assert doc["prompt"][value_start : value_start + 7] == doc["references"][0]


def test_needle_has_the_form_of_the_original(bpe_folder):
    for doc in niah_single_1(target_length=1024, tokenizer=bpe_folder, num_samples=20)["test"]:
        [value] = doc["references"]
        assert len(value) == 7
        [needle] = [line for line in doc["prompt"].split("\n") if value in line]
        key = needle.removeprefix("One of the special magic numbers for ").partition(" is: ")[0]
        assert needle == render_needle(key, value)
        assert "-" in key
        assert doc["answer_prefix"] == render_answer_prefix(key)


def test_documents_depend_on_nothing_but_their_key(bpe_folder, run_python):
    def build(**metadata):
        return niah_single_1(target_length=1024, tokenizer=bpe_folder, **metadata)["test"]

    state = random.getstate()
    docs = list(build(num_samples=6))
    assert random.getstate() == state
    backwards = build(num_samples=500)
    assert [backwards[index] for index in reversed(range(6))] == docs[::-1]
    assert build(data_seed=1)[0]["prompt"] != docs[0]["prompt"]
    assert len({doc["prompt"] for doc in docs}) == 6
    code = (
        "from patheval.tasks.ruler.niah import niah_single_1\n"
        f"docs = niah_single_1(target_length=1024, tokenizer={bpe_folder!r}, num_samples=6)\n"
        "print(list(docs['test']))"
    )
    assert run_python(code, PYTHONHASHSEED="1").strip() == str(docs)


def test_haystack_too_long_for_the_length_is_an_error(tokenizer_folders):
    docs = niah_single_1(target_length=512, tokenizer=tokenizer_folders["chars"])["test"]
    with pytest.raises(UnsupportedError, match=r"ruler_niah_single_1 cannot fit 512 tokens: .*128"):
        docs[0]


@pytest.mark.parametrize(
    ("answer", "references", "score", "empty"),
    [
        (" 7316942.", ["7316942"], 1, 0),
        ("7316942 7316942 7316942", ["7316942"], 1, 0),
        ("173169420", ["7316942"], 1, 0),
        ("7,316,942", ["7316942"], 0, 0),
        ("731\x006942", ["7316942"], 0, 0),
        ("", ["7316942"], 0, 1),
        ("\n\n", ["7316942"], 0, 1),
        ("\x00\x01\x02", ["7316942"], 0, 1),
        ("0F4A1C7E-9D52", ["0f4a1c7e-9d52"], 1, 0),
        ("1840275, 9931046", ["1840275", "9931046", "4407718", "6250093"], 0.5, 0),
        ("184027599310464407718", ["1840275", "9931046", "4407718", "6250093"], 0.75, 0),
    ],
)
def test_scores_agree_with_the_original(answer, references, score, empty):
    scores = process_results({"references": references}, [answer])
    assert scores.pop("strict") <= score
    assert scores == {"score": score, "string_match_all": score, "empty": empty}


@pytest.mark.parametrize(
    ("answer", "references", "strict"),
    [
        (" 7316942.", ["7316942"], 1),
        ("173169420", ["7316942"], 0),
        ("x7316942", ["7316942"], 0),
        ("1840275,9931046 44077180", ["1840275", "9931046", "4407718"], 2 / 3),
        ("A+B or (c)", ["a+b", "(C)"], 1),
    ],
)
def test_strict_score_takes_whole_words_only(answer, references, strict):
    assert process_results({"references": references}, [answer])["strict"] == strict
