"""RULER's common words extraction: which ten words of a long numbered list occur most often."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import accumulate
from typing import NamedTuple

from wonderwords import RandomWord

from patheval.errors import UnsupportedError

from ..generation import Doc, Recipe, SampleRng, dataset
from ..tokenization import SPACE, PieceCounter, PromptTokenizer

MAX_GEN_TOKS = 120
NUM_SAMPLES = 500
NUM_COMMON = 10
STEP_WORDS = 10


class Sizes(NamedTuple):
    """How often words occur.

    Attributes:
        example_words: Distinct words of the example.
        example_common: Occurrences of each common word of the example.
        example_uncommon: Occurrences of each other word of the example.
        common: Occurrences of each common word.
        uncommon: Occurrences of each other word.
    """

    example_words: int
    example_common: int
    example_uncommon: int
    common: int
    uncommon: int


def sizes_of(length: int) -> Sizes:
    """Returns the sizes that belong to a length in tokens."""
    if length >= 4096:
        return Sizes(40, 10, 3, 30, 3)
    if length >= 1024:
        return Sizes(20, 3, 1, 6, 1)
    return Sizes(10, 1, 1, 2, 1)


@dataset(
    "ruler_cwe",
    max_gen_toks=MAX_GEN_TOKS,
    num_samples=NUM_SAMPLES,
    step=lambda length: STEP_WORDS,
)
def cwe(recipe: Recipe) -> Callable[[int], Doc]:
    """Makes the dataset of one common words extraction task, with one worked example."""
    return partial(build_doc, recipe, _List(recipe.tokenizer))


def build_doc(recipe: Recipe, entries: "_List", index: int) -> Doc:
    """Makes the document at `index`: an example, then a list with the most words that fit.

    Where a tokenizer needs more than the length for its sizes, the next smaller ones are taken.

    Args:
        recipe: The task.
        entries: Counts the entries of numbered lists.
        index: Position of the document in the task.

    Raises:
        UnsupportedError: Not even one uncommon word fits, or there are too few words to fill the
            length.
    """
    smaller = [sizes_of(length) for length in (1024, 512) if length < recipe.length]
    *larger, smallest = dict.fromkeys([sizes_of(recipe.length), *smaller])
    for sizes in larger:
        with suppress(UnsupportedError):
            return _build(recipe, entries, index, sizes)
    return _build(recipe, entries, index, smallest)


def _build(recipe: Recipe, entries: "_List", index: int, sizes: Sizes) -> Doc:
    rng = recipe.rng(index)
    words = list(list_words())
    rng.shuffle(words)
    example_words, words = words[: sizes.example_words], words[sizes.example_words :]
    common, others = words[:NUM_COMMON], words[NUM_COMMON:]
    shown = _repeat(example_words, sizes.example_common, sizes.example_uncommon)
    rng.shuffle(shown)
    example = render_example(shown, example_words[:NUM_COMMON])
    first = common[0]

    def encode(listed: Sequence[str]) -> int:
        text = example + render_prompt(listed) + render_answer_prefix()
        return recipe.tokenizer.num_tokens(text)

    def listed_words(num_others: int) -> list[str]:
        listed = _repeat([*common, *others[:num_others]], sizes.common, sizes.uncommon)
        SampleRng(recipe.task, "order", recipe.seed, index, num_others).shuffle(listed)
        return listed

    one_tokens = encode([first])
    common_tokens = sizes.common * sum(entries.word_tokens(common))
    other_tokens = list(accumulate(entries.word_tokens(others), initial=0))

    def num_tokens(num_others: int) -> int:
        if num_others >= len(other_tokens):
            raise UnsupportedError(
                f"{recipe.task} cannot fill {recipe.length} tokens: that takes more than the "
                f"{len(list_words())} words that wonderwords has; use a smaller length"
            )
        if not entries.adds_up:
            return encode(listed_words(num_others))
        num_entries = sizes.common * NUM_COMMON + sizes.uncommon * num_others
        word_tokens = common_tokens + sizes.uncommon * other_tokens[num_others]
        return (
            one_tokens
            - entries.word_tokens([first])[0]
            + entries.number_tokens(num_entries)
            + word_tokens
        )

    num_others, total_tokens = recipe.largest_fitting(num_tokens, smallest=1)
    listed = listed_words(num_others)
    num_before = next(i for i, word in enumerate(listed) if word in common)
    prompt = render_prompt(listed)
    start = prompt.index("\n") + 1
    text_before = " ".join(
        [*(f"{i}. {word}" for i, word in enumerate(listed[:num_before], 1)), f"{num_before + 1}."]
    )
    return Doc(
        index=index,
        prompt=example + prompt,
        answer_prefix=render_answer_prefix(),
        references=common,
        num_tokens=total_tokens,
        depth_tokens=recipe.tokenizer.num_tokens(example + prompt[:start] + text_before),
        num_units=num_others,
        length=recipe.length,
        seed=recipe.seed,
        tokenizer=recipe.tokenizer.fingerprint,
    )


def render_list(words: Sequence[str]) -> str:
    """Writes words as a numbered list on one line."""
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


def render_prompt(words: Sequence[str]) -> str:
    """Writes a prompt that asks for the ten most common of `words`."""
    return (
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n"
        f"{render_list(words)}\n"
        "Question: What are the 10 most common words in the above list?"
    )


def render_example(words: Sequence[str], answers: Sequence[str]) -> str:
    """Writes the worked example that comes before the prompt."""
    return f"{render_prompt(words)}{render_answer_prefix()} {render_list(answers)}\n"


def render_answer_prefix() -> str:
    """Writes the start of the answer, which follows the prompt directly."""
    return " Answer: The top 10 words that appear most often in the list are:"


class _List:
    """Counts a numbered list by its words and numbers."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._words = PieceCounter(tokenizer, "1.")
        self._numbers = PieceCounter(tokenizer, "list")
        self._cumulative = [0, 0]
        probe = [f" {word} {number}." for number, word in enumerate(list_words(), 2)]
        split = (
            self.word_tokens(list_words()),
            self._numbers.tokens_each_once([f" {number}." for number in range(2, len(probe) + 2)]),
        )
        [whole] = tokenizer.num_tokens_each(["1." + "".join(probe)])
        [start] = tokenizer.num_tokens_each(["1."])
        self.adds_up = whole == start + sum(map(sum, split)) and not tokenizer.joins(
            "[a-zA-Z.]", SPACE
        )

    def word_tokens(self, words: Sequence[str]) -> list[int]:
        return self._words.tokens_each([f" {word}" for word in words])

    def number_tokens(self, num_entries: int) -> int:
        """Returns the tokens of the numbers of all entries but the first."""
        new = range(len(self._cumulative), num_entries + 1)
        counts = self._numbers.tokens_each_once([f" {number}." for number in new])
        self._cumulative += list(accumulate(counts, initial=self._cumulative[-1]))[1:]
        return self._cumulative[num_entries]


def _repeat(words: Sequence[str], common: int, uncommon: int) -> list[str]:
    return list(words[:NUM_COMMON]) * common + list(words[NUM_COMMON:]) * uncommon


@cache
def list_words() -> tuple[str, ...]:
    """Returns the distinct nouns, adjectives and verbs of wonderwords."""
    words: list[str] = RandomWord(enhanced_prefixes=False).filter(
        include_categories=["noun", "adjective", "verb"]
    )
    return tuple(sorted(set(words)))
