"""The training mixture: which documents, how long, and how they fill a sequence.

Sequence ``i`` depends on the recipe, the corpus, the tokenizer and on ``i`` alone, so shards can be
made in any order by any number of processes.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from patheval.zoo import tokenizer as zoo_tokenizer
from patheval.zoo.documents import books, chains, counting, facts, needles, stories
from patheval.zoo.documents.corpus import Corpus
from patheval.zoo.recipes import Recipe

SEQUENCES_PER_SHARD = 256
_SHORTEST = 96
_RAMP_START = 256

Tokens = NDArray[np.uint16]


@dataclass(frozen=True)
class Kind:
    """One kind of document.

    Attributes:
        write: makes a document of about the given number of characters.
        chars_per_token: mean length of a token, measured on the trained tokenizer.
    """

    write: Callable[[Random, int, Corpus], str]
    chars_per_token: float


def _code(rng: Random, num_chars: int, corpus: Corpus) -> str:
    return corpus.excerpt(rng, corpus.code, num_chars)


def _prose(rng: Random, num_chars: int, corpus: Corpus) -> str:
    return corpus.excerpt(rng, corpus.prose, num_chars)


KINDS = {
    "books": Kind(books.write, 1.45),
    "facts": Kind(facts.write, 2.15),
    "needles": Kind(needles.write, 2.4),
    "chains": Kind(chains.write, 1.8),
    "stories": Kind(stories.write, 2.2),
    "counting": Kind(counting.write, 1.7),
    "code": Kind(_code, 2.4),
    "prose": Kind(_prose, 2.4),
}


def _pick(rng: Random, shares: Mapping[str, float]) -> Kind:
    return KINDS[rng.choices(list(shares), list(shares.values()))[0]]


def sample_texts(
    corpus: Corpus, shares: Mapping[str, float], seed: str, *, count: int, num_chars: int
) -> Iterator[str]:
    """Documents of a mixture, to train a tokenizer on."""
    for index in range(count):
        rng = Random(f"{seed}/text/{index}")
        yield _pick(rng, shares).write(rng, num_chars, corpus)


def longest_document(progress: float, ramp: float, seq_len: int) -> int:
    """Most tokens of a document: grows at the beginning of training to the whole sequence.

    Args:
        progress: share of the training that is done.
        ramp: share of the training in which it grows.
        seq_len: tokens of a sequence.
    """
    if progress >= ramp:
        return seq_len
    start = min(_RAMP_START, seq_len)
    return round(start + (seq_len - start) * progress / ramp)


def pack(
    rng: Random,
    corpus: Corpus,
    tokenizer: Tokenizer,
    shares: Mapping[str, float],
    *,
    seq_len: int,
    longest: int,
) -> Tokens:
    """Fills one sequence with whole documents, each between BOS and EOS.

    Lengths are log-uniform up to twice ``longest``, cut there, so that many documents are as long
    as they can be. The last document loses what does not fit.

    Args:
        rng: source of randomness.
        corpus: code and prose.
        tokenizer: turns text into tokens.
        shares: weight of each kind of document.
        seq_len: tokens of the sequence.
        longest: most tokens of a document.

    Returns:
        uint16 [seq_len].
    """
    ids: list[int] = []
    while (room := seq_len - len(ids)) > 2:
        kind = _pick(rng, shares)
        length = math.exp(rng.uniform(math.log(_SHORTEST), math.log(2 * longest)))
        num_tokens = round(min(length, longest, room))
        if num_tokens < _SHORTEST:
            kind = KINDS["prose"]
        text = kind.write(rng, round(num_tokens * kind.chars_per_token), corpus)
        document = tokenizer.encode(text, add_special_tokens=False).ids
        ids += [zoo_tokenizer.BOS_ID, *document, zoo_tokenizer.EOS_ID]
    ids += [zoo_tokenizer.EOS_ID] * 2
    return np.array(ids[:seq_len], dtype=np.uint16)


@dataclass(frozen=True)
class ShardMaker:
    """Makes the shards of one training run.

    Attributes:
        corpus: code and prose.
        tokenizer: turns text into tokens.
        recipe: the run.
        folder: where the shards go.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    recipe: Recipe
    folder: Path

    def sequence(self, index: int) -> Tokens:
        """Sequence ``index`` of the run, uint16 [seq_len]."""
        recipe = self.recipe
        return pack(
            Random(f"{recipe.data_seed}/{index}"),
            self.corpus,
            self.tokenizer,
            recipe.shares,
            seq_len=recipe.seq_len,
            longest=longest_document(index / recipe.num_sequences, recipe.ramp, recipe.seq_len),
        )

    def write(self, shard: int) -> None:
        """Writes one shard; readers see it whole or not at all."""
        first = shard * SEQUENCES_PER_SHARD
        last = min(first + SEQUENCES_PER_SHARD, self.recipe.num_sequences)
        tokens = np.stack([self.sequence(index) for index in range(first, last)])
        path = shard_path(self.folder, shard)
        partial = path.with_suffix(".partial.npy")
        np.save(partial, tokens)
        partial.rename(path)

    def write_all(self, num_processes: int) -> None:
        """Writes every shard, in order as far as several processes can."""
        context = multiprocessing.get_context("fork")
        workers = [
            context.Process(target=self._write_every, args=(first, num_processes))
            for first in range(num_processes)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode != 0 for worker in workers):
            raise RuntimeError("a process that writes shards failed")

    def _write_every(self, first: int, stride: int) -> None:
        num_shards = math.ceil(self.recipe.num_sequences / SEQUENCES_PER_SHARD)
        for shard in range(first, num_shards, stride):
            self.write(shard)


def shard_path(folder: Path, shard: int) -> Path:
    """File of one shard, uint16 [sequences, seq_len]."""
    return folder / f"shard-{shard:05d}.npy"


def read_batches(
    folder: Path, *, batch_size: int, first_step: int, num_steps: int
) -> Iterator[Tokens]:
    """The batches of a run in order; waits for shards that are still being written.

    Args:
        folder: the shards.
        batch_size: sequences of a batch; divides ``SEQUENCES_PER_SHARD``.
        first_step: step to begin with.
        num_steps: step to end before.

    Yields:
        uint16 [batch_size, seq_len].
    """
    per_shard = SEQUENCES_PER_SHARD // batch_size
    for shard in range(first_step // per_shard, math.ceil(num_steps / per_shard)):
        path = shard_path(folder, shard)
        while not path.exists():
            time.sleep(0.2)
        tokens: Tokens = np.load(path)
        for step in range(
            max(first_step, shard * per_shard), min(num_steps, (shard + 1) * per_shard)
        ):
            row = step % per_shard * batch_size
            yield tokens[row : row + batch_size]
