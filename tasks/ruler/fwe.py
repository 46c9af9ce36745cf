"""RULER's frequent words extraction: the three most frequent words of a coded text."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from math import pi

from ..generation import Doc, Recipe, SampleRng, dataset
from ..tokenization import SPACE, PieceCounter

MAX_GEN_TOKS = 50
NUM_SAMPLES = 500
ALPHA = 2.0
NOISE_WORD = "..."
WORD_LETTERS = 6
NUM_ANSWERS = 3
# From here on the third answer always occurs more often than any other word.
SMALLEST_TOTAL = 53

_ZETA = pi**2 / 6
_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
_PROBE_WORDS = 300


@dataset(
    "ruler_fwe",
    max_gen_toks=MAX_GEN_TOKS,
    num_samples=NUM_SAMPLES,
    step=lambda length: length // 32,
)
def fwe(recipe: Recipe) -> Callable[[int], Doc]:
    """Makes the dataset of one frequent words extraction task."""
    counter = PieceCounter(recipe.tokenizer, NOISE_WORD)
    rng = SampleRng("ruler_fwe", "probe")
    words = [_draw_word(rng) for _ in range(_PROBE_WORDS)] + [NOISE_WORD] * _PROBE_WORDS
    rng.shuffle(words)
    apart = not recipe.tokenizer.joins("[a-z.]", SPACE)
    exact = counter if apart and counter.adds_up([f" {word}" for word in words]) else None
    return partial(build_doc, recipe, exact)


def build_doc(recipe: Recipe, counter: PieceCounter | None, index: int) -> Doc:
    """Makes the document at `index`: the longest coded text that fits.

    Args:
        recipe: The task.
        counter: Counts words; None to encode whole prompts.
        index: Position of the document in the task.

    Raises:
        UnsupportedError: Not even the smallest text with three clear answers fits.
    """
    rng = recipe.rng(index)
    ranked = [NOISE_WORD]
    while len(ranked) < max(NUM_ANSWERS + 2, recipe.length // 50):
        ranked.append(_draw_word(rng))
    if len(set(ranked)) < len(ranked):
        ranked = list(dict.fromkeys(ranked))
    costs: list[int] = []
    if counter is not None:
        costs = counter.tokens_each_once([f" {word}" for word in ranked])
    answer_prefix = render_answer_prefix()

    def encode(words: Sequence[str]) -> int:
        return recipe.tokenizer.num_tokens(render_prompt(words) + answer_prefix)

    def coded_words(total: int) -> list[str]:
        words = _spell(ranked, total)
        SampleRng(recipe.task, "order", recipe.seed, index, total).shuffle(words)
        return words

    one_tokens = encode([NOISE_WORD])

    def num_tokens(total: int) -> int:
        if counter is None:
            return encode(coded_words(total))
        counts = counts_by_rank(len(ranked), total)
        words_tokens = sum(n * cost for n, cost in zip(counts, costs, strict=False))
        return one_tokens - costs[0] + words_tokens

    total, total_tokens = recipe.largest_fitting(num_tokens, smallest=SMALLEST_TOTAL)
    words = coded_words(total)
    answers = ranked[1 : NUM_ANSWERS + 1]
    num_before = next(i for i, word in enumerate(words) if word in answers)
    text_before, _, _ = render_prompt([*words[:num_before], "\0"]).partition(" \0")
    return Doc(
        index=index,
        prompt=render_prompt(words),
        answer_prefix=answer_prefix,
        references=answers,
        num_tokens=total_tokens,
        depth_tokens=recipe.tokenizer.num_tokens(text_before),
        num_units=len(words),
        length=recipe.length,
        seed=recipe.seed,
        tokenizer=recipe.tokenizer.fingerprint,
    )


def counts_by_rank(num_words: int, total: int) -> list[int]:
    """Returns how often the words of each rank occur, for those that do.

    Args:
        num_words: Words of the vocabulary.
        total: Size of the text that Zipf's law describes; rounding down leaves fewer words.
    """
    counts = (int(total * rank**-ALPHA / _ZETA) for rank in range(1, num_words + 1))
    return list(takewhile(bool, counts))


def render_prompt(words: Sequence[str]) -> str:
    """Writes a prompt that asks for the three most frequent of `words`."""
    return (
        "Read the following coded text and track the frequency of each coded word. Find the three "
        f"most frequently appeared coded words. {' '.join(words)}\n"
        "Question: Do not provide any explanation. Please ignore the dots '....'. What are the "
        "three most frequently appeared words in the above coded text?"
    )


def render_answer_prefix() -> str:
    """Writes the start of the answer, which follows the prompt directly."""
    return (
        " Answer: According to the coded text above, the three most frequently appeared words are:"
    )


def _draw_word(rng: SampleRng) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(WORD_LETTERS))


def _spell(ranked: Sequence[str], total: int) -> list[str]:
    counts = counts_by_rank(len(ranked), total)
    return [word for word, n in zip(ranked, counts, strict=False) for _ in range(n)]
