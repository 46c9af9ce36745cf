"""Labelled sequences, which the state-tracking benchmarks test and train models with.

A sequence is a list of symbols, some of which have a label: the symbol that a model must name next
after it has read the sequence up to there. Where labels differ from what follows in the sequence,
only a model trained for the task can know that, so each benchmark makes training data as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from patheval.errors import UnsupportedError

from .generation import (
    LazyDocs,
    SampleRng,
    checked_integer,
    num_samples_of,
    refuse_misspelt,
)
from .tokenization import load_tokenizer


@dataclass(frozen=True)
class LabelledSequence:
    """A sequence with the answers that a model has to give along the way.

    Attributes:
        symbols: What the model reads.
        labels: By position in `symbols`, the symbol that must be named after the one there.
    """

    symbols: tuple[str, ...]
    labels: Mapping[int, str]


class SequenceDoc(TypedDict):
    """One test sequence, as lm-eval reads it and stores it with `--log_samples`.

    Attributes:
        index: Position in the task, from 0.
        text: The symbols with a space between two.
        positions: Positions of the labelled symbols, from 0.
        targets: Their labels.
        seed: Data seed.
    """

    index: int
    text: str
    positions: list[int]
    targets: list[str]
    seed: int


@dataclass(frozen=True)
class SequenceSource:
    """Test and training sequences of one task.

    Both are pure functions of task, seed and index. They come from different generators, so that no
    seed of one can repeat the other's draws.

    Attributes:
        task: Name of the task without `path_`.
        alphabet: Every symbol that occurs in sequences or labels.
        draw: Makes a sequence from a random generator.
        num_samples: Number of test sequences by default.
    """

    task: str
    alphabet: tuple[str, ...]
    draw: Callable[[SampleRng], LabelledSequence]
    num_samples: int

    def training_sequence(self, seed: int, index: int) -> LabelledSequence:
        """Makes the training sequence at `index` of an endless stream.

        Args:
            seed: Names the stream.
            index: Position in it, from 0.
        """
        return self.draw(SampleRng(self.task, "training", seed, index))

    def test_split(self, **metadata: Any) -> dict[str, LazyDocs[SequenceDoc]]:
        """Makes the dataset that lm-eval evaluates.

        Args:
            **metadata: The task's metadata; `num_samples` and `data_seed` (0 unless given) are
                read, and what names the tokenizer.

        Raises:
            PrerequisiteError: No tokenizer is given.
            UnsupportedError: The tokenizer does not keep the symbols apart, the number of samples
                is not a positive integer, the seed is not an integer, or the name of a setting is
                misspelt.
        """
        refuse_misspelt(metadata)
        if not load_tokenizer(metadata).reads_words(self.alphabet):
            raise UnsupportedError(
                f"the tokenizer does not give each symbol of path_{self.task} tokens of its own; "
                f"pass one that knows {self.alphabet[0]}, {self.alphabet[1]} ... "
                f"{self.alphabet[-1]} and splits text at spaces"
            )
        num_samples = num_samples_of(metadata, self.num_samples)
        seed = checked_integer("data_seed", metadata.get("data_seed", 0))
        return {"test": LazyDocs(num_samples, lambda index: self._test_doc(seed, index))}

    def _test_doc(self, seed: int, index: int) -> SequenceDoc:
        sequence = self.draw(SampleRng(self.task, "test", seed, index))
        return SequenceDoc(
            index=index,
            text=" ".join(sequence.symbols),
            positions=list(sequence.labels),
            targets=list(sequence.labels.values()),
            seed=seed,
        )
