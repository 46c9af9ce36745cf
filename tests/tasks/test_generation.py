import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patheval.errors import PrerequisiteError, UnsupportedError
from patheval.tasks.generation import LazyDocs, Recipe, SampleRng


def make_recipe(length, max_gen_toks=10):
    return Recipe(
        task="phonebook",
        length=length,
        max_gen_toks=max_gen_toks,
        num_samples=1,
        seed=0,
        tokenizer=None,
    )


def recipe_from(metadata, target_length=None):
    return Recipe.from_metadata(
        "phonebook", metadata, target_length=target_length, max_gen_toks=50, num_samples=96
    )


def test_draws_are_fixed_for_ever():
    rng = SampleRng("phonebook", 1024, "0123456789abcdef", 0, 7)
    assert rng.fraction() == 0.347148979023958
    assert [rng.integer(10, 20) for _ in range(8)] == [12, 10, 13, 18, 11, 15, 12, 11]
    assert "".join(rng.choice(("a", "b", "c")) for _ in range(8)) == "cabcbacc"


def test_shuffle_is_fixed_and_fair():
    items = list("abcdef")
    SampleRng("shuffle").shuffle(items)
    again = list("abcdef")
    SampleRng("shuffle").shuffle(again)
    assert items == again
    assert sorted(items) == list("abcdef")
    firsts = []
    for seed in range(600):
        letters = list("abc")
        SampleRng(seed).shuffle(letters)
        firsts.append(letters[0])
    assert all(160 < firsts.count(letter) < 240 for letter in "abc")


def test_draws_ignore_and_leave_the_global_state():
    random.seed(1)
    state = random.getstate()
    first = SampleRng("key").fraction()
    assert random.getstate() == state
    random.seed(2)
    assert SampleRng("key").fraction() == first


@given(
    costs=st.lists(st.integers(0, 40), max_size=200),
    smallest=st.integers(0, 5),
    length=st.integers(60, 3000),
)
def test_search_finds_the_last_size_that_fits(costs, smallest, length):
    cumulative = list(itertools.accumulate([20, *costs, *[7] * 3000]))
    if cumulative[smallest] + 10 > length or cumulative[smallest] == cumulative[smallest + 16]:
        return
    units, tokens = make_recipe(length).largest_fitting(cumulative.__getitem__, smallest)
    assert cumulative[units] == tokens
    assert tokens + 10 <= length < cumulative[units + 1] + 10


def test_search_encodes_few_prompts():
    probes = []

    def num_tokens(units):
        probes.append(units)
        return 100 + 24 * units

    units, tokens = make_recipe(65536).largest_fitting(num_tokens, smallest=1)
    assert (units, tokens) == (2726, 65524)
    assert len(probes) <= 4


def test_prompt_that_never_fits_is_an_error_with_its_numbers():
    with pytest.raises(UnsupportedError) as error:
        make_recipe(100).largest_fitting(lambda units: 91 + units, smallest=1)
    assert str(error.value) == (
        "phonebook cannot fit 100 tokens: its smallest prompt takes 92 and generation 10; "
        "use a length of at least 102: path_phonebook_256, or path_phonebook_any with "
        "--metadata '{\"length\": 102}'"
    )
    with pytest.raises(
        UnsupportedError, match=r"at least 66000: path_phonebook_any with --metadata"
    ):
        make_recipe(100).largest_fitting(lambda units: 65_990, smallest=1)


def test_tokenizer_that_drops_text_is_an_error():
    with pytest.raises(UnsupportedError, match="gives 0 tokens to prompts of any size"):
        make_recipe(100).largest_fitting(lambda units: 0, smallest=1)


def test_documents_are_built_once_and_only_when_read():
    built = []

    def build(index):
        built.append(index)
        return {"index": index}

    docs = LazyDocs(500, build)
    assert len(docs) == 500
    assert docs.features == {"index": int}
    assert [doc["index"] for doc in itertools.islice(docs, 3)] == [0, 1, 2]
    assert docs[2] is docs[2]
    assert docs[-1]["index"] == 499
    assert built == [0, 1, 2, 499]
    with pytest.raises(IndexError):
        docs[500]


def test_definition_gives_way_to_metadata_except_for_the_length_in_its_name(bpe_folder):
    metadata = {"tokenizer": bpe_folder, "length": 3000, "num_samples": 5, "data_seed": -7}
    named = recipe_from(metadata, target_length=1024)
    assert (named.length, named.num_samples, named.seed) == (1024, 5, -7)
    assert recipe_from(metadata).length == 3000


def test_model_seed_is_not_the_data_seed(bpe_folder):
    assert recipe_from({"tokenizer": bpe_folder, "length": 512, "seed": 1234}).seed == 0


def test_missing_length_names_the_flag(bpe_folder):
    with pytest.raises(PrerequisiteError, match=r"path_phonebook_any .* --metadata '{\"length\""):
        recipe_from({"tokenizer": bpe_folder})


@pytest.mark.parametrize(
    "bad",
    [
        {"length": "3k"},
        {"length": 0},
        {"length": -512},
        {"length": True},
        {"length": 4096.0},
        {"num_samples": 0},
        {"num_samples": 1.5},
        {"data_seed": "a"},
    ],
)
def test_bad_metadata_is_named(bpe_folder, bad):
    [(name, value)] = bad.items()
    with pytest.raises(UnsupportedError, match=f"{name} is {value!r} and must be an integer"):
        recipe_from({"tokenizer": bpe_folder, "length": 512} | bad)


@pytest.mark.parametrize(
    ("given", "right"),
    [("lenght", "length"), ("num_sample", "num_samples"), ("datadir", "data_dir")],
)
def test_misspelt_metadata_are_named(bpe_folder, given, right):
    message = f"--metadata has '{given}', which no task reads; write '{right}'"
    with pytest.raises(UnsupportedError, match=message):
        recipe_from({"tokenizer": bpe_folder, "length": 512, given: 1})


def test_metadata_that_others_read_are_let_through(bpe_folder):
    others = {"max_length": 512, "seed": 1, "dtype": "auto", "max_seq_lengths": [4096], "x": 0}
    assert recipe_from({"tokenizer": bpe_folder, "length": 512} | others).length == 512
