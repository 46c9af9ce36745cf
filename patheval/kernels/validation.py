"""Checks of shapes, dtypes and devices that every implementation shares."""

from __future__ import annotations

import torch

from patheval.kernels.batch import PagedBatch
from patheval.kernels.pages import Pages

TRITON_HEAD_DIMS = (16, 32, 64, 128)


def check_householder_vectors(
    x: torch.Tensor, conv_weight: torch.Tensor | None, pages: Pages, batch: PagedBatch
) -> None:
    """Raise ValueError where `householder_vectors`'s arguments contradict each other."""
    _, num_kv_heads, _, head_dim = pages.keys.shape
    width = num_kv_heads * head_dim
    _expect("x", x, (None, width), pages.values.dtype)
    _check_rows("x", x, batch)
    if (conv_weight is None) != (pages.conv_tail is None):
        raise ValueError("conv_weight is given exactly when the page layout has conv_size >= 2")
    if conv_weight is not None and pages.conv_tail is not None:
        _expect("conv_weight", conv_weight, (width, pages.conv_tail.shape[1] + 1), None)


def check_triton_shapes(pages: Pages, batch: PagedBatch) -> None:
    """Raise ValueError for pages that the Triton kernels are not written for."""
    head_dim, dtype = pages.keys.shape[-1], pages.values.dtype
    if head_dim not in TRITON_HEAD_DIMS:
        raise ValueError(
            f"impl='triton' has head_dim {TRITON_HEAD_DIMS}, got {head_dim}; use impl='reference'"
        )
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(
            f"impl='triton' has fp32, fp16 and bf16, got {dtype}; use impl='reference'"
        )
    for name, size in (("page_size", batch.page_size), ("chunk_size", batch.chunk_size)):
        if size < 16 or size & (size - 1):
            raise ValueError(
                f"impl='triton' needs a {name} that is a power of two from 16 on, got {size}; "
                "use impl='reference'"
            )


def check_paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor | None,
    beta: torch.Tensor | None,
    log_fgate: torch.Tensor | None,
    pages: Pages,
    batch: PagedBatch,
    out: torch.Tensor | None,
    sm_scale: float,
) -> None:
    """Raise ValueError where `paged_attention`'s arguments contradict each other."""
    if not sm_scale > 0:
        raise ValueError(f"sm_scale must be positive, got {sm_scale}")
    _, num_kv_heads, page_size, head_dim = pages.keys.shape
    if page_size != batch.page_size:
        raise ValueError(f"the batch was built for pages of {batch.page_size}, got {page_size}")
    dtype = pages.values.dtype
    state_dtype = torch.promote_types(dtype, torch.float32)
    _expect("q", q, (None, None, head_dim), dtype)
    num_heads = q.shape[1]
    if num_heads % num_kv_heads:
        raise ValueError(f"q has {num_heads} heads, not a multiple of {num_kv_heads} kv heads")
    num_tokens = q.shape[0]
    _expect("k", k, (num_tokens, num_kv_heads, head_dim), dtype)
    _expect("v", v, (num_tokens, num_kv_heads, head_dim), dtype)
    _check_rows("q", q, batch)
    if out is not None:
        _expect("out", out, tuple(q.shape), dtype)
    if (w is None) != (pages.product is None) or (w is None) != (beta is None):
        raise ValueError("w and beta are given exactly when the page layout has transport")
    if w is not None and beta is not None:
        _expect("w", w, (num_tokens, num_kv_heads, head_dim), state_dtype)
        _expect("beta", beta, (num_tokens, num_kv_heads), state_dtype)
    if (log_fgate is None) != (pages.gates is None):
        raise ValueError("log_fgate is given exactly when the page layout has a gate")
    if log_fgate is not None:
        _expect("log_fgate", log_fgate, (num_tokens, num_heads), state_dtype)


def _expect(
    name: str, tensor: torch.Tensor, shape: tuple[int | None, ...], dtype: torch.dtype | None
) -> None:
    fits = len(shape) == tensor.dim() and all(
        want in (None, got) for want, got in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("*" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(tensor.shape)}")
    if dtype is not None and tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}")


def _check_rows(name: str, tensor: torch.Tensor, batch: PagedBatch) -> None:
    if len(tensor) != batch.num_tokens:
        raise ValueError(f"{name} has {len(tensor)} rows, the batch {batch.num_tokens} tokens")
    if tensor.device != batch.block_table.device:
        raise ValueError(f"{name} is on {tensor.device}, the batch on {batch.block_table.device}")
