"""Device functions and host choices that the Triton kernels share.

Names and formulas are those of README.md in the folder above. Logits are kept in powers of two:
exp(x) = exp2(x log2(e)). Queries on the move are kept in fp32, divided by a power of two so that
no entry exceeds 1; only then are they rounded to fp16 for the products, which cannot overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from patheval.kernels.batch import PagedBatch
from patheval.kernels.pages import Pages

NEVER: tl.constexpr = tl.constexpr(-1.0e30)
"""Logit of a key that no row may see; finite, so that differences of two of them are no NaN."""

SKIPPED_BITS = {torch.float32: 30.0, torch.bfloat16: 20.0, torch.float16: 20.0}
"""Pages whose whole weight is below 2^-bits of the softmax's total are skipped."""


@triton.jit
def unit_lower_inverse(a, SIZE: tl.constexpr, EXACT: tl.constexpr):
    """(I + a)^-1 for a strictly lower triangular fp32 `a` [SIZE, SIZE].

    With a = d + o, where d are the two diagonal blocks of half the size and t = (I + d)^-1, it is
    t - t o t. Forward substitution gives t, for a row of either block at a time.
    """
    half: tl.constexpr = SIZE // 2
    row = tl.arange(0, SIZE)
    is_block = (row[:, None] >= half) == (row[None, :] >= half)
    inverse = tl.where(is_block, -a, 0.0)
    for i in range(1, half):
        is_row = (row % half == i)[:, None] & is_block
        current = tl.sum(tl.where(is_row, inverse, 0.0), 0)
        current += tl.sum(current[:, None] * inverse, 0)
        inverse = tl.where(is_row, current[None, :], inverse)
    inverse += (row[:, None] == row[None, :]).to(tl.float32)
    off = tl.dot(inverse, tl.where(is_block, 0.0, a), input_precision=EXACT)
    return inverse - tl.dot(off, inverse, input_precision=EXACT)


@triton.jit
def wy_matrix(overlap, beta, SIZE: tl.constexpr, EXACT: tl.constexpr):
    """M = (I + strict_lower(b W W^T))^-1 b of a chunk, fp32 [SIZE, SIZE]; `overlap` is W W^T."""
    row = tl.arange(0, SIZE)
    lower = tl.where(row[:, None] > row[None, :], overlap * beta[:, None], 0.0)
    return unit_lower_inverse(lower, SIZE, EXACT) * beta[None, :]


@triton.jit
def rounded_w(w, dtype):
    """`w` [SIZE, D] as `dtype`, and the squared lengths of its rows before and after, fp32."""
    rounded = w.to(dtype)
    wide = rounded.to(tl.float32)
    return rounded, tl.sum(w * w, 1), tl.sum(wide * wide, 1)


@triton.jit
def rounded_beta(beta, square, rounded_square):
    """The beta by which H, made of a rounded w, multiplies w by 1 - beta |w|^2 as before.

    Rounding makes w longer or shorter; with beta near 2 that would grow from token to token.
    """
    return beta * square / tl.where(rounded_square > 0.0, rounded_square, 1.0)


@triton.jit
def key_mixing(m, w, k, SIZE: tl.constexpr):
    """X = M strict_lower(W K^T) [SIZE, SIZE]; `w` and `k` [SIZE, D], all of one dtype."""
    row = tl.arange(0, SIZE)
    on_k = tl.dot(w, tl.trans(k), input_precision="ieee")
    on_k = tl.where(row[:, None] > row[None, :], on_k, 0.0)
    return tl.dot(m, on_k.to(m.dtype), input_precision="ieee").to(m.dtype)


@triton.jit
def normalised(x):
    """`x` [rows, D] divided by a power of two so that no entry exceeds 1, and the divisor."""
    largest = tl.max(tl.abs(x), 1)
    scale = tl.exp2(tl.ceil(tl.log2(tl.where(largest > 0.0, largest, 1.0))))
    return x / scale[:, None], scale


@triton.jit
def absorb_scaled(dot, scale, values, maximum, total, weighted):
    """`absorb` for the logits dot * scale, scale [rows] > 0, with one operation a number less."""
    new_maximum = tl.maximum(maximum, tl.max(dot, 1) * scale)
    weights = tl.exp2(dot * scale[:, None] - new_maximum[:, None])
    shrink = tl.exp2(maximum - new_maximum)
    total = total * shrink + tl.sum(weights, 1)
    weighted = weighted * shrink[:, None]
    weighted = tl.dot(weights.to(values.dtype), values, weighted, input_precision="ieee")
    return new_maximum, total, weighted


@triton.jit
def wide_dot(x, y, added):
    """`added` + x @ y for an fp32 `x` that is split in two numbers of y's dtype, not rounded."""
    high = x.to(y.dtype)
    added = tl.dot(high, y, added, input_precision="ieee")
    if y.dtype != tl.float32:
        low = (x - high.to(tl.float32)).to(y.dtype)
        added = tl.dot(low, y, added, input_precision="ieee")
    return added


@triton.jit
def absorb(logits, values, maximum, total, weighted, WIDE: tl.constexpr):
    """One step of the online softmax: logits [rows, keys] in powers of two, values [keys, D].

    With WIDE the weights are not rounded to the dtype of the values.
    """
    new_maximum = tl.maximum(maximum, tl.max(logits, 1))
    weights = tl.exp2(logits - new_maximum[:, None])
    shrink = tl.exp2(maximum - new_maximum)
    total = total * shrink + tl.sum(weights, 1)
    weighted = weighted * shrink[:, None]
    if WIDE:
        weighted = wide_dot(weights, values, weighted)
    else:
        weighted = tl.dot(weights.to(values.dtype), values, weighted, input_precision="ieee")
    return new_maximum, total, weighted


LOG2_E = 1.0 / math.log(2.0)

TRITON_DTYPE = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

TRANSPORT_TORCH_DTYPE = {
    torch.float32: torch.float32,
    torch.float16: torch.float16,
    torch.bfloat16: torch.float16,
}
"""Operands of products with w, u, M, X and the products of H, by the model's dtype.

Entries of M are at most 4, as no H lengthens a vector; those of X at most 4 times a key's norm.
"""

EXACT = {torch.float32: "ieee", torch.float16: "tf32x3", torch.bfloat16: "tf32x3"}
"""How products of fp32 operands in the inverse of a chunk's triangle are computed, by the model's
dtype."""


@dataclass(frozen=True)
class Step:
    """One call of `paged_attention`, with rows whose numbers lie next to each other."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    w: torch.Tensor | None
    beta: torch.Tensor | None
    log_fgate: torch.Tensor | None
    pages: Pages
    batch: PagedBatch
    sm_scale: float
    gate_scale: float
    shared_bytes: int

    @property
    def num_stages(self) -> int:
        """Stages of loops whose operands are as large as a product of H; Ada has room for one."""
        return 3 if self.shared_bytes >= 160_000 else 1


def rows(x: torch.Tensor) -> torch.Tensor:
    """`x` [tokens, ...] with each token's numbers next to each other, copied if they are not."""
    return x if x[:1].is_contiguous() else x.contiguous()


def optional_rows(x: torch.Tensor | None) -> torch.Tensor | None:
    """`rows`, of a tensor that may be missing."""
    return None if x is None else rows(x)


def strides(*tensors: torch.Tensor | None) -> tuple[int, ...]:
    """First strides, 0 where there is no tensor."""
    return tuple(0 if x is None else x.stride(0) for x in tensors)
