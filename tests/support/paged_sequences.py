"""Sequences fed to paged attention in steps, for tests of any implementation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from patheval.kernels import Impl, PagedBatch, PageLayout, Pages, paged_attention
from patheval.kernels.definition import attention_by_definition

Cut = Callable[[random.Random], int]

KINDS = {
    "path": dict(transport=True, gate=False),
    "path-fox": dict(transport=True, gate=True),
    "fox": dict(transport=False, gate=True),
}


@dataclass(frozen=True)
class Sizes:
    page_size: int
    chunk_size: int
    head_dim: int


@dataclass
class Inputs:
    """One sequence's q, k, v, w, beta, log_fgate."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    w: torch.Tensor | None
    beta: torch.Tensor | None
    log_fgate: torch.Tensor | None

    def rows(self, start: int, stop: int) -> list[torch.Tensor | None]:
        return [None if x is None else x[start:stop] for x in vars(self).values()]

    def to(self, device: str) -> Inputs:
        return Inputs(*(None if x is None else x.to(device) for x in vars(self).values()))

    def by_definition(self, *, gate_inside_scale: bool) -> torch.Tensor:
        doubles = (None if x is None else x.double() for x in vars(self).values())
        return attention_by_definition(
            *doubles, sm_scale=self.q.shape[-1] ** -0.5, gate_inside_scale=gate_inside_scale
        )


def make_inputs(
    seq_len: int,
    *,
    seed: int,
    head_dim: int,
    dtype: torch.dtype = torch.float64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    transport: bool = True,
    gate: bool = True,
) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    state_dtype = torch.promote_types(dtype, torch.float32)

    def normal(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(seq_len, *shape, generator=generator, dtype=dtype)

    w = beta = log_fgate = None
    if transport:
        w = F.normalize(normal(num_kv_heads, head_dim, dtype=state_dtype), dim=-1)
        beta = 2 * torch.sigmoid(2 * normal(num_kv_heads, dtype=state_dtype))
    if gate:
        log_fgate = F.logsigmoid(normal(num_heads, dtype=state_dtype) + 1)
    q, k, v = (
        normal(num_heads, head_dim),
        normal(num_kv_heads, head_dim),
        normal(num_kv_heads, head_dim),
    )
    return Inputs(q, k, v, w, beta, log_fgate)


class Cache:
    """A NaN-filled pool and a shuffled block table for sequences of known lengths."""

    def __init__(
        self,
        seq_lens: list[int],
        inputs: Inputs,
        sizes: Sizes,
        *,
        seed: int,
        conv_size: int = 0,
        spare_pages: int = 0,
    ) -> None:
        self.sizes = sizes
        device = inputs.q.device
        self.layout = PageLayout(
            page_size=sizes.page_size,
            chunk_size=sizes.chunk_size,
            num_heads=inputs.q.shape[1],
            num_kv_heads=inputs.k.shape[1],
            head_dim=inputs.q.shape[2],
            dtype=inputs.q.dtype,
            has_transport=inputs.w is not None,
            has_gate=inputs.log_fgate is not None,
            conv_size=conv_size,
        )
        num_pages = [-(-n // sizes.page_size) for n in seq_lens]
        pool_pages = 1 + sum(num_pages) + spare_pages
        pool = self.layout.empty_pool(pool_pages, device).fill_(-1)
        self.pages: Pages = self.layout.views(pool)
        assert self.pages.keys.isnan().all()
        free = list(range(1, pool_pages))
        random.Random(seed).shuffle(free)
        # Unused entries of the table point to page 0, which stays NaN.
        self.block_table = torch.zeros(
            len(seq_lens), max(num_pages), dtype=torch.int32, device=device
        )
        for row, count in enumerate(num_pages):
            self.block_table[row, :count] = torch.tensor(free[:count])
            free = free[count:]

    def batch(self, steps: list[int], seq_lens: list[int]) -> PagedBatch:
        return PagedBatch.build(
            list(itertools.accumulate(steps, initial=0)),
            seq_lens,
            self.block_table[: len(steps)],
            page_size=self.sizes.page_size,
            chunk_size=self.sizes.chunk_size,
        )


def run_in_steps(
    sequences: list[Inputs],
    cut: Cut,
    sizes: Sizes,
    *,
    impl: Impl,
    gate_inside_scale: bool,
    skip_pages: bool = True,
    seed: int = 0,
) -> list[torch.Tensor]:
    """Feed the sequences to one cache, `cut` tokens of each at a time, and return their outputs."""
    rng = random.Random(seed)
    lengths = [len(sequence.q) for sequence in sequences]
    cache = Cache(lengths, sequences[0], sizes, seed=seed)
    done = [0] * len(sequences)
    outputs: list[list[torch.Tensor]] = [[] for _ in sequences]
    while done != lengths:
        steps = [min(cut(rng), length - n) for n, length in zip(done, lengths, strict=True)]
        after = [n + step for n, step in zip(done, steps, strict=True)]
        parts = [s.rows(n, m) for s, n, m in zip(sequences, done, after, strict=True)]
        columns = (
            None if column[0] is None else torch.cat([x for x in column if x is not None])
            for column in zip(*parts, strict=True)
        )
        out = paged_attention(
            *columns,
            cache.pages,
            cache.batch(steps, after),
            sm_scale=sequences[0].q.shape[-1] ** -0.5,
            gate_inside_scale=gate_inside_scale,
            impl=impl,
            skip_pages=skip_pages,
        )
        for collected, part in zip(outputs, out.split(steps), strict=True):
            collected.append(part)
        done = after
    return [torch.cat(parts) for parts in outputs]
