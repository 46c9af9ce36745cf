"""PhoneBook documents: a list of names and numbers, two worked examples, one name to look up."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate
from pathlib import Path

import names

from ..generation import Doc, Recipe, SampleRng, dataset
from ..tokenization import NEWLINE, PieceCounter, PromptTokenizer

MAX_GEN_TOKS = 50
NUM_SAMPLES = 96
NUM_EXAMPLES = 2


_PROBE_ENTRIES = 200


@dataset("phonebook", max_gen_toks=MAX_GEN_TOKS, num_samples=NUM_SAMPLES)
def phonebook(recipe: Recipe) -> Callable[[int], Doc]:
    """Makes the dataset of one PhoneBook task."""
    counter = LineCounter(recipe.tokenizer)
    return partial(build_doc, recipe, counter if counter.adds_up else None)


def build_doc(recipe: Recipe, counter: "LineCounter | None", index: int) -> Doc:
    """Makes the document at `index`: the book with the most entries that fits the length.

    Args:
        recipe: The task.
        counter: Counts lines; None to encode whole prompts.
        index: Position of the document in the task.

    Raises:
        UnsupportedError: Not even a book of the three needed entries fits.
    """
    book = _Book(recipe.rng(index), counter)

    def count(num_entries: int) -> int:
        if counter is None:
            return recipe.tokenizer.num_tokens(book.prompt(num_entries))
        return book.num_tokens(num_entries)

    num_entries, num_tokens = recipe.largest_fitting(count, smallest=NUM_EXAMPLES + 1)
    prompt = book.prompt(num_entries)
    name, number = book.query
    before_number = prompt[: prompt.index(f"{name}: ") + len(f"{name}: ")]
    return Doc(
        index=index,
        prompt=prompt,
        references=[number],
        num_tokens=num_tokens,
        depth_tokens=recipe.tokenizer.num_tokens(before_number),
        num_units=num_entries,
        length=recipe.length,
        seed=recipe.seed,
        tokenizer=recipe.tokenizer.fingerprint,
    )


def render_prompt(
    entries: list[tuple[str, str]], examples: list[tuple[str, str]], queried_name: str
) -> str:
    """Writes a prompt in the format of Jelassi et al. (2024).

    Args:
        entries: The book: names with their numbers.
        examples: Entries of the book that are repeated as worked examples.
        queried_name: The name to look up.
    """
    book, shots = (
        "\n".join(f"{name}: {number}" for name, number in part) for part in (entries, examples)
    )
    return f"{book}\n\n{shots}\n\n{queried_name}:"


class LineCounter:
    """Counts the lines of a book one by one.

    Args:
        tokenizer: The model's tokenizer.
    """

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._lines = PieceCounter(tokenizer, "1\n")
        apart = not (tokenizer.joins(NEWLINE, "[A-Z]") or tokenizer.joins("[0-9]", NEWLINE))
        book = _Book(SampleRng("phonebook", "probe"), self)
        whole = tokenizer.num_tokens(book.prompt(_PROBE_ENTRIES))
        self.adds_up = apart and book.num_tokens(_PROBE_ENTRIES) == whole

    def tokens_each(self, texts: Sequence[str]) -> list[int]:
        """Returns the tokens of texts that begin behind a line."""
        return self._lines.tokens_each_once(texts)

    def first_tokens(self, line: str) -> int:
        """Returns the tokens of a line that begins the prompt, special tokens included."""
        return self._tokenizer.num_tokens(line)


class _Book:
    """A phone book of any size; a larger one holds all entries of a smaller one.

    The examples and the queried entry are drawn first and then put at random places, which makes
    the book grow by whole entries and gives the same distribution as choosing them afterwards.
    """

    def __init__(self, rng: SampleRng, counter: LineCounter | None) -> None:
        self._rng = rng
        self._counter = counter
        self._names: set[str] = set()
        self._places = [rng.fraction() for _ in range(NUM_EXAMPLES + 1)]
        *self._examples, self.query = (self._draw_entry() for _ in self._places)
        self._others: list[tuple[str, str]] = []
        self._tokens = [0]

    def prompt(self, num_entries: int) -> str:
        return render_prompt(self._entries(num_entries), self._examples, self.query[0])

    def num_tokens(self, num_entries: int) -> int:
        assert self._counter is not None
        entries = self._entries(num_entries)
        new = self._others[len(self._tokens) - 1 :]
        counts = self._counter.tokens_each([_line(entry) for entry in new])
        self._tokens += list(accumulate(counts, initial=self._tokens[-1]))[1:]
        first = _line(entries[0])
        end = render_prompt([("", "")], self._examples, self.query[0]).removeprefix(": \n")
        fixed = [*map(_line, [*self._examples, self.query]), end]
        *fixed_tokens, first_behind = self._counter.tokens_each([*fixed, first])
        others_tokens = self._tokens[num_entries - len(self._places)]
        as_first = self._counter.first_tokens(first) - first_behind
        return as_first + others_tokens + sum(fixed_tokens)

    def _entries(self, num_entries: int) -> list[tuple[str, str]]:
        num_others = num_entries - len(self._places)
        while len(self._others) < num_others:
            self._others.append(self._draw_entry())
        entries = self._others[:num_others]
        for entry, place in zip([*self._examples, self.query], self._places, strict=True):
            entries.insert(int(place * (len(entries) + 1)), entry)
        return entries

    def _draw_entry(self) -> tuple[str, str]:
        while (name := _draw_name(self._rng)) in self._names:
            pass
        self._names.add(name)
        return name, str(self._rng.integer(6 * 10**9, 10**10))


def _line(entry: tuple[str, str]) -> str:
    return f"{entry[0]}: {entry[1]}\n"


def _draw_name(rng: SampleRng) -> str:
    first_names = rng.choice(("first:male", "first:female"))
    return f"{_draw_weighted(rng, first_names)} {_draw_weighted(rng, 'last')}"


def _draw_weighted(rng: SampleRng, table: str) -> str:
    words, cumulative_percent = _name_table(table)
    return words[bisect_right(cumulative_percent, rng.fraction() * 90)]


@cache
def _name_table(table: str) -> tuple[list[str], list[float]]:
    lines = Path(names.FILES[table]).read_text(encoding="ascii").splitlines()
    rows = [line.split() for line in lines]
    return [row[0].capitalize() for row in rows], [float(row[2]) for row in rows]
