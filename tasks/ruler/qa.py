"""RULER's question answering: the paragraphs that answer a question among many others."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate, islice

from patheval.errors import UnsupportedError

from ..generation import Doc, Exact, Recipe, SampleRng, dataset
from ..tokenization import NEWLINE, SPACE, PieceCounter, PromptTokenizer
from .documents import Question, Questions, hotpotqa, squad

MAX_GEN_TOKS = 32
NUM_SAMPLES = 500
STEP_DOCUMENTS = 10
NUM_SPARE = 100

_PROBE_DOCUMENTS = 50
_TASK = (
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any other words."
)


@dataset(
    "ruler_qa_1",
    max_gen_toks=MAX_GEN_TOKS,
    num_samples=NUM_SAMPLES,
    source=squad,
    step=lambda length: STEP_DOCUMENTS,
)
def qa_1(recipe: Recipe, data: Questions) -> Callable[[int], Doc]:
    """Makes the dataset of one qa_1 task: questions of SQuAD."""
    return _prepare(recipe, data)


@dataset(
    "ruler_qa_2",
    max_gen_toks=MAX_GEN_TOKS,
    num_samples=NUM_SAMPLES,
    source=hotpotqa,
    step=lambda length: STEP_DOCUMENTS,
)
def qa_2(recipe: Recipe, data: Questions) -> Callable[[int], Doc]:
    """Makes the dataset of one qa_2 task: questions of HotpotQA."""
    return _prepare(recipe, data)


def build_doc(
    recipe: Recipe,
    data: Questions,
    questions: Sequence[Question],
    counter: "DocumentCounter",
    index: int,
) -> Doc:
    """Makes the document at `index`: a question after the most paragraphs that fit.

    Args:
        recipe: The task.
        data: The data set.
        questions: The questions of the task, by index.
        counter: Counts paragraphs.
        index: Position of the document in the task.

    Raises:
        UnsupportedError: The data set has too few documents to fill the length.
    """
    rng = recipe.rng(index)
    question = questions[index]
    choice = _Choice(data, question, rng)

    def num_tokens(num_documents: int) -> int:
        return counter.tokens(question.query, choice.first(num_documents))

    num_documents, total_tokens = recipe.largest_fitting(num_tokens, len(question.needed))
    chosen = choice.first(num_documents)
    if isinstance(recipe.size_rule, Exact):
        chosen, total_tokens = _fill_up(recipe, question, choice, counter, chosen, total_tokens)
    rng.shuffle(chosen)
    texts = [data.documents[i] for i in chosen]
    first, found = _first_answer(question, chosen, texts)
    return Doc(
        index=index,
        prompt=render_prompt(texts, question.query),
        answer_prefix=render_answer_prefix(),
        references=list(question.references),
        num_tokens=total_tokens,
        depth_tokens=counter.tokens_before(chosen, first, texts[first][:found]),
        num_units=len(chosen),
        length=recipe.length,
        seed=recipe.seed,
        tokenizer=recipe.tokenizer.fingerprint,
    )


def render_documents(documents: Sequence[str]) -> str:
    """Writes numbered documents."""
    return "\n\n".join(f"Document {i}:\n{text}" for i, text in enumerate(documents, 1))


def render_prompt(documents: Sequence[str], query: str) -> str:
    """Writes a prompt that asks a question about documents."""
    return _render_start() + render_documents(documents) + _render_end(query)


def render_answer_prefix() -> str:
    """Writes the start of the answer, which follows the prompt directly."""
    return " Answer:"


class DocumentCounter:
    """Counts prompts by their documents, or whole where tokens span the borders of those.

    Args:
        tokenizer: The model's tokenizer.
        data: The data set.
    """

    def __init__(self, tokenizer: PromptTokenizer, data: Questions) -> None:
        self._tokenizer = tokenizer
        self._documents = data.documents
        self._bodies = PieceCounter(tokenizer, "1")
        self._numbers = PieceCounter(tokenizer, "Document")
        self._ends = PieceCounter(tokenizer, "town.")
        self._number_tokens = [0]
        self._start = tokenizer.num_tokens(f"{_render_start()}Document")
        borders = [("[a-z]", SPACE), ("[0-9]", ":"), (NEWLINE, "[A-Z]")]
        self._apart = not any(tokenizer.joins(*border) for border in borders)
        probe = range(min(_PROBE_DOCUMENTS, len(data.documents)))
        text = render_prompt([data.documents[i] for i in probe], "Who?") + render_answer_prefix()
        self._apart = self._apart and self.tokens("Who?", probe) == tokenizer.num_tokens(text)

    def tokens(self, query: str, documents: Sequence[int]) -> int:
        """Returns the tokens of a prompt with its answer prefix.

        Args:
            query: The question.
            documents: Indices of the documents.
        """
        end = _render_end(query) + render_answer_prefix()
        if not self._apart:
            texts = render_documents([self._documents[i] for i in documents])
            return self._tokenizer.num_tokens(_render_start() + texts + end)
        border, whole_end = self._ends.tokens_each(["\n\nDocument", end])
        return (
            self._start
            + self._until(len(documents))
            + sum(self.body_tokens(documents))
            + whole_end
            - border
        )

    def tokens_before(self, documents: Sequence[int], position: int, text: str) -> int:
        """Returns the tokens of a prompt's beginning that ends inside a document.

        Args:
            documents: Indices of the documents.
            position: Place of that document among them, from 0.
            text: The beginning of that document.
        """
        if not self._apart:
            texts = [*(self._documents[i] for i in documents[:position]), text]
            return self._tokenizer.num_tokens(_render_start() + render_documents(texts))
        return (
            self._start
            + self._until(position + 1)
            + sum(self.body_tokens(documents[:position]))
            + self._bodies.tokens_each_once([f":\n{text}"])[0]
        )

    def body_tokens(self, documents: Sequence[int]) -> list[int]:
        """Returns the tokens that each document adds, its number aside."""
        return self._bodies.tokens_each([f":\n{self._documents[i]}\n\nDocument" for i in documents])

    def _until(self, num_documents: int) -> int:
        new = [f" {i}" for i in range(len(self._number_tokens), num_documents + 1)]
        if new:
            counts = self._numbers.tokens_each_once(new)
            self._number_tokens += list(accumulate(counts, initial=self._number_tokens[-1]))[1:]
        return self._number_tokens[num_documents]


class _Choice:
    """Documents of one prompt in the order in which they come in as it grows."""

    def __init__(self, data: Questions, question: Question, rng: SampleRng) -> None:
        self._rng = rng
        self._num_documents = len(data.documents)
        self._needed = set(question.needed)
        related = list(question.related)
        rng.shuffle(related)
        self._order = [*question.needed, *related]
        self._used = set(self._order)

    def first(self, count: int) -> list[int]:
        while len(self._order) < count:
            self._order.append(self._draw())
        return self._order[:count]

    def _draw(self) -> int:
        if len(self._used) == self._num_documents:
            # A small data set: all but the needed ones may come in again.
            self._used = set(self._needed)
            if len(self._used) == self._num_documents:
                raise UnsupportedError(
                    f"the data set has {self._num_documents} documents, all of which a question "
                    "needs; use one with more"
                )
        while (drawn := self._rng.integer(0, self._num_documents)) in self._used:
            pass
        self._used.add(drawn)
        return drawn


def _fill_up(
    recipe: Recipe,
    question: Question,
    choice: _Choice,
    counter: DocumentCounter,
    chosen: list[int],
    total_tokens: int,
) -> tuple[list[int], int]:
    """Adds spare documents, each time the longest that fits, until none does."""
    budget = recipe.length - recipe.max_gen_toks
    spare = dict.fromkeys(choice.first(len(chosen) + NUM_SPARE)[len(chosen) :])
    costs = dict(zip(spare, counter.body_tokens(list(spare)), strict=True))
    while fitting := [i for i in costs if costs[i] < budget - total_tokens]:
        longest = max(fitting, key=costs.__getitem__)
        more = [*chosen, longest]
        more_tokens = counter.tokens(question.query, more)
        if more_tokens <= budget:
            chosen, total_tokens = more, more_tokens
        del costs[longest]
    return chosen, total_tokens


def _first_answer(
    question: Question, chosen: Sequence[int], texts: Sequence[str]
) -> tuple[int, int]:
    """Finds the first needed document with an answer in it, and where; else the first needed."""
    needed = [place for place, i in enumerate(chosen) if i in question.needed]
    for place in needed:
        found = [texts[place].find(reference) for reference in question.references]
        if any(at >= 0 for at in found):
            return place, min(at for at in found if at >= 0)
    return needed[0], 0


def _prepare(recipe: Recipe, data: Questions) -> Callable[[int], Doc]:
    counter = _counter(recipe.tokenizer, data)
    budget = recipe.length - recipe.max_gen_toks
    sizes: list[int] = []

    def fits(question: Question) -> bool:
        sizes.append(counter.tokens(question.query, question.needed))
        return sizes[-1] <= budget

    questions = list(islice(filter(fits, data.questions), recipe.num_samples))
    if not questions:
        raise recipe.too_short(min(sizes, default=0))
    if len(questions) < recipe.num_samples:
        raise UnsupportedError(
            f"{recipe.task} has {len(questions)} questions that fit {recipe.length} tokens and "
            f"{recipe.num_samples} are wanted; pass "
            f"""--metadata '{{"num_samples": {len(questions)}}}' or use a larger length"""
        )
    return partial(build_doc, recipe, data, questions, counter)


def _render_start() -> str:
    return f"{_TASK}\n\nThe following are given documents.\n\n"


def _render_end(query: str) -> str:
    return f"\n\n{_TASK}\n\nQuestion: {query}"


@cache
def _counter(tokenizer: PromptTokenizer, data: Questions) -> DocumentCounter:
    return DocumentCounter(tokenizer, data)
