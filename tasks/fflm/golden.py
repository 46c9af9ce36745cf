"""Replay of recorded flip-flop strings."""

from collections.abc import Iterator

from patheval.golden.case import Case, Check

from .sequences import label


def replay(case: Case) -> Iterator[Check]:
    """Compares which bits are read, and what they are."""
    if case["kind"] == "by_definition":
        labels = label(case["text"]).labels
        yield Check("reads", case["read_positions"], [position + 1 for position in labels])
        yield Check("bits", case["read_bits"], list(labels.values()))
