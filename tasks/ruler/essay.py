"""RULER's needles in a haystack of essays: one or several values, under one or several keys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any

from ..generation import Doc, LazyDocs, Loaded, Recipe, SampleRng, dataset
from ..tokenization import SPACE, PieceCounter, PromptTokenizer
from .haystack import Haystack, essays, essays_offline
from .niah import (
    MAX_GEN_TOKS,
    NUM_SAMPLES,
    draw_number,
    draw_uuid,
    draw_word,
    render_answer_prefix,
    render_needle,
    render_prompt,
    render_query,
)

DEPTHS_PERCENT = tuple(round(100 * i / 39) for i in range(40))
STEP_WORDS = 500

_PROBE_WORDS = 3000
# No white space: words hold none. The last ones are how vocabularies of bytes write it.
_BEFORE_SPACE = r"[^\s\u2581\u0120\u0109\u010a\u010d]"


@dataclass(frozen=True)
class Needles:
    """How the needles of a task are made.

    Attributes:
        kind: What the values are, number or uuid.
        num_keys: Keys in the haystack.
        num_values: Values of each key.
        num_queries: Keys that are asked for.
    """

    kind: str = "number"
    num_keys: int = 1
    num_values: int = 1
    num_queries: int = 1

    @property
    def plural(self) -> bool:
        """Whether several values are asked for."""
        return self.num_values * self.num_queries > 1

    def draw_value(self, rng: SampleRng) -> str:
        """Draws a value."""
        return draw_uuid(rng) if self.kind == "uuid" else draw_number(rng)


class Counter:
    """Counts the haystack's words and the needles one by one.

    Args:
        tokenizer: The model's tokenizer.
        haystack: The words.
    """

    def __init__(self, tokenizer: PromptTokenizer, haystack: Haystack) -> None:
        self._pieces = PieceCounter(tokenizer, "it.")
        words = haystack.one_copy
        costs = self._pieces.tokens_each([f" {word}" for word in words])
        self._until = list(accumulate(costs, initial=0))
        probe = [render_needle("clean-house", "1234567"), *words[:_PROBE_WORDS]]
        splits = not tokenizer.joins(_BEFORE_SPACE, SPACE)
        self.adds_up = splits and self._pieces.adds_up([f" {word}" for word in probe])

    def tokens(self, text: str) -> int:
        """Returns the tokens of a text that begins with a space, behind another one."""
        return self._pieces.tokens_each_once([text])[0]

    def words_between(self, start: int, stop: int) -> int:
        """Returns the tokens of the words from position `start` up to `stop`."""
        return self._words_until(stop) - self._words_until(start)

    def _words_until(self, stop: int) -> int:
        copies, rest = divmod(stop, len(self._until) - 1)
        return copies * self._until[-1] + self._until[rest]


def build_doc(
    recipe: Recipe, needles: Needles, haystack: Haystack, counter: Counter | None, index: int
) -> Doc:
    """Makes the document at `index`: the needles between sentences of the most words that fit.

    Args:
        recipe: The task.
        needles: How the needles are made.
        haystack: The words.
        counter: Counts words; None to encode whole prompts.
        index: Position of the document in the task.

    Raises:
        UnsupportedError: Not even one word of the haystack fits.
    """
    sample = _Sample(recipe, needles, haystack, counter, recipe.rng(index))
    num_words, num_tokens = recipe.largest_fitting(sample.num_tokens, smallest=1)
    return Doc(
        index=index,
        prompt=sample.prompt(num_words),
        answer_prefix=sample.answer_prefix,
        references=sample.references,
        num_tokens=num_tokens,
        depth_tokens=sample.depth_tokens(num_words),
        num_units=num_words,
        length=recipe.length,
        seed=recipe.seed,
        tokenizer=recipe.tokenizer.fingerprint,
    )


class _Sample:
    """The needles of one document, and the prompt around them in a haystack of any size."""

    def __init__(
        self,
        recipe: Recipe,
        needles: Needles,
        haystack: Haystack,
        counter: Counter | None,
        rng: SampleRng,
    ) -> None:
        self._tokenizer = recipe.tokenizer
        self._haystack = haystack
        self._counter = counter
        values: dict[str, list[str]] = {}
        while len(values) < needles.num_keys:
            values.setdefault(draw_word(rng), [])
        for drawn in values.values():
            drawn += [needles.draw_value(rng) for _ in range(needles.num_values)]
        keys = list(values)
        rng.shuffle(keys)
        asked = keys[: needles.num_queries]
        self.references = [value for key in asked for value in values[key]]
        hidden = [(key, value) for key, drawn in values.items() for value in drawn]
        rng.shuffle(hidden)
        self._needles = [render_needle(key, value, needles.kind) for key, value in hidden]
        first = next(i for i, (_, value) in enumerate(hidden) if value in self.references)
        self._first = first
        self._text_before_first = self._needles[first].removesuffix(f"{hidden[first][1]}.")
        depths = list(DEPTHS_PERCENT)
        rng.shuffle(depths)
        self._depths = sorted(depths[: len(hidden)])
        query = render_query(asked)
        self.answer_prefix = render_answer_prefix(query, needles.kind, plural=needles.plural)
        prompt = render_prompt("\0", query, needles.kind, plural=needles.plural)
        self._before, _, self._after = prompt.partition("\0")

    def prompt(self, num_words: int) -> str:
        places = self._places(num_words)
        items = self._haystack.words(0, places[0])
        for needle, (start, stop) in zip(
            self._needles, pairwise([*places, num_words]), strict=True
        ):
            items.append(needle)
            items += self._haystack.words(start, stop)
        return self._before + " ".join(items) + self._after

    def num_tokens(self, num_words: int) -> int:
        if self._counter is None:
            return self._tokenizer.num_tokens(self.prompt(num_words) + self.answer_prefix)
        places = self._places(num_words)
        last_is_needle = places[-1] == num_words
        [last_word] = self._haystack.words(num_words - 1, num_words)
        last = self._needles[-1] if last_is_needle else last_word
        needles = self._needles[:-1] if last_is_needle else self._needles
        words_end = num_words if last_is_needle else num_words - 1
        return self._until(places[0], needles, words_end) + self._counter.tokens(
            f" {last}{self._after}{self.answer_prefix}"
        )

    def depth_tokens(self, num_words: int) -> int:
        places = self._places(num_words)
        before = self._needles[: self._first]
        if self._counter is None or (places[0] == 0 and not before):
            text, _, _ = self.prompt(num_words).partition(self._needles[self._first])
            return self._tokenizer.num_tokens(text + self._text_before_first)
        return self._until(places[0], before, places[self._first]) + self._counter.tokens(
            f" {self._text_before_first}"
        )

    def _until(self, first_place: int, needles: Sequence[str], num_words: int) -> int:
        """Tokens of a prompt's beginning that ends after so many words and all these needles."""
        assert self._counter is not None
        if first_place == 0:
            first, pieces, start = needles[0], needles[1:], 0
        else:
            first, pieces, start = self._haystack.words(0, 1)[0], needles, 1
        return (
            self._tokenizer.num_tokens(self._before + first)
            + sum(self._counter.tokens(f" {piece}") for piece in pieces)
            + self._counter.words_between(start, num_words)
        )

    def _places(self, num_words: int) -> list[int]:
        """Words before each needle."""
        sentences = self._haystack.num_sentences(num_words)
        befores = [sentences * depth // 100 for depth in self._depths]
        return [
            num_words if before == sentences else self._haystack.sentence_start(before)
            for before in befores
        ]


def _task(
    name: str, needles: Needles, source: Callable[[Mapping[str, Any]], Loaded] = essays
) -> Callable[..., dict[str, LazyDocs[Doc]]]:
    @dataset(
        f"ruler_{name}",
        max_gen_toks=MAX_GEN_TOKS,
        num_samples=NUM_SAMPLES,
        source=source,
        step=lambda length: STEP_WORDS,
    )
    def prepare(recipe: Recipe, haystack: Haystack) -> Callable[[int], Doc]:
        counter = _counter(recipe.tokenizer, haystack)
        exact = counter if counter.adds_up else None
        return partial(build_doc, recipe, needles, haystack, exact)

    return prepare


@cache
def _counter(tokenizer: PromptTokenizer, haystack: Haystack) -> Counter:
    return Counter(tokenizer, haystack)


_SINGLE, _UUID, _MULTIKEY = Needles(), Needles(kind="uuid"), Needles(num_keys=4)
_MULTIVALUE, _MULTIQUERY = Needles(num_values=4), Needles(num_keys=4, num_queries=4)

niah_single_2 = _task("niah_single_2", _SINGLE)
niah_single_3 = _task("niah_single_3", _UUID)
niah_multikey_1 = _task("niah_multikey_1", _MULTIKEY)
niah_multivalue = _task("niah_multivalue", _MULTIVALUE)
niah_multiquery = _task("niah_multiquery", _MULTIQUERY)
niah_single_2_offline = _task("niah_single_2_offline", _SINGLE, essays_offline)
niah_single_3_offline = _task("niah_single_3_offline", _UUID, essays_offline)
niah_multikey_1_offline = _task("niah_multikey_1_offline", _MULTIKEY, essays_offline)
niah_multivalue_offline = _task("niah_multivalue_offline", _MULTIVALUE, essays_offline)
niah_multiquery_offline = _task("niah_multiquery_offline", _MULTIQUERY, essays_offline)
