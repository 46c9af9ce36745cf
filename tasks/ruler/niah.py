"""RULER's needle in a haystack of noise: a magic number hidden in repeated lines."""

from collections.abc import Callable, Sequence
from functools import cache, partial

from wonderwords import RandomWord

from ..generation import Doc, Recipe, SampleRng, dataset
from ..tokenization import RepeatedLine

MAX_GEN_TOKS = 128
NUM_SAMPLES = 500

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def line_step(length: int) -> int:
    """Returns the lines of a step in the preset `paper`, at a length in tokens."""
    return 25 if length >= 4096 else 5


@dataset("ruler_niah_single_1", max_gen_toks=MAX_GEN_TOKS, num_samples=NUM_SAMPLES, step=line_step)
def niah_single_1(recipe: Recipe) -> Callable[[int], Doc]:
    """Makes the dataset of one niah_single_1 task: noise, a word as key, a number as value."""
    noise = RepeatedLine(recipe.tokenizer, f"{NOISE}\n", max_tokens=recipe.length)
    return partial(build_doc, recipe, noise)


def build_doc(recipe: Recipe, noise: RepeatedLine, index: int) -> Doc:
    """Makes the document at `index`: the needle in the most noise lines that fit the length.

    Args:
        recipe: The task.
        noise: The noise line as the recipe's tokenizer counts it.
        index: Position of the document in the task.

    Raises:
        UnsupportedError: Not even one noise line fits.
    """
    rng = recipe.rng(index)
    place = rng.fraction()
    key = draw_word(rng)
    value = draw_number(rng)
    needle = render_needle(key, value)
    answer_prefix = render_answer_prefix(key)

    def num_tokens(num_lines: int) -> int:
        num_before = int(place * num_lines)
        before, skipped_before = noise.split(num_before)
        after, skipped_after = noise.split(num_lines - num_before)
        near_prompt = render_prompt("\n".join([NOISE] * before + [needle] + [NOISE] * after), key)
        near_tokens = recipe.tokenizer.num_tokens(near_prompt + answer_prefix)
        return near_tokens + noise.tokens * (skipped_before + skipped_after)

    num_lines, total_tokens = recipe.largest_fitting(num_tokens, smallest=1)
    num_before = int(place * num_lines)
    lines = [NOISE] * num_before + [needle] + [NOISE] * (num_lines - num_before)
    prompt = render_prompt("\n".join(lines), key)
    before, skipped = noise.split(num_before)
    near_prompt = render_prompt("\n".join([NOISE] * before + [needle]), key)
    text_before_value = near_prompt[: near_prompt.index(value)]
    return Doc(
        index=index,
        prompt=prompt,
        answer_prefix=answer_prefix,
        references=[value],
        num_tokens=total_tokens,
        depth_tokens=recipe.tokenizer.num_tokens(text_before_value) + noise.tokens * skipped,
        num_units=num_lines,
        length=recipe.length,
        seed=recipe.seed,
        tokenizer=recipe.tokenizer.fingerprint,
    )


def draw_word(rng: SampleRng) -> str:
    """Draws a key: an adjective and a noun of wonderwords, joined by a hyphen."""
    return f"{rng.choice(_words('adjective'))}-{rng.choice(_words('noun'))}"


def draw_uuid(rng: SampleRng) -> str:
    """Draws a UUID of version 4."""
    a, b, c, d = (rng.integer(0, 2**32) for _ in range(4))
    version, variant = 0x4000 | b & 0xFFF, 0x8000 | c >> 16 & 0x3FFF
    return f"{a:08x}-{b >> 16:04x}-{version:04x}-{variant:04x}-{c & 0xFFFF:04x}{d:08x}"


def draw_number(rng: SampleRng) -> str:
    """Draws a number of seven digits."""
    return str(rng.integer(10**6, 10**7))


def render_needle(key: str, value: str, kind: str = "number") -> str:
    """Writes the sentence that hides `value`, a number or a uuid, under `key`."""
    return f"One of the special magic {kind}s for {key} is: {value}."


def render_prompt(context: str, query: str, kind: str = "number", *, plural: bool = False) -> str:
    """Writes a prompt that asks for what `context` hides under `query`.

    Args:
        context: The haystack with its needles.
        query: The queried key, or several as `render_query` writes them.
        kind: What the values are, number or uuid.
        plural: Whether several values are asked for.
    """
    some, needle, ask = (
        ("Some", f"{kind}s are", f"are all the special magic {kind}s")
        if plural
        else ("A", f"{kind} is", f"is the special magic {kind}")
    )
    quiz = f"{kind}s" if plural else kind
    return (
        f"{some} special magic {needle} hidden within the following text. Make sure to memorize "
        f"it. I will quiz you about the {quiz} afterwards.\n"
        f"{context}\n"
        f"What {ask} for {query} mentioned in the provided text?"
    )


def render_answer_prefix(query: str, kind: str = "number", *, plural: bool = False) -> str:
    """Writes the start of the answer, which follows the prompt directly."""
    noun, verb = (f"{kind}s", "are") if plural else (kind, "is")
    return f" The special magic {noun} for {query} mentioned in the provided text {verb}"


def render_query(keys: Sequence[str]) -> str:
    """Writes the queried keys into one phrase."""
    if len(keys) == 1:
        return keys[0]
    return f"{', '.join(keys[:-1])}, and {keys[-1]}"


@cache
def _words(category: str) -> tuple[str, ...]:
    words: list[str] = RandomWord(enhanced_prefixes=False).filter(include_categories=[category])
    return tuple(words)
