"""BABILong documents: the released samples, and longer or shorter ones of any size.

Released samples are read from the authors' data set. Samples of any size hide the facts of its
shortest samples in books; samples for use without a data set hide stories of our own in plays.
"""

import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict

from patheval.errors import UnsupportedError

from ..generation import (
    Doc,
    LazyDocs,
    Loaded,
    Recipe,
    SampleRng,
    dataset,
    num_samples_of,
    preset_of,
    refuse_misspelt,
)
from ..sources import SourceRows
from ..texts import Text, plays, sentence_starts, texts_sha256
from ..tokenization import load_tokenizer
from .prompts import render_prompt
from .stories import Story, hide, tell

MAX_GEN_TOKS = 20
NUM_SAMPLES = 100
_REVISION = "ee0d588794c7ac098062ee0d247c733d62e94fe2"
# Shorter sentences are left out, as BABILong leaves out those of fewer than 10 tokens.
_MIN_WORDS = 8
_FACT_END = re.compile(r"(?<=\.) ")

BOOKS = SourceRows(
    name="the PG-19 test books",
    repository="emozilla/pg19-test",
    revision="c5e39bf32e33f9111323aa68d7d9000d22722035",
    split="test",
)


class BabilongDoc(TypedDict):
    """One sample, as lm-eval reads it and stores it with `--log_samples`.

    Attributes:
        index: Position in the task, from 0.
        task: `qa1` to `qa10`.
        prompt: Text for the model.
        question: The question at its end.
        references: The one right answer.
        num_tokens: Tokens of the prompt, special tokens included.
        tokenizer: Fingerprint of the tokenizer that counted them.
        source_sha256: SHA-256 of the data set's rows.
    """

    index: int
    task: str
    prompt: str
    question: str
    references: list[str]
    num_tokens: int
    tokenizer: str
    source_sha256: str


class StoryDoc(Doc):
    """A document of any size.

    Attributes:
        task: `qa1` to `qa10`.
        question: The question at the end of the prompt.
        facts: What is hidden in the text.
    """

    task: str
    question: str
    facts: list[str]


def released(*, qa: str, size: str, **metadata: Any) -> dict[str, LazyDocs[BabilongDoc]]:
    """Makes the dataset of released samples.

    Args:
        qa: `qa1` to `qa10`.
        size: The data set's name for the length, such as `4k`.
        **metadata: The task's metadata; names the tokenizer and where the data are. `num_samples`
            takes the first so many, all unless given.

    Raises:
        PrerequisiteError: The data set is missing, or no tokenizer is given.
        UnsupportedError: The data set has other content, or a setting makes no sense.
    """
    refuse_misspelt(metadata)
    preset_of(metadata)  # Both presets are the released samples; another name is an error.
    tokenizer = load_tokenizer(metadata)
    rows, sha256 = released_rows(qa, size).load(metadata)

    def build(index: int) -> BabilongDoc:
        row = rows[index]
        prompt = render_prompt(qa, row["input"], row["question"])
        return BabilongDoc(
            index=index,
            task=qa,
            prompt=prompt,
            question=row["question"],
            references=[row["target"]],
            num_tokens=tokenizer.num_tokens(prompt),
            tokenizer=tokenizer.fingerprint,
            source_sha256=sha256,
        )

    return {"test": LazyDocs(min(num_samples_of(metadata, len(rows)), len(rows)), build)}


def released_rows(qa: str, size: str) -> SourceRows:
    """Names the released samples of a task at a length."""
    return SourceRows(
        name=f"BABILong {qa} at {size}",
        repository="RMT-team/babilong",
        revision=_REVISION,
        split=qa,
        files=f"data/{qa}/{size}.json",
    )


def any_length(*, qa: str, **metadata: Any) -> dict[str, LazyDocs[Doc]]:
    """Makes the dataset of samples of the length that the metadata state: facts in books.

    Args:
        qa: `qa1` to `qa10`.
        **metadata: The task's metadata.

    Raises:
        PrerequisiteError: A data set is missing, or no length or no tokenizer is given.
        UnsupportedError: A data set has other content, or a setting makes no sense.
    """

    def load(metadata: Mapping[str, Any]) -> Loaded:
        facts, facts_sha256 = released_rows(qa, "0k").load(metadata)
        books, books_sha256 = BOOKS.load(metadata)
        stories = [
            Story(_FACT_END.split(row["input"].strip()), row["question"], row["target"])
            for row in facts
        ]
        texts = [Text(str(number), row["text"]) for number, row in enumerate(books)]
        if not (stories and texts):
            raise UnsupportedError(
                f"there are {len(stories)} samples in {released_rows(qa, '0k').repository} and "
                f"{len(texts)} texts in {BOOKS.repository}; both need at least one"
            )
        return Loaded((stories, texts), facts_sha256 + books_sha256)

    def prepare(recipe: Recipe, data: tuple[list[Story], list[Text]]) -> Callable[[int], Doc]:
        stories, texts = data
        return partial(
            build_doc, recipe, qa, lambda index, rng: stories[index % len(stories)], texts
        )

    make = dataset(
        f"babilong_{qa}", max_gen_toks=MAX_GEN_TOKS, num_samples=NUM_SAMPLES, source=load
    )
    return make(prepare)(**metadata)


def offline(
    *, qa: str, target_length: int | None = None, **metadata: Any
) -> dict[str, LazyDocs[Doc]]:
    """Makes the dataset of samples that need no data set: stories of our own in plays.

    Args:
        qa: `qa1` to `qa5`.
        target_length: Length in tokens that is part of the task's name; None reads the metadata.
        **metadata: The task's metadata.

    Raises:
        PrerequisiteError: The package with the plays is missing, or no tokenizer is given.
        UnsupportedError: A setting makes no sense.
    """

    def load(metadata: Mapping[str, Any]) -> Loaded:
        return Loaded(plays(), texts_sha256(plays()))

    def prepare(recipe: Recipe, texts: tuple[Text, ...]) -> Callable[[int], Doc]:
        return partial(build_doc, recipe, qa, lambda index, rng: tell(qa, rng), texts)

    make = dataset(
        f"babilong_offline_{qa}", max_gen_toks=MAX_GEN_TOKS, num_samples=NUM_SAMPLES, source=load
    )
    return make(prepare)(target_length=target_length, **metadata)


def build_doc(
    recipe: Recipe,
    qa: str,
    story_at: Callable[[int, SampleRng], Story],
    texts: tuple[Text, ...] | list[Text],
    index: int,
) -> StoryDoc:
    """Makes the document at `index`: a story in the longest text that fits.

    The text is that of a random book from a random word on, without the rest of the sentence
    there; its last sentence is cut where the room ends. Facts stand before random sentences.

    Args:
        recipe: The task.
        qa: `qa1` to `qa10`.
        story_at: Gives the story of a document.
        texts: The books.
        index: Position of the document in the task.

    Raises:
        UnsupportedError: Not even the facts alone fit.
    """
    rng = recipe.rng(index)
    story = story_at(index, rng)
    fractions = sorted(rng.fraction() for _ in story.facts)
    noise = _Noise(rng, texts, num_words=recipe.length)

    def context(num_words: int) -> str:
        sentences = noise.sentences(num_words)
        places = [int(fraction * (len(sentences) + 1)) for fraction in fractions]
        return hide(story.facts, places, sentences)

    def num_tokens(num_words: int) -> int:
        prompt = render_prompt(qa, context(num_words), story.question)
        return recipe.tokenizer.num_tokens(prompt)

    num_words, total_tokens = recipe.largest_fitting(num_tokens, smallest=0)
    prompt = render_prompt(qa, context(num_words), story.question)
    before, _, _ = prompt.partition(story.facts[0])
    return StoryDoc(
        index=index,
        task=qa,
        prompt=prompt,
        question=story.question,
        references=[story.target],
        facts=story.facts,
        num_tokens=total_tokens,
        depth_tokens=recipe.tokenizer.num_tokens(before),
        num_units=num_words,
        length=recipe.length,
        seed=recipe.seed,
        tokenizer=recipe.tokenizer.fingerprint,
    )


class _Noise:
    """Sentences of a book from a random place on; more words hold all of fewer."""

    def __init__(
        self, rng: SampleRng, texts: tuple[Text, ...] | list[Text], num_words: int
    ) -> None:
        order = list(range(len(texts)))
        rng.shuffle(order)
        skipped = rng.fraction()
        self._words: list[str] = []
        self._starts: list[int] = []
        # A book that ends too early is continued by the next one, and the last by the first.
        while True:
            num_before = len(self._words)
            for number in order:
                words = texts[number].content.split()
                if not self._words:
                    words = words[int(skipped * len(words)) :]
                self._add_sentences(words, num_words)
                if len(self._words) >= num_words:
                    return
            if len(self._words) == num_before:
                raise UnsupportedError(
                    f"none of the {len(texts)} texts to hide facts in has a sentence of "
                    f"{_MIN_WORDS} words; pass books"
                )

    def _add_sentences(self, words: list[str], num_words: int) -> None:
        starts = sentence_starts(words)[1:]
        for start, end in itertools.pairwise([*starts, len(words)]):
            if len(self._words) >= num_words:
                return
            if end - start >= _MIN_WORDS:
                self._starts.append(len(self._words))
                self._words += words[start:end]

    def sentences(self, num_words: int) -> list[str]:
        starts = self._starts[: bisect_left(self._starts, num_words)]
        return [" ".join(self._words[a:b]) for a, b in itertools.pairwise([*starts, num_words])]
