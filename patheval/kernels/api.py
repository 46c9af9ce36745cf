"""The public operations: check the arguments, then call the implementation that was asked for."""

from __future__ import annotations

from typing import Literal

import torch

from patheval.kernels import reference
from patheval.kernels.batch import PagedBatch
from patheval.kernels.pages import Pages
from patheval.kernels.validation import check_paged_attention, check_short_conv

Impl = Literal["reference"]


def available_impls() -> list[Impl]:
    """Implementations that can run here."""
    return ["reference"]


def short_conv(
    x: torch.Tensor, weight: torch.Tensor, pages: Pages, batch: PagedBatch, *, impl: Impl
) -> torch.Tensor:
    """Causal depthwise convolution and SiLU, continued across steps by the requests' pages.

    y_t = SiLU(sum_lag weight[:, -1 - lag] * x_{t - lag}), with zeros before the first token;
    computed in fp32 and rounded once. Writes the `conv_tail` of every page that receives a token.
    Source: flash-linear-attention's PaTH layer, `w_conv1d`.

    Args:
        x: [num_tokens, num_kv_heads * head_dim], the pages' dtype.
        weight: [num_kv_heads * head_dim, conv_size], last column for the current token.
        pages: pool views of one layer; conv_tail is read and written.
        batch: where the tokens lie.
        impl: implementation to use.

    Returns:
        Same shape and dtype as x.

    Raises:
        ValueError: arguments that contradict each other, or an unknown impl.
    """
    check_short_conv(x, weight, pages, batch)
    _check_impl(impl)
    return reference.short_conv(x, weight, pages, batch)


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

    Returns:
        [num_tokens, num_heads, head_dim], dtype of q.

    Raises:
        ValueError: arguments that contradict each other, or an unknown impl.
    """
    check_paged_attention(q, k, v, w, beta, log_fgate, pages, batch)
    _check_impl(impl)
    return reference.paged_attention(
        q,
        k,
        v,
        w,
        beta,
        log_fgate,
        pages,
        batch,
        sm_scale=sm_scale,
        gate_inside_scale=gate_inside_scale,
    )


def _check_impl(impl: str) -> None:
    if impl not in available_impls():
        raise ValueError(f"impl must be one of {available_impls()}, got {impl!r}")
