"""Word problems of the groups A5 and S5: the product of a sequence of permutations."""

import itertools
from collections.abc import Sequence
from functools import cached_property, partial

from ..generation import SampleRng
from ..sequences import LabelledSequence, SequenceSource

NUM_ELEMENTS = 20
NUM_SAMPLES = 1000


class PermutationGroup:
    """A group of permutations of 1 to 5; its elements are numbered in lexicographic order.

    Args:
        even_only: Whether odd permutations are left out, which makes A5 of S5.

    Attributes:
        elements: One-line notation of each element, by number; 0 is the identity.
    """

    def __init__(self, *, even_only: bool) -> None:
        self.elements = [
            element
            for element in itertools.permutations(range(1, 6))
            if not even_only or _is_even(element)
        ]

    @cached_property
    def _numbers(self) -> dict[tuple[int, ...], int]:
        return {element: number for number, element in enumerate(self.elements)}

    def product(self, left: int, right: int) -> int:
        """Multiplies two elements, given by number: the right one acts first."""
        outer, inner = self.elements[left], self.elements[right]
        return self._numbers[tuple(outer[point - 1] for point in inner)]

    def prefix_products(self, numbers: Sequence[int]) -> list[int]:
        """Returns the product of the first element, of the first two, and so on."""
        return list(itertools.accumulate(numbers, self.product))


def draw(rng: SampleRng, *, group: PermutationGroup) -> LabelledSequence:
    """Draws uniform elements, each labelled with the product up to there."""
    numbers = [rng.integer(0, len(group.elements)) for _ in range(NUM_ELEMENTS)]
    products = group.prefix_products(numbers)
    labels = {position: str(product) for position, product in enumerate(products)}
    return LabelledSequence(tuple(map(str, numbers)), labels)


def _is_even(element: Sequence[int]) -> bool:
    inversions = sum(left > right for left, right in itertools.combinations(element, 2))
    return inversions % 2 == 0


def _source(task: str, group: PermutationGroup) -> SequenceSource:
    alphabet = tuple(str(number) for number in range(len(group.elements)))
    return SequenceSource(task, alphabet, partial(draw, group=group), NUM_SAMPLES)


GROUPS = {"a5": PermutationGroup(even_only=True), "s5": PermutationGroup(even_only=False)}
A5 = _source("a5", GROUPS["a5"])
S5 = _source("s5", GROUPS["s5"])

a5, s5 = A5.test_split, S5.test_split
