"""The unit vectors w: short causal convolution, SiLU and norm, continued through the pages.

Two launches, since a request may start right behind a page that another request fills in the same
step: the first takes a request's history from its own open page, before it replaces what is stored
there; the second takes the history of a request that starts a page from the page before.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from patheval.kernels.batch import PagedBatch
from patheval.kernels.pages import Pages

NORM_EPSILON = 1e-6
_BLOCK_ROWS = 16


@triton.jit(do_not_specialize=["block_table_stride"])
def _update_tails(
    x, x_stride, conv_tail, conv_tail_stride, history,
    query_start_loc, seq_lens, block_table, block_table_stride,
    WIDTH: tl.constexpr, TAIL: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid [num_requests, blocks of channels]."""
    request = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = channel < WIDTH
    row = tl.load(query_start_loc + request)
    query_len = tl.load(query_start_loc + request + 1) - row
    if query_len == 0:
        return
    seq_len = tl.load(seq_lens + request)
    context = seq_len - query_len
    wide_request = request.to(tl.int64)
    table = block_table + wide_request * block_table_stride
    for lag in tl.static_range(1, TAIL + 1):
        position = context - lag
        stored = tl.zeros([BLOCK], x.dtype.element_ty)
        if (position >= 0) & (context % PAGE_SIZE > 0):
            page = tl.load(table + position // PAGE_SIZE).to(tl.int64)
            at = conv_tail + page * conv_tail_stride + position % TAIL * WIDTH + channel
            stored = tl.load(at, mask=live, other=0.0)
        tl.store(history + (wide_request * TAIL + lag - 1) * WIDTH + channel, stored, mask=live)
    tl.debug_barrier()
    for page_idx in range(context // PAGE_SIZE, (seq_len - 1) // PAGE_SIZE + 1):
        page = tl.load(table + page_idx).to(tl.int64)
        end = tl.minimum((page_idx + 1) * PAGE_SIZE, seq_len)
        for lag in tl.static_range(1, TAIL + 1):
            position = end - lag
            first = tl.maximum(context, page_idx * PAGE_SIZE)
            is_new = live & (position + 0 * channel >= first)
            some = (row + position - context).to(tl.int64)
            value = tl.load(x + some * x_stride + channel, mask=is_new, other=0.0)
            at = conv_tail + page * conv_tail_stride + position % TAIL * WIDTH + channel
            tl.store(at, value, mask=is_new)


@triton.jit(do_not_specialize=["block_table_stride", "num_requests", "num_tokens"])
def _convolve(
    x, x_stride, weight, conv_tail, conv_tail_stride, history, out,
    query_start_loc, seq_lens, block_table, block_table_stride, num_requests, num_tokens,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TAIL: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Grid [blocks of rows, num_kv_heads]."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    head = tl.program_id(1)
    width: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    channel = head * HEAD_DIM + tl.arange(0, HEAD_DIM)
    is_row = row < num_tokens
    wide_row = row.to(tl.int64)
    value = tl.load(
        x + wide_row[:, None] * x_stride + channel[None, :], mask=is_row[:, None], other=0.0
    )
    mixed = value.to(tl.float32)
    if TAIL > 0:
        # The last request that starts at or before the row and is not empty.
        low = tl.zeros([BLOCK_ROWS], tl.int32)
        high = tl.zeros([BLOCK_ROWS], tl.int32) + num_requests
        span = num_requests
        while span > 0:
            middle = (low + high) // 2
            starts = tl.load(query_start_loc + middle, mask=middle < num_requests, other=2**31 - 1)
            is_right = (starts <= row) & (low < high)
            low = tl.where(is_right, middle + 1, low)
            high = tl.where(is_right | (low >= high), high, middle)
            span = span // 2
        request = tl.maximum(low - 1, 0).to(tl.int64)
        first = tl.load(query_start_loc + request)
        query_len = tl.load(query_start_loc + request + 1) - first
        context = tl.load(seq_lens + request) - query_len
        is_page_start = (context % PAGE_SIZE == 0) & (context > 0)
        before = tl.load(
            block_table + request * block_table_stride + context // PAGE_SIZE - 1,
            mask=is_page_start & is_row, other=0,
        ).to(tl.int64)  # fmt: skip
        taps = weight + channel * (TAIL + 1) + TAIL
        mixed *= tl.load(taps).to(tl.float32)[None, :]
        for lag in tl.static_range(1, TAIL + 1):
            back = row - lag - first
            own = tl.load(
                x + (wide_row - lag)[:, None] * x_stride + channel[None, :],
                mask=(is_row & (back >= 0))[:, None], other=0.0,
            )  # fmt: skip
            is_earlier = is_row & (back < 0)
            in_history = (request * TAIL - 1 - back) * width
            saved = tl.load(
                history + in_history[:, None] + channel[None, :],
                mask=(is_earlier & (is_page_start == 0))[:, None], other=0.0,
            )  # fmt: skip
            position = context + back
            in_tail = before * conv_tail_stride + position % TAIL * width
            tail = tl.load(
                conv_tail + in_tail[:, None] + channel[None, :],
                mask=(is_earlier & is_page_start)[:, None], other=0.0,
            )  # fmt: skip
            lagged = own.to(tl.float32) + saved.to(tl.float32) + tail.to(tl.float32)
            mixed += lagged * tl.load(taps - lag).to(tl.float32)[None, :]
        mixed = mixed * tl.sigmoid(mixed)
        mixed = mixed.to(x.dtype.element_ty).to(tl.float32)
    norm = tl.sum(mixed * mixed, 1) + EPSILON
    tl.store(
        out + wide_row[:, None] * width + channel[None, :], mixed * tl.rsqrt(norm)[:, None],
        mask=is_row[:, None],
    )  # fmt: skip


def householder_vectors(
    x: torch.Tensor, conv_weight: torch.Tensor | None, pages: Pages, batch: PagedBatch
) -> torch.Tensor:
    """See `patheval.kernels.api.householder_vectors`."""
    conv_tail, num_kv_heads = pages.conv_tail, pages.keys.shape[1]
    x = x if x.stride(1) == 1 else x.contiguous()
    weight = None if conv_weight is None else conv_weight.contiguous()
    num_tokens, width = x.shape
    num_requests = len(batch.seq_lens)
    out = x.new_empty(num_tokens, num_kv_heads, width // num_kv_heads, dtype=torch.float32)
    lengths = (
        batch.query_start_loc, batch.seq_lens, batch.block_table, batch.block_table.stride(0)
    )  # fmt: skip
    tail_stride, tail_size, history = 0, 0, None
    if conv_tail is not None:
        tail_stride, tail_size = conv_tail.stride(0), conv_tail.shape[1]
        history = x.new_empty(num_requests, tail_size, width)
        block = min(triton.next_power_of_2(width), 1024)
        _update_tails[num_requests, triton.cdiv(width, block)](
            x, x.stride(0), conv_tail, tail_stride, history, *lengths,
            WIDTH=width, TAIL=tail_size, PAGE_SIZE=batch.page_size, BLOCK=block, num_warps=4,
        )  # fmt: skip
    _convolve[triton.cdiv(num_tokens, _BLOCK_ROWS), num_kv_heads](
        x, x.stride(0), weight, conv_tail, tail_stride, history, out, *lengths,
        num_requests, num_tokens,
        NUM_KV_HEADS=num_kv_heads, HEAD_DIM=width // num_kv_heads, TAIL=tail_size,
        PAGE_SIZE=batch.page_size, BLOCK_ROWS=_BLOCK_ROWS, EPSILON=NORM_EPSILON, num_warps=4,
    )  # fmt: skip
    return out
