"""What all generated benchmarks share: seeds, length fitting, and documents built on demand.

A document is a pure function of (task, length, tokenizer, seed, index), of the preset where it is
not `reference`, and of the source text where there is one. It does not depend on `--limit`, on
other tasks, on the order of building, or on any global random state.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, Generic, NamedTuple, NotRequired, Protocol, Self, TypedDict, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from patheval.errors import PrerequisiteError, UnsupportedError

from .cache import SampleCache
from .tokenization import PromptTokenizer, load_tokenizer

REFERENCE, PAPER = "reference", "paper"
PRESETS = (REFERENCE, PAPER)
LENGTHS = {"256": 256, "512": 512} | {f"{n}k": n * 1024 for n in (1, 2, 4, 8, 16, 32, 64)}
"""Lengths in tokens that tasks may have in their names, by the name's part."""
SETTINGS = (
    "data_dir",
    "data_seed",
    "length",
    "max_prompt_tokens",
    "num_samples",
    "own_data",
    "preset",
)
"""Names in `--metadata` that tasks read; what names the tokenizer and the model comes on top."""

_FOLDER = Path(__file__).parent
_stream = np.random.RandomState(0)


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
        preset: `reference` or `paper`, for tasks of which both make different documents.
        source_sha256: SHA-256 of the source text, for tasks that have one.
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
    preset: NotRequired[str]
    source_sha256: NotRequired[str]


class Loaded(NamedTuple):
    """The real text or questions that a task is made of.

    Attributes:
        data: What the task's own code makes of them.
        sha256: SHA-256 of their source, in hexadecimal digits.
    """

    data: Any
    sha256: str


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

    def fractions(self, count: int) -> NDArray[np.float64]:
        """Draws from [0, 1) `count` times: the same numbers as single draws, but faster."""
        version, state, gauss = self._random.getstate()
        # numpy's legacy generator is the same one, and frozen.
        _stream.set_state(("MT19937", np.array(state[:-1], np.uint32), state[-1], 0, 0.0))
        draws = _stream.random_sample(count)
        after = _stream.get_state(legacy=False)["state"]
        self._random.setstate((version, (*after["key"].tolist(), int(after["pos"])), gauss))
        return draws

    def integer(self, start: int, stop: int) -> int:
        """Draws an integer from [start, stop); the range may hold up to 2**53 numbers."""
        return start + int(self.fraction() * (stop - start))

    def choice(self, items: tuple[str, ...]) -> str:
        """Draws one of `items`."""
        return items[self.integer(0, len(items))]

    def shuffle(self, items: list[Any]) -> None:
        """Puts `items` into random order, in place."""
        lasts = np.arange(len(items) - 1, 0, -1)
        others = (self.fractions(len(lasts)) * (lasts + 1)).astype(np.int64)
        for last, other in zip(lasts.tolist(), others.tolist(), strict=True):
            items[last], items[other] = items[other], items[last]


class SizeRule(Protocol):
    """How many haystack units a prompt gets."""

    def units(
        self, recipe: "Recipe", num_tokens: Callable[[int], int], smallest: int
    ) -> tuple[int, int]:
        """Returns the units, and the tokens of the prompt that holds them.

        Args:
            recipe: The task.
            num_tokens: Tokens of the prompt with so many units; must grow with the units.
            smallest: Fewest units that make a valid prompt.

        Raises:
            UnsupportedError: Not even the smallest prompt fits, or more units add no tokens.
        """


class Exact:
    """As many units as fit; one more does not.

    Attributes:
        last: The units of the latest prompt.
    """

    def __init__(self) -> None:
        self.last = 0

    def units(
        self, recipe: "Recipe", num_tokens: Callable[[int], int], smallest: int
    ) -> tuple[int, int]:
        """Searches along the slope of the token count, so that few prompts are counted."""
        budget = recipe.length - recipe.max_gen_toks
        smallest_tokens = num_tokens(smallest)
        if smallest_tokens > budget:
            raise recipe.too_short(smallest_tokens)
        tokens_per_unit = (num_tokens(smallest + 16) - smallest_tokens) / 16
        if tokens_per_unit <= 0:
            raise UnsupportedError(
                f"{recipe.task} cannot be sized: its tokenizer gives {smallest_tokens} tokens to "
                "prompts of any size; pass one whose vocabulary covers English text"
            )
        fits, fits_tokens = smallest, smallest_tokens
        probe = fits + max(1, int((budget - fits_tokens) / tokens_per_unit))
        while (probe_tokens := num_tokens(probe)) <= budget:
            if probe_tokens > smallest_tokens:
                tokens_per_unit = (probe_tokens - smallest_tokens) / (probe - smallest)
            fits, fits_tokens = probe, probe_tokens
            probe = fits + max(1, int((budget - fits_tokens) / tokens_per_unit))
        too_large, too_many_tokens = probe, probe_tokens
        halve = False
        while (gap := too_large - fits) > 1:
            straight = int(gap * (budget - fits_tokens) / (too_many_tokens - fits_tokens))
            probe = fits + (gap // 2 if halve else min(max(1, straight), gap - 1))
            probe_tokens = num_tokens(probe)
            if probe_tokens <= budget:
                fits, fits_tokens = probe, probe_tokens
            else:
                too_large, too_many_tokens = probe, probe_tokens
            halve = too_large - fits > gap // 2
        self.last = fits
        return fits, fits_tokens


@dataclass(frozen=True)
class Steps:
    """The same units for all prompts; whole steps less where a prompt would be too long.

    Attributes:
        start: The units.
        step: Units that one step takes away.
    """

    start: int
    step: int

    def units(
        self, recipe: "Recipe", num_tokens: Callable[[int], int], smallest: int
    ) -> tuple[int, int]:
        """Goes down by steps; a prompt that no step fits is sized exactly."""
        for units in range(self.start, smallest - 1, -self.step):
            tokens = num_tokens(units)
            if tokens <= recipe.length - recipe.max_gen_toks:
                return units, tokens
        return Exact().units(recipe, num_tokens, smallest)


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
        size_rule: How many haystack units a prompt gets.
    """

    task: str
    length: int
    max_gen_toks: int
    num_samples: int
    seed: int
    tokenizer: PromptTokenizer
    size_rule: SizeRule = field(default_factory=Exact)

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
            UnsupportedError: A length or number of samples is not a positive integer, the seed
                is not an integer, or the name of a setting is misspelt.
        """
        refuse_misspelt(metadata)
        length = metadata.get("length") if target_length is None else target_length
        if length is None:
            raise PrerequisiteError(
                f"path_{task}_any has no length of its own; "
                "pass one in tokens, such as --metadata '{\"length\": 3000}'"
            )
        return cls(
            task=task,
            length=checked_integer("length", length, minimum=1),
            max_gen_toks=max_gen_toks,
            num_samples=num_samples_of(metadata, num_samples),
            seed=checked_integer("data_seed", metadata.get("data_seed", 0)),
            tokenizer=load_tokenizer(metadata),
        )

    def rng(self, index: int) -> SampleRng:
        """Returns a fresh generator for the document at `index`."""
        return SampleRng(self.task, self.length, self.tokenizer.fingerprint, self.seed, index)

    def largest_fitting(self, num_tokens: Callable[[int], int], smallest: int) -> tuple[int, int]:
        """Sizes a prompt by the recipe's rule; arguments and errors are those of `SizeRule`."""
        return self.size_rule.units(self, num_tokens, smallest)

    def too_short(self, smallest_tokens: int) -> UnsupportedError:
        """Makes the error that the length does not hold the smallest prompt.

        Args:
            smallest_tokens: Tokens of that prompt.
        """
        needed = smallest_tokens + self.max_gen_toks
        names = [
            f"path_{self.task}_{label}" for label, length in LENGTHS.items() if length >= needed
        ]
        own = next((name for name in names if any(_FOLDER.glob(f"*/{name}.yaml"))), None)
        named = f"{own}, or " if own else ""
        return UnsupportedError(
            f"{self.task} cannot fit {self.length} tokens: its smallest prompt takes "
            f"{smallest_tokens} and generation {self.max_gen_toks}; use a length of at least "
            f"{needed}: {named}path_{self.task}_any with --metadata '{{\"length\": {needed}}}'"
        )


_AnyDoc = TypeVar("_AnyDoc", bound=Mapping[str, Any])


class LazyDocs(Generic[_AnyDoc]):
    """The test split of a generated task: each document is built when first read.

    lm-eval passes no `--limit` to the code that makes a dataset; building on demand keeps a run of
    two samples as cheap as two samples.

    Args:
        num_docs: Number of documents.
        build: Makes the document at an index from 0 to `num_docs` - 1.
        cache: Where built documents are kept on disk; None to keep none.
    """

    def __init__(
        self,
        num_docs: int,
        build: Callable[[int], _AnyDoc],
        cache: SampleCache | None = None,
    ) -> None:
        self._num_docs = num_docs
        self._build = build
        self._cache = cache
        self._docs: dict[int, _AnyDoc] = {}

    def __len__(self) -> int:
        return self._num_docs

    def __getitem__(self, index: int) -> _AnyDoc:
        """Returns the document at `index`, the same object at every call."""
        index = range(self._num_docs)[index]
        if index not in self._docs:
            self._docs[index] = self.make(index)
        return self._docs[index]

    def __iter__(self) -> Iterator[_AnyDoc]:
        return map(self.__getitem__, range(self._num_docs))

    def make(self, index: int) -> _AnyDoc:
        """Returns the document at `index` from disk, or builds and stores it; not kept here."""
        if self._cache is None:
            return self._build(index)
        stored = self._cache.load(index)
        if stored is not None:
            return cast(_AnyDoc, stored)
        doc = self._build(index)
        self._cache.store(index, doc)
        return doc

    def is_stored(self, index: int) -> bool:
        """Whether the document at `index` is on disk."""
        return self._cache is not None and self._cache.holds(index)

    @property
    def features(self) -> dict[str, type]:
        """Type of each field of a document, by name."""
        return {name: type(value) for name, value in self[0].items()}


def dataset(
    task: str,
    *,
    max_gen_toks: int,
    num_samples: int,
    source: Callable[[Mapping[str, Any]], Loaded] | None = None,
    step: Callable[[int], int] | None = None,
) -> Callable[[Callable[..., Callable[[int], Doc]]], Callable[..., dict[str, LazyDocs[Doc]]]]:
    """Makes a function that prepares a task into the one that lm-eval calls for its dataset.

    The decorated function gets the recipe, and the source's data if there is a source, and returns
    what makes the document at an index. The resulting one takes `target_length`, the length in
    tokens that the task's name states (None reads it from the metadata), and the task's metadata,
    and raises as `Recipe.from_metadata` and `source` do.

    Args:
        task: Name of the task without its length.
        max_gen_toks: Generation budget, in tokens.
        num_samples: Number of documents by default.
        source: Loads what the task is made of, given the metadata.
        step: Units of a step at a length in tokens, for a task whose preset `paper` sizes prompts
            in steps; the first document's exact size is where they start.
    """

    def decorate(
        prepare: Callable[..., Callable[[int], Doc]],
    ) -> Callable[..., dict[str, LazyDocs[Doc]]]:
        @wraps(prepare)
        def make(*, target_length: int | None = None, **metadata: Any) -> dict[str, LazyDocs[Doc]]:
            recipe = Recipe.from_metadata(
                task,
                metadata,
                target_length=target_length,
                max_gen_toks=max_gen_toks,
                num_samples=num_samples,
            )
            marks: dict[str, str] = {}
            sources = []
            if source is not None:
                data, marks["source_sha256"] = source(metadata)
                sources.append(data)
            build = prepare(recipe, *sources)
            if preset_of(metadata) == PAPER and step is not None:
                marks["preset"] = PAPER
                build = _in_steps(recipe, step(recipe.length), sources, prepare)
            cache = SampleCache.of(
                task,
                recipe.length,
                recipe.max_gen_toks,
                recipe.seed,
                recipe.tokenizer.fingerprint,
                marks,
                made_by=prepare,
            )

            def build_marked(index: int) -> Doc:
                return cast(Doc, {**build(index), **marks})

            return {"test": LazyDocs(recipe.num_samples, build_marked, cache)}

        return make

    return decorate


def _in_steps(
    recipe: Recipe, step: int, sources: list[Any], prepare: Callable[..., Callable[[int], Doc]]
) -> Callable[[int], Doc]:
    exact = Exact()
    prepare(replace(recipe, size_rule=exact), *sources)(0)
    return prepare(replace(recipe, size_rule=Steps(exact.last, step)), *sources)


def preset_of(metadata: Mapping[str, Any]) -> str:
    """Returns the preset that the metadata name, `reference` if none.

    Raises:
        UnsupportedError: There is no such preset.
    """
    preset = metadata.get("preset", REFERENCE)
    if preset not in PRESETS:
        raise UnsupportedError(
            f"preset is {preset!r} and must be {' or '.join(PRESETS)}; correct it in --metadata"
        )
    return str(preset)


def num_samples_of(metadata: Mapping[str, Any], default: int) -> int:
    """Returns the number of samples that the metadata ask for, else the default.

    Raises:
        UnsupportedError: It is not a positive integer.
    """
    return checked_integer("num_samples", metadata.get("num_samples", default), minimum=1)


def refuse_misspelt(metadata: Mapping[str, Any]) -> None:
    """Refuses names that are nearly those of settings, which would have no effect.

    Other unknown names are let through: metadata also hold the arguments of every model and what
    lm-eval's own tasks read.

    Raises:
        UnsupportedError: There is such a name.
    """
    for name in metadata:
        nearest = get_close_matches(str(name), SETTINGS, n=1, cutoff=0.8)
        if nearest and name not in SETTINGS:
            raise UnsupportedError(
                f"--metadata has {name!r}, which no task reads; write {nearest[0]!r}"
            )


def checked_integer(name: str, value: object, minimum: int | None = None) -> int:
    """Returns a value from the metadata that must be an integer.

    Raises:
        UnsupportedError: It is none, or below the minimum.
    """
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and (minimum is None or value >= minimum)
    ):
        return value
    wanted = "an integer" if minimum is None else f"an integer of at least {minimum}"
    raise UnsupportedError(f"{name} is {value!r} and must be {wanted}; correct it in --metadata")
