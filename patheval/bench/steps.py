"""Random steps of the bench's shapes, and the check that must pass before a speed is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F

from patheval.errors import PathEvalError
from patheval.kernels import PagedBatch, PageLayout, Pages, paged_attention, triton_impl
from patheval.kernels.definition import attention_by_definition

DTYPE = torch.bfloat16
CHUNK_SIZE = 32
KINDS = ("path", "path-fox", "fox")


class WrongResultError(PathEvalError):
    """A kernel's result is further from the definition than rounding explains."""


@dataclass(frozen=True)
class Shape:
    """What is attended.

    Attributes:
        batch: sequences.
        seq_len: tokens of each.
        num_heads: query heads, and kv heads.
        head_dim: channels of a head.
        kind: "path", "path-fox" or "fox".
        mean_log_fgate: mean of the log forget gates, exponentially distributed; gated kinds only.
    """

    batch: int
    seq_len: int
    num_heads: int
    head_dim: int
    kind: str = "path"
    mean_log_fgate: float | None = None

    @property
    def has_transport(self) -> bool:
        """Whether keys are carried by H."""
        return self.kind != "fox"


@dataclass(frozen=True)
class Tokens:
    """q, k, v, w, beta and log_fgate as `paged_attention` takes them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    w: torch.Tensor | None
    beta: torch.Tensor | None
    log_fgate: torch.Tensor | None

    @classmethod
    def joined(cls, parts: Sequence[Tokens], dtype: torch.dtype) -> Tokens:
        """The tokens of `parts`, one part after another, as `dtype`."""

        def join(name: str) -> torch.Tensor:
            return torch.cat([getattr(part, name) for part in parts]).to(dtype)

        first = parts[0]
        return cls(
            join("q"),
            join("k"),
            join("v"),
            None if first.w is None else join("w"),
            None if first.beta is None else join("beta"),
            None if first.log_fgate is None else join("log_fgate"),
        )


@dataclass(frozen=True)
class Step:
    """A call of `paged_attention`."""

    tokens: Tokens
    pages: Pages
    batch: PagedBatch
    sm_scale: float
    gate_inside_scale: bool

    def run(self, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write the pages and attend, by the Triton kernels."""
        return paged_attention(
            **vars(self.tokens),
            pages=self.pages,
            batch=self.batch,
            sm_scale=self.sm_scale,
            gate_inside_scale=self.gate_inside_scale,
            impl="triton",
            out=out,
        )

    def share_skipped(self) -> float:
        """Share of page reads that are left out, of those without skipping."""
        visits = torch.zeros(2, dtype=torch.int64, device="cuda")
        triton_impl.paged_attention(
            **vars(self.tokens),
            pages=self.pages,
            batch=self.batch,
            out=torch.empty_like(self.tokens.q),
            sm_scale=self.sm_scale,
            gate_inside_scale=self.gate_inside_scale,
            skip_pages=True,
            visits=visits,
        )
        done, possible = visits.tolist()
        return 1 - done / possible if possible else 0.0


def random_tokens(shape: Shape, num_tokens: int, seed: int) -> Tokens:
    """Random arguments for `num_tokens` tokens, on the GPU.

    All are normal but for beta = 2 sigmoid(normal), unit w and exponential gates.
    """
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*size: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
        return torch.randn(num_tokens, *size, generator=generator, device="cuda", dtype=dtype)

    heads = shape.num_heads, shape.head_dim
    w = beta = log_fgate = None
    if shape.has_transport:
        w = F.normalize(normal(*heads, dtype=torch.float32), dim=-1)
        beta = 2 * torch.sigmoid(normal(shape.num_heads, dtype=torch.float32))
    if shape.mean_log_fgate is not None:
        uniform = torch.rand(num_tokens, shape.num_heads, generator=generator, device="cuda")
        log_fgate = -shape.mean_log_fgate * torch.log(uniform.clamp_min(1e-20))
    return Tokens(normal(*heads), normal(*heads), normal(*heads), w, beta, log_fgate)


def prefill_step(shape: Shape, page_size: int, *, spare_tokens: int = 0, seed: int = 0) -> Step:
    """The whole sequences in one step; the pages have room for `spare_tokens` more in each."""
    layout = PageLayout(
        page_size=page_size,
        chunk_size=CHUNK_SIZE,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_heads,
        head_dim=shape.head_dim,
        dtype=DTYPE,
        has_transport=shape.has_transport,
        has_gate=shape.mean_log_fgate is not None,
    )
    num_pages = -(-(shape.seq_len + spare_tokens) // page_size)
    pool = layout.empty_pool(1 + shape.batch * num_pages, "cuda")
    order = torch.randperm(shape.batch * num_pages, device="cuda") + 1
    batch = PagedBatch.build(
        [i * shape.seq_len for i in range(shape.batch + 1)],
        [shape.seq_len] * shape.batch,
        order.to(torch.int32).view(shape.batch, num_pages),
        page_size=page_size,
        chunk_size=CHUNK_SIZE,
    )
    return Step(
        random_tokens(shape, shape.batch * shape.seq_len, seed),
        pages=layout.views(pool),
        batch=batch,
        sm_scale=shape.head_dim**-0.5,
        gate_inside_scale=shape.has_transport,
    )


def decode_step(shape: Shape, prefilled: Step, *, seed: int = 1) -> Step:
    """One more token for each sequence of a step that has run."""
    before = prefilled.batch
    return replace(
        prefilled,
        tokens=random_tokens(shape, shape.batch, seed),
        batch=PagedBatch.build(
            list(range(shape.batch + 1)),
            [shape.seq_len + 1] * shape.batch,
            before.block_table,
            page_size=before.page_size,
            chunk_size=before.chunk_size,
        ),
    )


def check(shape: Shape, page_size: int, *, seq_len: int = 3000, num_decoded: int = 40) -> float:
    """Compare a shortened shape with the definition in fp64, prefill and decode.

    Args:
        shape: of which two heads and at most `seq_len` tokens of one sequence are computed.
        page_size: tokens in a page.
        seq_len: tokens of the prefill.
        num_decoded: tokens that follow one by one.

    Returns:
        Root-mean-square error relative to the root mean square of the true output.

    Raises:
        WrongResultError: It is not below that of the same formula computed in bf16 throughout.
    """
    small = replace(shape, batch=1, num_heads=2, seq_len=min(seq_len, shape.seq_len))
    return _relative_error(small, page_size, num_decoded)


@cache
def _relative_error(small: Shape, page_size: int, num_decoded: int) -> float:
    step = prefill_step(small, page_size, spare_tokens=num_decoded)
    tokens = [random_tokens(small, small.seq_len, 0)]
    outputs = [step.run()]
    for i in range(num_decoded):
        more = decode_step(replace(small, seq_len=small.seq_len + i), step, seed=i + 1)
        tokens.append(random_tokens(small, 1, i + 1))
        outputs.append(more.run())

    def by_definition(dtype: torch.dtype) -> torch.Tensor:
        return attention_by_definition(
            **vars(Tokens.joined(tokens, dtype)),
            sm_scale=step.sm_scale,
            gate_inside_scale=step.gate_inside_scale,
        )

    truth, plain = by_definition(torch.float64), by_definition(DTYPE)

    def error(got: torch.Tensor) -> float:
        return ((got.double() - truth).square().mean() / truth.square().mean()).sqrt().item()

    ours, limit = error(torch.cat(outputs)), error(plain)
    if not ours < limit:
        raise WrongResultError(
            f"the relative error of {small} is {ours:.2e}, that of plain bf16 {limit:.2e}; no "
            "speed is reported for a wrong result"
        )
    return ours
