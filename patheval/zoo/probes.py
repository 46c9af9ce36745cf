"""Quick checks of what a model has learned, with teacher-forced exact match.

The prompts have the tests' formats but made-up names, and seeds of their own: training never sees
them, and no test sample is used up.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from patheval.zoo.documents import words

LENGTHS = (512, 1024, 2048)
_SEED = "probe"

NextLogits = Callable[[Tensor], Tensor]
"""Maps ids int64 [batch, seq_len] to logits [batch, seq_len, vocab_size]."""


@dataclass(frozen=True)
class Prompt:
    """A text and the continuation that a model has to give.

    Attributes:
        text: the prompt.
        answer: what has to follow.
    """

    text: str
    answer: str


def phonebook(rng: Random, num_entries: int) -> Prompt:
    """A book in PhoneBook's format with made-up names."""
    entries: dict[str, str] = {}
    while len(entries) < num_entries:
        person = f"{words.name(rng)} {words.name(rng)}"
        entries[person] = rng.choice("6789") + "".join(rng.choices("0123456789", k=9))
    *shown, asked = rng.sample(list(entries), 3)
    book = "\n".join(f"{person}: {number}" for person, number in entries.items())
    examples = "\n".join(f"{person}: {entries[person]}" for person in shown)
    return Prompt(f"{book}\n\n{examples}\n\n{asked}:", f" {entries[asked]}")


def needle(rng: Random, num_lines: int) -> Prompt:
    """A haystack in the format of RULER's niah_single_1 with a made-up key."""
    noise = (
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    )
    key, number = f"{words.word(rng)}-{words.word(rng)}", words.digits(rng, 7)
    lines = [noise] * num_lines
    lines.insert(
        rng.randint(0, num_lines), f"One of the special magic numbers for {key} is: {number}."
    )
    text = (
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards.\n" + "\n".join(lines) + "\n"
        f"What is the special magic number for {key} mentioned in the provided text? "
        f"The special magic number for {key} mentioned in the provided text is"
    )
    return Prompt(text, f" {number}")


_WRITERS = {"phonebook": phonebook, "needle": needle}


def _ids(prompt: Prompt, tokenizer: Tokenizer) -> tuple[list[int], int]:
    question = tokenizer.encode(prompt.text).ids
    answer = tokenizer.encode(prompt.answer, add_special_tokens=False).ids
    return question + answer, len(answer)


def _fitting_size(write: Callable[[Random, int], Prompt], tokenizer: Tokenizer, length: int) -> int:
    """Largest size whose prompts stay a few percent under ``length`` tokens."""
    small, large = (len(_ids(write(Random(_SEED), size), tokenizer)[0]) for size in (10, 20))
    per_item = (large - small) / 10
    return math.floor((0.96 * length - small) / per_item) + 10


def prompts(
    kind: str, tokenizer: Tokenizer, length: int, count: int
) -> Iterator[tuple[list[int], int]]:
    """Token ids of prompts with their answers, and the number of answer tokens.

    Args:
        kind: ``phonebook`` or ``needle``.
        tokenizer: turns text into tokens.
        length: most tokens of a prompt with its answer.
        count: number of prompts.
    """
    write = _WRITERS[kind]
    size = _fitting_size(write, tokenizer, length)
    for index in range(count):
        yield _ids(write(Random(f"{_SEED}/{kind}/{length}/{index}"), size), tokenizer)


def exact_match(
    next_logits: NextLogits,
    samples: list[tuple[list[int], int]],
    *,
    batch_size: int,
    seq_len: int,
    device: torch.device,
) -> float:
    """Share of the samples whose every answer token is the most likely one.

    Args:
        next_logits: the model.
        samples: token ids with the number of answer tokens at their end.
        batch_size: prompts of one forward pass; filled up with empty ones.
        seq_len: tokens of one forward pass.
        device: where the model is.
    """
    hits = 0
    for first in range(0, len(samples), batch_size):
        part = samples[first : first + batch_size]
        ids = torch.zeros(batch_size, seq_len, dtype=torch.int64)
        for row, (tokens, _) in enumerate(part):
            ids[row, : min(len(tokens), seq_len)] = torch.tensor(tokens[:seq_len])
        best = next_logits(ids.to(device)).argmax(-1).cpu()
        for row, (tokens, num_answer) in enumerate(part):
            end = len(tokens)
            predicted = best[row, end - num_answer - 1 : end - 1].tolist()
            hits += predicted == tokens[end - num_answer :]
    return hits / len(samples)
