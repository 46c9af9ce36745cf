"""The public operations: check the arguments, then call the implementation that was asked for."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType
from typing import Literal

import torch

from patheval.kernels import reference
from patheval.kernels.batch import PagedBatch
from patheval.kernels.pages import PageLayout, Pages
from patheval.kernels.validation import (
    check_householder_vectors,
    check_paged_attention,
    check_triton_shapes,
)

Impl = Literal["reference", "triton"]


def available_impls() -> list[Impl]:
    """Implementations that can run here.

    `triton` needs an NVIDIA GPU, or TRITON_INTERPRET=1 from the process's start: then it runs on
    the CPU, thousands of times slower, for tests.
    """
    has_triton = importlib.util.find_spec("triton") is not None
    if has_triton and (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        return ["reference", "triton"]
    return ["reference"]


def householder_vectors(
    x: torch.Tensor,
    conv_weight: torch.Tensor | None,
    pages: Pages,
    batch: PagedBatch,
    *,
    impl: Impl,
) -> torch.Tensor:
    """The vectors w of H = I - beta w w^T: short convolution, SiLU and norm of a projection.

    y_t = SiLU(sum_lag conv_weight[:, -1 - lag] * x_{t - lag}), causal and depthwise, with zeros
    before the first token, continued across steps by the requests' pages; computed in fp32 and
    rounded once to x's dtype. Without conv_weight y = x. Then w = y / sqrt(|y|^2 + 1e-6) for each
    head, so that a zero stays zero. Writes the `conv_tail` of every page that receives a token.
    Source: flash-linear-attention's PaTH layer, `w_conv1d` and `l2_norm`.

    Args:
        x: [num_tokens, num_kv_heads * head_dim], the pages' dtype.
        conv_weight: [num_kv_heads * head_dim, conv_size], last column for the current token; None
            without a convolution.
        pages: pool views of one layer; conv_tail is read and written.
        batch: where the tokens lie.
        impl: implementation to use.

    Returns:
        [num_tokens, num_kv_heads, head_dim], fp32 (fp64 for an fp64 model).

    Raises:
        ValueError: arguments that contradict each other, or an unknown impl.
    """
    check_householder_vectors(x, conv_weight, pages, batch)
    return _module(impl, pages, batch).householder_vectors(x, conv_weight, pages, batch)


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor | None,
    beta: torch.Tensor | None,
    log_fgate: torch.Tensor | None,
    pages: Pages,
    batch: PagedBatch,
    *,
    sm_scale: float,
    gate_inside_scale: bool,
    impl: Impl,
    skip_pages: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Store new tokens in their requests' pages and attend them to all up to themselves.

    With H_t = I - beta_t w_t w_t^T and G the running sum of log_fgate, query i sees key j <= i with
    the logit sm_scale * (q_i^T H_i ... H_{j+1} k_j + G_i - G_j) if gate_inside_scale, else with the
    gate added after scaling. Prefill, chunked prefill, decode and any mix of them are one
    operation. Source: arXiv 2505.16381 sections 3 and 4; page layout in `patheval.kernels.pages`.

    Args:
        q: [num_tokens, num_heads, head_dim], the pages' dtype.
        k: [num_tokens, num_kv_heads, head_dim], the pages' dtype.
        v: [num_tokens, num_kv_heads, head_dim], the pages' dtype.
        w: [num_tokens, num_kv_heads, head_dim], fp32, unit L2 norm (or zero); None without
            transport.
        beta: [num_tokens, num_kv_heads], fp32, in (0, 2); None without transport.
        log_fgate: [num_tokens, num_heads], fp32, natural log, <= 0; None without a gate.
        pages: pool views of one layer, read and written; the caller owns the pool.
        batch: where the tokens lie. Every earlier page must be full and every page of a request its
            own, or shared and full once this call has written.
        sm_scale: factor of the dot product, head_dim ** -0.5 in every known model.
        gate_inside_scale: True for PaTH-FoX, False for FoX.
        impl: implementation to use.
        skip_pages: with gates, do not read pages whose whole weight is provably below 2^-20 (fp32:
            2^-30) of a query's total; `reference` reads all in any case.
        out: as q; where to write the result. Rows that no request owns are left as they are.

    Returns:
        [num_tokens, num_heads, head_dim], dtype of q.

    Raises:
        ValueError: arguments that contradict each other, or an unknown impl.
    """
    check_paged_attention(q, k, v, w, beta, log_fgate, pages, batch, out, sm_scale)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _module(impl, pages, batch).paged_attention(
        q,
        k,
        v,
        w,
        beta,
        log_fgate,
        pages,
        batch,
        out,
        sm_scale=sm_scale,
        gate_inside_scale=gate_inside_scale,
        skip_pages=skip_pages,
    )
    return out


def paged_attention_workspace(q: torch.Tensor, layout: PageLayout, *, impl: Impl) -> torch.Tensor:
    """Allocate about what `paged_attention` allocates at most for a step of this size.

    An engine calls this while it measures its memory.

    Args:
        q: [num_tokens, num_heads * head_dim], the step's queries.
        layout: of the pages.
        impl: implementation to use.

    Returns:
        uint8, uninitialised; to be dropped.
    """
    num_bytes = 0
    if impl == "triton":
        from patheval.kernels import triton_impl

        num_bytes = triton_impl.workspace_bytes(len(q), layout)
    return torch.empty(num_bytes, dtype=torch.uint8, device=q.device)


def _module(impl: str, pages: Pages, batch: PagedBatch) -> ModuleType:
    if impl not in available_impls():
        raise ValueError(f"impl must be one of {available_impls()}, got {impl!r}")
    if impl == "reference":
        return reference
    check_triton_shapes(pages, batch)
    # Triton decides at import whether to compile or to interpret, and is not installed everywhere.
    from patheval.kernels import triton_impl

    return triton_impl
