"""Flip-flop language: strings of instructions that write, read or ignore one bit."""

from collections.abc import Sequence
from functools import partial

from ..generation import SampleRng
from ..sequences import LabelledSequence, SequenceSource

NUM_INSTRUCTIONS = 256
ALPHABET = ("w", "r", "i", "0", "1")


def draw(rng: SampleRng, *, ignore: float) -> LabelledSequence:
    """Draws a string of FFL(ignore): it begins with a write and ends with a read.

    Args:
        rng: Source of randomness.
        ignore: Probability of an instruction to ignore; writes and reads share the rest.
    """
    symbols: list[str] = []
    stored = ""
    for number in range(NUM_INSTRUCTIONS):
        chance = rng.fraction()
        instruction = "i" if chance < ignore else "w" if chance < (1 + ignore) / 2 else "r"
        if number == 0:
            instruction = "w"
        elif number == NUM_INSTRUCTIONS - 1:
            instruction = "r"
        bit = stored if instruction == "r" else "01"[rng.integer(0, 2)]
        if instruction == "w":
            stored = bit
        symbols += [instruction, bit]
    return label(symbols)


def label(symbols: Sequence[str]) -> LabelledSequence:
    """Labels each read with the bit that was written last.

    Args:
        symbols: Instructions and bits in turn; the first instruction is a write.
    """
    labels = {}
    stored = ""
    for position in range(0, len(symbols), 2):
        if symbols[position] == "w":
            stored = symbols[position + 1]
        elif symbols[position] == "r":
            labels[position] = stored
    return LabelledSequence(tuple(symbols), labels)


def _source(split: str, ignore: float, num_samples: int) -> SequenceSource:
    return SequenceSource(f"fflm_{split}", ALPHABET, partial(draw, ignore=ignore), num_samples)


IID = _source("iid", ignore=0.8, num_samples=16_000)
SPARSE = _source("sparse", ignore=0.98, num_samples=160_000)
DENSE = _source("dense", ignore=0.1, num_samples=4_000)

iid, sparse, dense = IID.test_split, SPARSE.test_split, DENSE.test_split
