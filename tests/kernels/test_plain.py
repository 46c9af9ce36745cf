"""Attention without transport and gates, as RoPE with the Pro layers needs it, from pages."""

import random

import pytest
import torch
from paged_sequences import Sizes, make_inputs, run_in_steps

from patheval.kernels import Impl, available_impls

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("impl", available_impls())
def test_equals_the_definition_for_any_cut_into_steps(impl: Impl) -> None:
    def cut(rng: random.Random) -> int:
        return rng.choice([0, 1, 7, 33, 50])

    sequences = [
        make_inputs(n, seed=n, head_dim=16, dtype=torch.float32, transport=False, gate=False)
        for n in (70, 37, 5)
    ]
    outputs = run_in_steps(
        [sequence.to(DEVICE) for sequence in sequences],
        cut,
        Sizes(page_size=32, chunk_size=16, head_dim=16),
        impl=impl,
        gate_inside_scale=False,
    )
    for out, sequence in zip(outputs, sequences, strict=True):
        expected = sequence.by_definition(gate_inside_scale=False)
        torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=3e-6)
