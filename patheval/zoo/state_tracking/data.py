"""Labelled sequences as arrays, for training and for the tests, and the tokenizer that reads them.

Numbers are those of the tasks: what a model is trained or tested with here is what lm-eval asks.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from patheval.tasks.sequences import LabelledSequence, SequenceSource
from patheval.zoo import tokenizer as zoo_tokenizer
from patheval.zoo.state_tracking.recipes import TESTS, TRAINING, StateRecipe
from patheval.zoo.tokenizer import BOS, BOS_ID, EOS, PAD

NO_LABEL = 0
STEPS_PER_PART = 50
SEQUENCES_PER_PART = 256

_PARTS_AHEAD = 32
_SPECIAL = (PAD, BOS, EOS)


@dataclass(frozen=True)
class Batch:
    """Sequences behind BOS, without what follows the last label.

    Attributes:
        ids: uint8 [..., seq_len].
        labels: uint8 [..., seq_len], what has to be named after the symbol there, or `NO_LABEL`.
    """

    ids: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def alphabet(task: str) -> tuple[str, ...]:
    """The symbols of a task, in the order of their ids."""
    return TRAINING[task].alphabet


def vocab_size(task: str) -> int:
    """Entries of a task's tokenizer."""
    return len(_SPECIAL) + len(alphabet(task))


def save_tokenizer(task: str, folder: Path) -> None:
    """Writes a tokenizer that splits at spaces and knows the task's symbols alone."""
    vocabulary = {symbol: i for i, symbol in enumerate((*_SPECIAL, *alphabet(task)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, BOS_ID)]
    )
    zoo_tokenizer.save(tokenizer, folder)


def encode(sequences: Sequence[LabelledSequence], symbols: Sequence[str]) -> Batch:
    """Turns sequences of one length into arrays.

    Args:
        sequences: The sequences.
        symbols: The alphabet.
    """
    number = {symbol: i for i, symbol in enumerate(symbols, start=len(_SPECIAL))}
    rows = np.array([[number[s] for s in own.symbols] for own in sequences], dtype=np.uint8)
    labels = np.full_like(rows, NO_LABEL)
    for row, own in zip(labels, sequences, strict=True):
        row[list(own.labels)] = [number[label] for label in own.labels.values()]
    seq_len = 1 + int(np.flatnonzero(labels.any(axis=0))[-1])
    first = np.full((len(rows), 1), BOS_ID, dtype=np.uint8)
    nothing = np.full((len(rows), 1), NO_LABEL, dtype=np.uint8)
    return Batch(
        np.concatenate([first, rows[:, :seq_len]], axis=1),
        np.concatenate([nothing, labels[:, :seq_len]], axis=1),
    )


def training_part(recipe: StateRecipe, part: int) -> Batch:
    """The batches of `STEPS_PER_PART` steps.

    Args:
        recipe: Which task, seeds and batch size.
        part: Counted from 0.

    Returns:
        Arrays [STEPS_PER_PART, num_models, batch, seq_len].
    """
    source = TRAINING[recipe.task]
    count = STEPS_PER_PART * recipe.batch_size
    streams = [
        encode(
            [source.training_sequence(seed, part * count + i) for i in range(count)],
            source.alphabet,
        )
        for seed in recipe.seeds
    ]

    def stacked(arrays: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        split = np.stack(arrays).reshape(len(arrays), STEPS_PER_PART, recipe.batch_size, -1)
        return np.ascontiguousarray(split.swapaxes(0, 1))

    return Batch(stacked([own.ids for own in streams]), stacked([own.labels for own in streams]))


def training_parts(recipe: StateRecipe, pool: Pool) -> Iterator[Batch]:
    """All parts of a run in order, made ahead.

    Args:
        recipe: The run.
        pool: The processes that make them.
    """
    num_parts = -(-recipe.num_steps // STEPS_PER_PART)
    return _ahead(pool, partial(training_part, recipe), range(num_parts))


def test_parts(
    task: str, source: SequenceSource, tokenizer: Path, limit: int | None, pool: Pool
) -> Iterator[Batch]:
    """The test sequences of one of a task's tests, exactly those that lm-eval asks about.

    Args:
        task: A key of `TESTS`.
        source: One of its values.
        tokenizer: Folder of the task's tokenizer.
        limit: First sequences to take; None for all.
        pool: The processes that make them.
    """
    count = source.num_samples if limit is None else min(limit, source.num_samples)
    ranges = [
        range(first, min(first + SEQUENCES_PER_PART, count))
        for first in range(0, count, SEQUENCES_PER_PART)
    ]
    number = TESTS[task].index(source)
    return _ahead(pool, partial(_test_part, task, number, str(tokenizer)), ranges)


def _ahead(pool: Pool, make: Callable[[Any], Batch], items: Iterable[Any]) -> Iterator[Batch]:
    """Like `pool.imap`, but no more than `_PARTS_AHEAD` ahead of what is read."""
    waiting: deque[AsyncResult[Batch]] = deque()
    for item in items:
        waiting.append(pool.apply_async(make, (item,)))
        if len(waiting) > _PARTS_AHEAD:
            yield waiting.popleft().get()
    while waiting:
        yield waiting.popleft().get()


def _test_part(task: str, number: int, tokenizer: str, indices: range) -> Batch:
    source = TESTS[task][number]
    docs = source.test_split(tokenizer=tokenizer)["test"]
    sequences = []
    for index in indices:
        doc = docs.make(index)
        labels = dict(zip(doc["positions"], doc["targets"], strict=True))
        sequences.append(LabelledSequence(tuple(doc["text"].split(" ")), labels))
    return encode(sequences, source.alphabet)
