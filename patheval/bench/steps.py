"""Random steps of the bench's shapes, and the check that must pass before a speed is printed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from patheval.errors import PathEvalError
from patheval.kernels import PagedBatch, PageLayout, Pages, paged_attention
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


@dataclass
class Step:
    """Arguments of `paged_attention`."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    w: torch.Tensor | None
    beta: torch.Tensor | None
    log_fgate: torch.Tensor | None
    pages: Pages
    batch: PagedBatch
    sm_scale: float
    gate_inside_scale: bool

    def run(self, *, out: torch.Tensor | None = None, skip_pages: bool = True) -> torch.Tensor:
        """Write the pages and attend, by the Triton kernels."""
        return paged_attention(**vars(self), impl="triton", skip_pages=skip_pages, out=out)


def random_tokens(shape: Shape, num_tokens: int, seed: int) -> dict[str, torch.Tensor | None]:
    """q, k, v, w, beta and log_fgate of `num_tokens` tokens, on the GPU.

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
    return dict(
        q=normal(*heads), k=normal(*heads), v=normal(*heads), w=w, beta=beta, log_fgate=log_fgate
    )


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
        **random_tokens(shape, shape.batch * shape.seq_len, seed),
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
        **random_tokens(shape, shape.batch, seed),
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
    step = prefill_step(small, page_size, spare_tokens=num_decoded)
    tokens = [random_tokens(small, small.seq_len, 0)]
    outputs = [step.run()]
    for i in range(num_decoded):
        more = decode_step(replace(small, seq_len=small.seq_len + i), step, seed=i + 1)
        tokens.append(random_tokens(small, 1, i + 1))
        outputs.append(more.run())
    names = ("q", "k", "v", "w", "beta", "log_fgate")
    columns = [
        None if tokens[0][name] is None else torch.cat([part[name] for part in tokens])  # type: ignore[misc]
        for name in names
    ]
    options = dict(sm_scale=small.head_dim**-0.5, gate_inside_scale=small.has_transport)
    truth = attention_by_definition(
        *(None if x is None else x.double() for x in columns),  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )
    plain = attention_by_definition(
        *(None if x is None else x.to(DTYPE) for x in columns),  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )

    def error(got: torch.Tensor) -> float:
        return ((got.double() - truth).square().mean() / truth.square().mean()).sqrt().item()

    ours, limit = error(torch.cat(outputs)), error(plain)
    if not ours < limit:
        raise WrongResultError(
            f"the relative error of {shape} is {ours:.2e}, that of plain bf16 {limit:.2e}; no "
            "speed is reported for a wrong result"
        )
    return ours
