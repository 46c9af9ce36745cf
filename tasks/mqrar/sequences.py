"""Multi-query repeated associative recall: variables are assigned again and again."""

from collections.abc import Sequence
from functools import partial

from ..generation import SampleRng
from ..sequences import LabelledSequence, SequenceSource

NUM_VARIABLES = 32
NUM_VALUES = 32
NUM_ASSIGNMENTS = 384
NUM_SAMPLES = 200

VARIABLES = tuple(f"k{number}" for number in range(NUM_VARIABLES))
VALUES = tuple(f"v{number}" for number in range(NUM_VALUES))


def draw(rng: SampleRng, *, n_back: int) -> LabelledSequence:
    """Draws assignments of uniform values to uniform variables.

    Args:
        rng: Source of randomness.
        n_back: Which assignment a variable's label goes back to; 1 is the latest.
    """
    symbols: list[str] = []
    for _ in range(NUM_ASSIGNMENTS):
        symbols += [rng.choice(VARIABLES), rng.choice(VALUES)]
    return label(symbols, n_back=n_back)


def label(symbols: Sequence[str], *, n_back: int) -> LabelledSequence:
    """Labels each variable with the value that it was assigned `n_back` assignments ago.

    A variable that was assigned less often before has no label.

    Args:
        symbols: Variables and values in turn.
        n_back: 1 for the latest assignment before this one.
    """
    assigned: dict[str, list[str]] = {}
    labels = {}
    for position in range(0, len(symbols), 2):
        values = assigned.setdefault(symbols[position], [])
        if len(values) >= n_back:
            labels[position] = values[-n_back]
        values.append(symbols[position + 1])
    return LabelledSequence(tuple(symbols), labels)


N_BACK = {
    n_back: SequenceSource(
        f"mqrar_n{n_back}", VARIABLES + VALUES, partial(draw, n_back=n_back), NUM_SAMPLES
    )
    for n_back in (1, 2, 3, 4)
}

n1, n2, n3, n4 = (N_BACK[n_back].test_split for n_back in (1, 2, 3, 4))
