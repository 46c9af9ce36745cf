"""RULER's needle in a haystack of needles: one line of many equal ones is asked for."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice

from ..generation import Doc, Recipe, SampleRng, dataset
from ..tokenization import NEWLINE, PieceCounter, PromptTokenizer
from .niah import (
    MAX_GEN_TOKS,
    NUM_SAMPLES,
    draw_number,
    draw_uuid,
    draw_word,
    line_step,
    render_answer_prefix,
    render_needle,
    render_prompt,
)

_PROBE_LINES = 200
_PLAIN = re.compile("[a-z0-9]+(-[a-z0-9]+)*")
_RUN = re.compile(" ?[a-z]+| ?[0-9]+|-")


@dataclass(frozen=True)
class Needles:
    """How the lines of a task are made.

    Attributes:
        kind: What the values are, number or uuid.
        draw_key: Draws a key.
        draw_value: Draws a value.
    """

    kind: str
    draw_key: Callable[[SampleRng], str]
    draw_value: Callable[[SampleRng], str]


WORDS_TO_NUMBERS = Needles("number", draw_word, draw_number)
UUIDS_TO_UUIDS = Needles("uuid", draw_uuid, draw_uuid)


@dataset(
    "ruler_niah_multikey_2", max_gen_toks=MAX_GEN_TOKS, num_samples=NUM_SAMPLES, step=line_step
)
def niah_multikey_2(recipe: Recipe) -> Callable[[int], Doc]:
    """Makes the dataset of one niah_multikey_2 task: words as keys, numbers as values."""
    return _prepare(recipe, WORDS_TO_NUMBERS)


@dataset(
    "ruler_niah_multikey_3", max_gen_toks=MAX_GEN_TOKS, num_samples=NUM_SAMPLES, step=line_step
)
def niah_multikey_3(recipe: Recipe) -> Callable[[int], Doc]:
    """Makes the dataset of one niah_multikey_3 task: UUIDs as keys and as values."""
    return _prepare(recipe, UUIDS_TO_UUIDS)


def build_doc(recipe: Recipe, needles: Needles, counter: "LineCounter | None", index: int) -> Doc:
    """Makes the document at `index`: the queried needle among the most others that fit.

    Args:
        recipe: The task.
        needles: How the lines are made.
        counter: Counts lines; None to encode whole prompts.
        index: Position of the document in the task.

    Raises:
        UnsupportedError: Not even one other needle fits.
    """
    lines = _Lines(recipe.rng(index), needles, counter)
    key, value, kind = lines.key, lines.value, needles.kind
    answer_prefix = render_answer_prefix(key, kind)

    def whole_tokens(context: str) -> int:
        prompt = render_prompt(context, key, kind) + answer_prefix
        return recipe.tokenizer.num_tokens(prompt)

    own_tokens = whole_tokens(lines.needle)

    def num_tokens(num_others: int) -> int:
        if counter is None:
            return whole_tokens(lines.context(num_others))
        return own_tokens + lines.tokens(num_others)

    num_others, total_tokens = recipe.largest_fitting(num_tokens, smallest=1)
    before = lines.num_before(num_others)
    text_before = render_prompt(lines.needle, key, kind).partition(f"{value}.")[0]
    depth_tokens = recipe.tokenizer.num_tokens(text_before)
    prompt = render_prompt(lines.context(num_others), key, kind)
    if counter is None:
        depth_tokens = recipe.tokenizer.num_tokens(prompt.partition(f"{value}.")[0])
    else:
        depth_tokens += lines.tokens(before)
    return Doc(
        index=index,
        prompt=prompt,
        answer_prefix=answer_prefix,
        references=[value],
        num_tokens=total_tokens,
        depth_tokens=depth_tokens,
        num_units=num_others,
        length=recipe.length,
        seed=recipe.seed,
        tokenizer=recipe.tokenizer.fingerprint,
    )


class LineCounter:
    """Counts lines by the runs of letters and of digits in their keys and values.

    Where a token of the vocabulary spans two runs, keys and values are counted whole.

    Args:
        tokenizer: The model's tokenizer.
        kind: What the values are, number or uuid.
        sample: Keys with values such as those to count.
    """

    def __init__(
        self, tokenizer: PromptTokenizer, kind: str, sample: Sequence[tuple[str, str]]
    ) -> None:
        self._tokenizer = tokenizer
        self._kind = kind
        self._pieces = PieceCounter(tokenizer, "\n")
        self._lines = PieceCounter(tokenizer, "is: 1.\n")
        borders = [("[a-z]", "[0-9]"), ("[0-9]", "[a-z]"), ("[0-9a-z]", "-"), ("-", "[0-9a-z]")]
        self._splits = not any(tokenizer.joins(*border) for border in borders)
        self._digits_split = not tokenizer.joins("[0-9]", "[0-9]")
        key, value = sample[0]
        [line_tokens] = self._lines.tokens_each_once([f"{render_needle(key, value, kind)}\n"])
        self._frame_tokens = line_tokens - sum(self._text_tokens([key, value]))

    def tokens_each(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """Returns the tokens of the line of each key and value."""
        keys = self._text_tokens([key for key, _ in pairs])
        values = self._text_tokens([value for _, value in pairs])
        return [self._frame_tokens + key + value for key, value in zip(keys, values, strict=True)]

    def adds_up(self, pairs: Sequence[tuple[str, str]]) -> bool:
        """Whether the counts are those of the text that the lines make."""
        lines = [f"{render_needle(key, value, self._kind)}\n" for key, value in pairs]
        exact = self._lines.tokens_each_once(lines)
        return exact == self.tokens_each(pairs) and self._lines.adds_up(lines)

    def _text_tokens(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        if not self._splits or (texts[0].isdigit() and not self._digits_split):
            return self._pieces.tokens_each_once([f" {text}" for text in texts])
        if texts[0].isdigit():
            return [self._pieces.tokens(f" {texts[0]}")] * len(texts)
        runs = [
            _RUN.findall(f" {text}") if _PLAIN.fullmatch(text) else [f" {text}"] for text in texts
        ]
        counts = iter(self._pieces.tokens_each([run for text in runs for run in text]))
        return [sum(islice(counts, len(text))) for text in runs]


class _Lines:
    """The queried needle and the others, drawn as they are needed; no key occurs twice."""

    def __init__(self, rng: SampleRng, needles: Needles, counter: "LineCounter | None") -> None:
        self._rng = rng
        self._needles = needles
        self._counter = counter
        self._place = rng.fraction()
        self._keys: set[str] = set()
        self.key, self.value = self._draw()
        self.needle = render_needle(self.key, self.value, needles.kind)
        self._others: list[str] = []
        self._tokens = [0]

    def num_before(self, num_others: int) -> int:
        return int(self._place * num_others)

    def context(self, num_others: int) -> str:
        self._grow(num_others)
        lines = self._others[:num_others]
        lines.insert(self.num_before(num_others), self.needle)
        return "\n".join(lines)

    def tokens(self, num_others: int) -> int:
        self._grow(num_others)
        return self._tokens[num_others]

    def _draw(self) -> tuple[str, str]:
        while (key := self._needles.draw_key(self._rng)) in self._keys:
            pass
        self._keys.add(key)
        return key, self._needles.draw_value(self._rng)

    def _grow(self, num_others: int) -> None:
        pairs = [self._draw() for _ in range(num_others - len(self._others))]
        new = [render_needle(key, value, self._needles.kind) for key, value in pairs]
        self._others += new
        if self._counter is not None:
            counts = self._counter.tokens_each(pairs)
            self._tokens += list(accumulate(counts, initial=self._tokens[-1]))[1:]


def _prepare(recipe: Recipe, needles: Needles) -> Callable[[int], Doc]:
    rng = SampleRng(recipe.task, "probe")
    probe = [(needles.draw_key(rng), needles.draw_value(rng)) for _ in range(_PROBE_LINES)]
    counter = LineCounter(recipe.tokenizer, needles.kind, probe)
    apart = not recipe.tokenizer.joins(NEWLINE, "O")
    exact = counter if apart and counter.adds_up(probe) else None
    return partial(build_doc, recipe, needles, exact)
