"""What all generated benchmarks share: seeds, length fitting, and documents built on demand.

A document is a pure function of (task, length, tokenizer, seed, index). It does not depend on
`--limit`, on other tasks, on the order of building, or on any global random state.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, NotRequired, Self, TypedDict

from patheval.errors import PrerequisiteError, UnsupportedError

from .tokenization import PromptTokenizer, load_tokenizer


class Doc(TypedDict):
    """One generated sample, as lm-eval reads it and stores it with `--log_samples`.

    Attributes:
        index: Position in the task, from 0.
        prompt: Text for the model, up to the answer prefix if there is one.
        answer_prefix: Start of the model's turn, which follows the prompt directly.
        references: Strings that the answer must hold.
        num_tokens: Tokens of prompt and answer prefix, special tokens included.
        depth_tokens: Tokens of the text before the first reference, special tokens included.
        num_units: Size of the haystack in the benchmark's own unit (entries, lines).
        length: Limit in tokens on `num_tokens` plus the generation budget.
        seed: Data seed.
        tokenizer: Fingerprint of the tokenizer that the prompt was sized with.
    """

    index: int
    prompt: str
    answer_prefix: NotRequired[str]
    references: list[str]
    num_tokens: int
    depth_tokens: int
    num_units: int
    length: int
    seed: int
    tokenizer: str


class SampleRng:
    """Random draws that are equal on every platform and Python version.

    Built on `random.Random.random` alone, the one method whose sequence Python guarantees.

    Args:
        *key: What the draws belong to; its SHA-256 hash is the seed.
    """

    def __init__(self, *key: str | int) -> None:
        digest = hashlib.sha256(json.dumps(key).encode()).digest()
        self._random = random.Random(int.from_bytes(digest))

    def fraction(self) -> float:
        """Draws from [0, 1)."""
        return self._random.random()

    def integer(self, start: int, stop: int) -> int:
        """Draws an integer from [start, stop); the range may hold up to 2**53 numbers."""
        return start + int(self.fraction() * (stop - start))

    def choice(self, items: tuple[str, ...]) -> str:
        """Draws one of `items`."""
        return items[self.integer(0, len(items))]

    def shuffle(self, items: list[str]) -> None:
        """Puts `items` into random order, in place."""
        draw = self._random.random
        for last in range(len(items) - 1, 0, -1):
            other = int(draw() * (last + 1))
            items[last], items[other] = items[other], items[last]


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the documents of one task.

    Attributes:
        task: Name of the task without its length.
        length: Limit in tokens on each prompt plus its generation budget.
        max_gen_toks: Generation budget, in tokens.
        num_samples: Number of documents.
        seed: Data seed.
        tokenizer: The model's tokenizer.
    """

    task: str
    length: int
    max_gen_toks: int
    num_samples: int
    seed: int
    tokenizer: PromptTokenizer

    @classmethod
    def from_metadata(
        cls,
        task: str,
        metadata: Mapping[str, Any],
        *,
        target_length: int | None,
        max_gen_toks: int,
        num_samples: int,
    ) -> Self:
        """Combines a task's definition with what the user gave in `--metadata`.

        Args:
            task: Name of the task without its length.
            metadata: The task's metadata; `num_samples` and `data_seed` override the definition,
                `length` sets the length of a task that has none.
            target_length: Length in tokens that is part of the task's name, or None.
            max_gen_toks: Generation budget, in tokens.
            num_samples: Number of documents by default.

        Raises:
            PrerequisiteError: The task has no length, or no tokenizer is given.
            UnsupportedError: A length or number of samples is not a positive integer, or the seed
                is not an integer.
        """
        length = metadata.get("length") if target_length is None else target_length
        if length is None:
            raise PrerequisiteError(
                f"path_{task}_any has no length of its own; "
                "pass one in tokens, such as --metadata '{\"length\": 3000}'"
            )
        return cls(
            task=task,
            length=_integer("length", length, minimum=1),
            max_gen_toks=max_gen_toks,
            num_samples=_integer(
                "num_samples", metadata.get("num_samples", num_samples), minimum=1
            ),
            seed=_integer("data_seed", metadata.get("data_seed", 0)),
            tokenizer=load_tokenizer(metadata),
        )

    def rng(self, index: int) -> SampleRng:
        """Returns a fresh generator for the document at `index`."""
        return SampleRng(self.task, self.length, self.tokenizer.fingerprint, self.seed, index)

    def largest_fitting(self, num_tokens: Callable[[int], int], smallest: int) -> tuple[int, int]:
        """Finds the most haystack units with which a prompt still fits the length.

        That many fit and one more does not. The search follows the slope of the token count,
        which is nearly straight, so that few prompts are encoded.

        Args:
            num_tokens: Tokens of the prompt with so many units; must grow with the units.
            smallest: Fewest units that make a valid prompt.

        Returns:
            The units, and the tokens of the prompt that holds them.

        Raises:
            UnsupportedError: Not even the smallest prompt fits, or more units add no tokens.
        """
        budget = self.length - self.max_gen_toks
        smallest_tokens = num_tokens(smallest)
        if smallest_tokens > budget:
            raise UnsupportedError(
                f"{self.task} cannot fit {self.length} tokens: its smallest prompt takes "
                f"{smallest_tokens} and generation {self.max_gen_toks}; "
                f"use a length of at least {smallest_tokens + self.max_gen_toks}"
            )
        tokens_per_unit = (num_tokens(smallest + 16) - smallest_tokens) / 16
        if tokens_per_unit <= 0:
            raise UnsupportedError(
                f"{self.task} cannot be sized: its tokenizer gives {smallest_tokens} tokens to "
                "prompts of any size; pass one whose vocabulary covers English text"
            )
        fits, fits_tokens = smallest, smallest_tokens
        too_large: int | None = None
        while too_large is None or too_large - fits > 1:
            probe = fits + max(1, int((budget - fits_tokens) / tokens_per_unit))
            if too_large is not None:
                probe = min(probe, too_large - 1)
            probe_tokens = num_tokens(probe)
            if probe_tokens > smallest_tokens:
                tokens_per_unit = (probe_tokens - smallest_tokens) / (probe - smallest)
            if probe_tokens <= budget:
                fits, fits_tokens = probe, probe_tokens
            else:
                too_large = probe
        return fits, fits_tokens


class LazyDocs:
    """The test split of a generated task: each document is built when first read.

    lm-eval passes no `--limit` to the code that makes a dataset; building on demand keeps a run of
    two samples as cheap as two samples.

    Args:
        num_docs: Number of documents.
        build: Makes the document at an index from 0 to `num_docs` - 1.
    """

    def __init__(self, num_docs: int, build: Callable[[int], Doc]) -> None:
        self._num_docs = num_docs
        self._build = build
        self._docs: dict[int, Doc] = {}

    def __len__(self) -> int:
        return self._num_docs

    def __getitem__(self, index: int) -> Doc:
        """Returns the document at `index`, the same object at every call."""
        index = range(self._num_docs)[index]
        if index not in self._docs:
            self._docs[index] = self._build(index)
        return self._docs[index]

    def __iter__(self) -> Iterator[Doc]:
        return map(self.__getitem__, range(self._num_docs))

    @property
    def features(self) -> dict[str, type]:
        """Type of each field of a document, by name."""
        return {name: type(value) for name, value in self[0].items()}


def dataset(
    task: str, *, max_gen_toks: int, num_samples: int
) -> Callable[[Callable[[Recipe], Callable[[int], Doc]]], Callable[..., dict[str, LazyDocs]]]:
    """Makes a function that prepares a task into the one that lm-eval calls for its dataset.

    The decorated function gets the recipe and returns what makes the document at an index. The
    resulting one takes `target_length`, the length in tokens that the task's name states (None
    reads it from the metadata), and the task's metadata, and raises as `Recipe.from_metadata`.

    Args:
        task: Name of the task without its length.
        max_gen_toks: Generation budget, in tokens.
        num_samples: Number of documents by default.
    """

    def decorate(
        prepare: Callable[[Recipe], Callable[[int], Doc]],
    ) -> Callable[..., dict[str, LazyDocs]]:
        @wraps(prepare)
        def make(*, target_length: int | None = None, **metadata: Any) -> dict[str, LazyDocs]:
            recipe = Recipe.from_metadata(
                task,
                metadata,
                target_length=target_length,
                max_gen_toks=max_gen_toks,
                num_samples=num_samples,
            )
            return {"test": LazyDocs(recipe.num_samples, prepare(recipe))}

        return make

    return decorate


def _integer(name: str, value: object, minimum: int | None = None) -> int:
    if isinstance(value, int) and (minimum is None or value >= minimum):
        return value
    wanted = "an integer" if minimum is None else f"an integer of at least {minimum}"
    raise UnsupportedError(f"{name} is {value!r} and must be {wanted}; correct it in --metadata")
