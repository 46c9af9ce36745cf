"""Replay of recorded word problems."""

from collections.abc import Iterator

from patheval.golden.case import Case, Check

from .sequences import GROUPS


def replay(case: Case) -> Iterator[Check]:
    """Compares the products up to each element."""
    if case["kind"] == "generated":
        products = GROUPS[case["task"]].prefix_products(case["input"])
        yield Check("products", case["target"], products)
