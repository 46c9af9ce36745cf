"""Prefill: requests with more than one new token.

`_invert_chunks` and `_prepare_chunks` give each chunk its W, U, X and store values; `_write_gates`
and `_write_pages` bring the pages to their final state, keeping what the step still needs of the
old one; `_write_group_products` follows, since it reads the products of other pages. For long
prefills without gates `_gather_groups` copies whole groups. Then `_attend` reads: its own page
chunk by chunk from the workspace, earlier pages and groups whole, as flash attention does, with one
product of the queries at each border.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from patheval.kernels.pages import PAGES_PER_GROUP, PageLayout
from patheval.kernels.triton_impl.common import (
    EXACT,
    LOG2_E,
    NEVER,
    SKIPPED_BITS,
    TRANSPORT_TORCH_DTYPE,
    TRITON_DTYPE,
    Step,
    absorb,
    absorb_scaled,
    key_mixing,
    normalised,
    rounded_beta,
    rounded_w,
    strides,
    wy_matrix,
)


@triton.jit
def _segment(
    index, segment_request, segment_page, query_start_loc, seq_lens, PAGE_SIZE: tl.constexpr
):
    """Request, its page, first and end slot of new tokens, and the row that slot 0 would have."""
    request = tl.load(segment_request + index)
    page_idx = tl.load(segment_page + index)
    known = tl.maximum(request, 0)
    row = tl.load(query_start_loc + known)
    query_len = tl.load(query_start_loc + known + 1) - row
    seq_len = tl.load(seq_lens + known)
    begin = page_idx * PAGE_SIZE
    start = tl.maximum(seq_len - query_len - begin, 0)
    end = tl.minimum(seq_len - begin, PAGE_SIZE)
    return request, page_idx, start, end, row + begin - (seq_len - query_len)


@triton.jit
def _chunk(
    index, segment_request, segment_page, query_start_loc, seq_lens,
    block_table, block_table_stride,
    PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr,
):  # fmt: skip
    """A chunk of a segment: whether it has tokens whose w the page's keys lack; page; slots."""
    chunks: tl.constexpr = PAGE_SIZE // CHUNK_SIZE
    segment = (index // chunks).to(tl.int64)
    first = index % chunks * CHUNK_SIZE
    request, page_idx, start, end, row0 = _segment(
        segment, segment_request, segment_page, query_start_loc, seq_lens, PAGE_SIZE
    )
    closed_before = start // CHUNK_SIZE * CHUNK_SIZE
    is_live = (request >= 0) & (first >= closed_before) & (first < end)
    table = block_table + tl.maximum(request, 0).to(tl.int64) * block_table_stride
    page = tl.load(table + page_idx, mask=is_live, other=0).to(tl.int64)
    slot = first + tl.arange(0, CHUNK_SIZE)
    is_new = (slot >= start) & (slot < end)
    is_pending = (slot >= closed_before) & (slot < start)
    return is_live, segment, page, slot, is_new, is_pending, (row0 + slot).to(tl.int64)


@triton.jit(do_not_specialize=["block_table_stride"])
def _invert_chunks(
    w, beta, w_stride, beta_stride,
    pending_w, pending_beta, pending_w_stride, pending_beta_stride,
    query_start_loc, seq_lens, block_table, block_table_stride,
    segment_request, segment_page,
    chunk_w, wy,
    NUM_KV_HEADS: tl.constexpr, PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid [segments * chunks of a page, num_kv_heads]: W and M of each chunk, by one warp."""
    head = tl.program_id(1)
    is_live, segment, page, slot, is_new, is_pending, row = _chunk(
        tl.program_id(0), segment_request, segment_page, query_start_loc, seq_lens,
        block_table, block_table_stride, PAGE_SIZE, CHUNK_SIZE,
    )  # fmt: skip
    if is_live == 0:
        return
    lane = tl.arange(0, CHUNK_SIZE)
    pending = head * CHUNK_SIZE + lane
    at = (segment * NUM_KV_HEADS + head) * PAGE_SIZE + slot
    overlap = tl.zeros([CHUNK_SIZE, CHUNK_SIZE], tl.float32)
    square = tl.zeros([CHUNK_SIZE], tl.float32)
    rounded_square = tl.zeros([CHUNK_SIZE], tl.float32)
    # Some columns at a time, for the registers of one warp.
    for first in tl.static_range(0, HEAD_DIM, BLOCK_D):
        column = first + tl.arange(0, BLOCK_D)
        stored_w = tl.load(
            pending_w + page * pending_w_stride + pending[:, None] * HEAD_DIM + column[None, :],
            mask=is_pending[:, None], other=0.0,
        )  # fmt: skip
        new_w = tl.load(
            w + row[:, None] * w_stride + head * HEAD_DIM + column[None, :],
            mask=is_new[:, None], other=0.0,
        )  # fmt: skip
        rounded, own_square, own_rounded_square = rounded_w(new_w, stored_w.dtype)
        square += own_square
        rounded_square += own_rounded_square
        unit = tl.where(is_pending[:, None], stored_w, rounded)
        tl.store(chunk_w + at[:, None] * HEAD_DIM + column[None, :], unit)
        overlap = tl.dot(unit, tl.trans(unit), overlap, input_precision="ieee")
    stored_beta = tl.load(
        pending_beta + page * pending_beta_stride + pending, mask=is_pending, other=0.0
    )
    new_beta = tl.load(beta + row * beta_stride + head, mask=is_new, other=0.0)
    new_beta = rounded_beta(new_beta, square, rounded_square)
    m = wy_matrix(overlap, tl.where(is_pending, stored_beta, new_beta), CHUNK_SIZE, EXACT)
    tl.store(wy + at[:, None] * CHUNK_SIZE + lane[None, :], m.to(wy.dtype.element_ty))


@triton.jit(do_not_specialize=["block_table_stride"])
def _prepare_chunks(
    k, v, k_stride, v_stride,
    keys, values, keys_stride, values_stride,
    query_start_loc, seq_lens, block_table, block_table_stride,
    segment_request, segment_page,
    raw_keys, chunk_w, chunk_u, wy, mixing,
    NUM_KV_HEADS: tl.constexpr, PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, HAS_TRANSPORT: tl.constexpr,
):  # fmt: skip
    """Grid [segments * chunks of a page, num_kv_heads]: keys, values, U and X of each chunk."""
    head = tl.program_id(1)
    is_live, segment, page, slot, is_new, is_pending, row = _chunk(
        tl.program_id(0), segment_request, segment_page, query_start_loc, seq_lens,
        block_table, block_table_stride, PAGE_SIZE, CHUNK_SIZE,
    )  # fmt: skip
    if is_live == 0:
        return
    column = tl.arange(0, HEAD_DIM)
    lane = tl.arange(0, CHUNK_SIZE)
    in_page = (head * PAGE_SIZE + slot)[:, None] * HEAD_DIM + column[None, :]
    in_row = head * HEAD_DIM + column[None, :]
    value = tl.load(v + row[:, None] * v_stride + in_row, mask=is_new[:, None], other=0.0)
    tl.store(values + page * values_stride + in_page, value, mask=is_new[:, None])
    key = tl.load(k + row[:, None] * k_stride + in_row, mask=is_new[:, None], other=0.0)
    if HAS_TRANSPORT:
        stored = tl.load(keys + page * keys_stride + in_page, mask=is_pending[:, None], other=0.0)
        key = tl.where(is_pending[:, None], stored, key.to(stored.dtype))
        at = (segment * NUM_KV_HEADS + head) * PAGE_SIZE + slot
        there = at[:, None] * HEAD_DIM + column[None, :]
        square = at[:, None] * CHUNK_SIZE + lane[None, :]
        tl.store(raw_keys + there, key)
        unit = tl.load(chunk_w + there)
        m = tl.load(wy + square)
        u = tl.dot(m, unit, input_precision="ieee")
        tl.store(chunk_u + there, u.to(chunk_u.dtype.element_ty))
        tl.store(mixing + square, key_mixing(m, unit, key, CHUNK_SIZE))
    else:
        tl.store(keys + page * keys_stride + in_page, key, mask=is_new[:, None])


@triton.jit(do_not_specialize=["block_table_stride"])
def _write_gates(
    k, log_fgate, k_stride, log_fgate_stride,
    gates, key_norm, gates_stride, key_norm_stride,
    query_start_loc, seq_lens, block_table, block_table_stride,
    segment_request, segment_page,
    GROUP_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Grid [segments, num_heads]."""
    segment = tl.program_id(0)
    head = tl.program_id(1)
    request, page_idx, start, end, row0 = _segment(
        segment, segment_request, segment_page, query_start_loc, seq_lens, PAGE_SIZE
    )
    if request < 0:
        return
    page = tl.load(block_table + request.to(tl.int64) * block_table_stride + page_idx).to(tl.int64)
    slot = tl.arange(0, PAGE_SIZE)
    is_new = (slot >= start) & (slot < end)
    row = (row0 + slot).to(tl.int64)
    steps = tl.load(log_fgate + row * log_fgate_stride + head, mask=is_new, other=0.0)
    at = gates + page * gates_stride + head * PAGE_SIZE
    earlier = tl.load(at + start - 1, mask=start > 0, other=0.0)
    tl.store(at + slot, earlier + tl.cumsum(steps, 0), mask=is_new)
    if head % GROUP_SIZE == 0:
        kv_head = head // GROUP_SIZE
        column = tl.arange(0, HEAD_DIM)
        norm = tl.zeros([CHUNK_SIZE], tl.float32)
        for first in range(0, PAGE_SIZE, CHUNK_SIZE):
            some = first + tl.arange(0, CHUNK_SIZE)
            live = (some >= start) & (some < end)
            key = tl.load(
                k + (row0 + some).to(tl.int64)[:, None] * k_stride + kv_head * HEAD_DIM
                + column[None, :],
                mask=live[:, None], other=0.0,
            ).to(tl.float32)  # fmt: skip
            norm = tl.maximum(norm, tl.sqrt(tl.sum(key * key, 1)))
        there = key_norm + page * key_norm_stride + kv_head
        tl.store(there, tl.maximum(tl.load(there, mask=start > 0, other=0.0), tl.max(norm, 0)))


@triton.jit(do_not_specialize=["block_table_stride"])
def _write_pages(
    w, beta, w_stride, beta_stride,
    keys, product, pending_w, pending_beta, pending_u, pending_mixing,
    keys_stride, product_stride, pending_w_stride, pending_beta_stride, pending_u_stride,
    pending_mixing_stride,
    query_start_loc, seq_lens, block_table, block_table_stride,
    segment_request, segment_page,
    raw_keys, chunk_w, chunk_u, mixing, old_product,
    NUM_KV_HEADS: tl.constexpr, PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Grid [segments, num_kv_heads]: carry keys to the end of the page's closed part.

    From there on to the left, so that one matrix, the product of all later closed chunks, does for
    each chunk.
    """
    segment = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    request, page_idx, start, end, row0 = _segment(
        segment, segment_request, segment_page, query_start_loc, seq_lens, PAGE_SIZE
    )
    if request < 0:
        return
    page = tl.load(block_table + request.to(tl.int64) * block_table_stride + page_idx).to(tl.int64)
    first_open = start // CHUNK_SIZE
    closed = end // CHUNK_SIZE
    column = tl.arange(0, HEAD_DIM)
    lane = tl.arange(0, CHUNK_SIZE)
    slots = (segment * NUM_KV_HEADS + head) * PAGE_SIZE
    page_keys = keys + page * keys_stride + head * PAGE_SIZE * HEAD_DIM
    later = (column[:, None] == column[None, :]).to(tl.float32)
    for i in range(0, closed - first_open):
        first = (closed - 1 - i) * CHUNK_SIZE
        at = slots + first + lane
        there = at[:, None] * HEAD_DIM + column[None, :]
        key = tl.load(raw_keys + there).to(tl.float32)
        unit = tl.load(chunk_w + there)
        u = tl.load(chunk_u + there)
        x_transposed = tl.load(mixing + at[None, :] * CHUNK_SIZE + lane[:, None])
        key -= tl.dot(x_transposed, unit, input_precision="ieee")
        rounded = later.to(unit.dtype)
        key = tl.dot(key.to(unit.dtype), tl.trans(rounded), input_precision="ieee")
        tl.store(
            page_keys + (first + lane)[:, None] * HEAD_DIM + column[None, :],
            key.to(keys.dtype.element_ty),
        )
        on_w = tl.dot(rounded, tl.trans(unit), input_precision="ieee")
        later -= tl.dot(on_w.to(u.dtype), u, input_precision="ieee")
    for i in range(0, first_open):
        first = i * CHUNK_SIZE
        there = (slots + first + lane)[:, None] * HEAD_DIM + column[None, :]
        in_page = page_keys + (first + lane)[:, None] * HEAD_DIM + column[None, :]
        key = tl.load(in_page)
        tl.store(raw_keys + there, key)
        if closed > first_open:
            carried = tl.dot(key, tl.trans(later.to(key.dtype)), input_precision="ieee")
            tl.store(in_page, carried.to(keys.dtype.element_ty))
    square = column[:, None] * HEAD_DIM + column[None, :]
    at_product = product + page * product_stride + head * HEAD_DIM * HEAD_DIM + square
    if first_open > 0:
        old = tl.load(at_product)
        kept = (request.to(tl.int64) * NUM_KV_HEADS + head) * HEAD_DIM * HEAD_DIM + square
        tl.store(old_product + kept, old)
        later = tl.dot(later.to(old.dtype), old, input_precision="ieee")
    if closed > first_open:
        tl.store(at_product, later.to(product.dtype.element_ty))
    slot = closed * CHUNK_SIZE + lane
    is_new = (slot >= start) & (slot < end)
    row = (row0 + slot).to(tl.int64)
    there = (slots + slot)[:, None] * HEAD_DIM + column[None, :]
    key = tl.load(raw_keys + there, mask=is_new[:, None], other=0.0)
    tl.store(page_keys + slot[:, None] * HEAD_DIM + column[None, :], key, mask=is_new[:, None])
    new_w = tl.load(
        w + row[:, None] * w_stride + head * HEAD_DIM + column[None, :],
        mask=is_new[:, None], other=0.0,
    )  # fmt: skip
    new_beta = tl.load(beta + row * beta_stride + head, mask=is_new, other=0.0)
    unit, square, rounded_square = rounded_w(new_w, pending_w.dtype.element_ty)
    new_beta = rounded_beta(new_beta, square, rounded_square)
    pending = head * CHUNK_SIZE + lane
    tl.store(
        pending_w + page * pending_w_stride + pending[:, None] * HEAD_DIM + column[None, :],
        unit, mask=is_new[:, None],
    )  # fmt: skip
    tl.store(pending_beta + page * pending_beta_stride + pending, new_beta, mask=is_new)
    u = tl.load(chunk_u + there, mask=is_new[:, None], other=0.0)
    tl.store(
        pending_u + page * pending_u_stride + pending[:, None] * HEAD_DIM + column[None, :],
        u, mask=is_new[:, None],
    )  # fmt: skip
    x = tl.load(
        mixing + (slots + slot)[:, None] * CHUNK_SIZE + lane[None, :],
        mask=is_new[:, None], other=0.0,
    )  # fmt: skip
    tl.store(
        pending_mixing + page * pending_mixing_stride + pending[:, None] * CHUNK_SIZE
        + lane[None, :],
        x, mask=is_new[:, None],
    )  # fmt: skip


@triton.jit(do_not_specialize=["block_table_stride"])
def _write_group_products(
    product, group_product, product_stride, group_product_stride,
    query_start_loc, seq_lens, block_table, block_table_stride,
    segment_request, segment_page,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    PAGES_PER_GROUP: tl.constexpr,
):  # fmt: skip
    """Grid [segments, num_kv_heads, blocks of a product's rows]."""
    head = tl.program_id(1)
    request, page_idx, _, end, _ = _segment(
        tl.program_id(0), segment_request, segment_page, query_start_loc, seq_lens, PAGE_SIZE
    )
    if (request < 0) | (end < PAGE_SIZE):
        return
    column = tl.arange(0, HEAD_DIM)
    row = tl.program_id(2) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    in_product = (head * HEAD_DIM + row)[:, None] * HEAD_DIM + column[None, :]
    square = (head * HEAD_DIM + column)[:, None] * HEAD_DIM + column[None, :]
    table = block_table + request.to(tl.int64) * block_table_stride
    page = tl.load(table + page_idx).to(tl.int64)
    whole = tl.load(product + page * product_stride + in_product).to(tl.float32)
    for i in range(1, page_idx % PAGES_PER_GROUP + 1):
        before = tl.load(table + page_idx - i).to(tl.int64)
        factor = tl.load(product + before * product_stride + square)
        whole = tl.dot(whole.to(factor.dtype), factor, input_precision="ieee")
    tl.store(
        group_product + page * group_product_stride + in_product,
        whole.to(group_product.dtype.element_ty),
    )


@triton.jit(do_not_specialize=["block_table_stride", "first_head", "far_heads"])
def _gather_groups(
    keys, values, product, keys_stride, values_stride, product_stride,
    block_table, block_table_stride, group_request, group_idx,
    far_keys, far_values, first_head, far_heads,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGES_PER_GROUP: tl.constexpr,
):  # fmt: skip
    """Grid [groups * PAGES_PER_GROUP, kv heads from `first_head` on].

    Copies keys, carried to the end of their group, and values next to each other.
    """
    group = tl.program_id(0) // PAGES_PER_GROUP
    place = tl.program_id(0) % PAGES_PER_GROUP
    head = first_head + tl.program_id(1)
    request = tl.load(group_request + group).to(tl.int64)
    table = block_table + request * block_table_stride
    table += tl.load(group_idx + group) * PAGES_PER_GROUP
    column = tl.arange(0, HEAD_DIM)
    square = (head * HEAD_DIM + column)[:, None] * HEAD_DIM + column[None, :]
    later = (column[:, None] == column[None, :]).to(product.dtype.element_ty)
    for i in range(0, PAGES_PER_GROUP - 1 - place):
        some = tl.load(table + PAGES_PER_GROUP - 1 - i).to(tl.int64)
        factor = tl.load(product + some * product_stride + square)
        later = tl.dot(later, factor, input_precision="ieee").to(later.dtype)
    page = tl.load(table + place).to(tl.int64)
    at_group = (group.to(tl.int64) * far_heads + tl.program_id(1)) * PAGES_PER_GROUP
    for first in range(0, PAGE_SIZE, BLOCK_K):
        slot = first + tl.arange(0, BLOCK_K)
        in_page = (head * PAGE_SIZE + slot)[:, None] * HEAD_DIM + column[None, :]
        there = ((at_group + place) * PAGE_SIZE + slot)[:, None] * HEAD_DIM + column[None, :]
        key = tl.load(keys + page * keys_stride + in_page)
        key = tl.dot(key, tl.trans(later), input_precision="ieee")
        tl.store(far_keys + there, key.to(far_keys.dtype.element_ty))
        tl.store(far_values + there, tl.load(values + page * values_stride + in_page))


@triton.jit(do_not_specialize=["block_table_stride", "first_head", "far_heads"])
def _attend(
    q, out, q_stride, out_stride,
    keys, values, gates, longest_key, product,
    keys_stride, values_stride, gates_stride, product_stride,
    query_start_loc, seq_lens, block_table, block_table_stride,
    segment_request, segment_page,
    raw_keys, chunk_w, chunk_u, mixing, old_product,
    group_product, group_product_stride, far_keys, far_values, group_base, first_head, far_heads,
    visits,
    logit_scale, gate_scale, skipped_bits,
    NUM_KV_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, HAS_FAR: tl.constexpr,
    PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    PAGES_PER_GROUP: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_TRANSPORT: tl.constexpr, HAS_GATE: tl.constexpr, SKIP: tl.constexpr,
    COUNT: tl.constexpr, KEY: tl.constexpr, TRANSPORT: tl.constexpr, NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """Grid [segments * blocks of a page, query heads from the kv head `first_head` on].

    `logit_scale` and `gate_scale` hold log2(e). With HAS_FAR the groups of `far_heads` kv heads
    have been gathered, and a query reads whole groups once it has left its own.

    A logit's part that is the same for all keys of a row, the query's own gate sum, is left out.
    """
    blocks: tl.constexpr = PAGE_SIZE // BLOCK_Q
    segment = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    head = first_head * GROUP_SIZE + tl.program_id(1)
    kv_head = head // GROUP_SIZE
    request, page_idx, start, end, row0 = _segment(
        segment, segment_request, segment_page, query_start_loc, seq_lens, PAGE_SIZE
    )
    slot = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    if (request < 0) | (block * BLOCK_Q >= end) | ((block + 1) * BLOCK_Q <= start):
        return
    table = block_table + request.to(tl.int64) * block_table_stride
    page = tl.load(table + page_idx).to(tl.int64)
    is_query = (slot >= start) & (slot < end)
    row = (row0 + slot).to(tl.int64)
    column = tl.arange(0, HEAD_DIM)
    lane = tl.arange(0, CHUNK_SIZE)
    in_row = head * HEAD_DIM + column[None, :]
    query = tl.load(q + row[:, None] * q_stride + in_row, mask=is_query[:, None], other=0.0)
    moved, row_scale = normalised(query.to(tl.float32))
    scale = row_scale * logit_scale
    maximum = tl.full([BLOCK_Q], NEVER, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    weighted = tl.zeros([BLOCK_Q, HEAD_DIM], tl.float32)

    closed_before = 0
    if HAS_TRANSPORT:
        closed_before = start // CHUNK_SIZE * CHUNK_SIZE
        last = (tl.minimum(end, (block + 1) * BLOCK_Q) - 1) // CHUNK_SIZE
        slots = (segment * NUM_KV_HEADS + kv_head) * PAGE_SIZE
        for i in range(0, last - closed_before // CHUNK_SIZE + 1):
            key_slot = (last - i) * CHUNK_SIZE + lane
            at = slots + key_slot
            there = at[:, None] * HEAD_DIM + column[None, :]
            there_transposed = at[None, :] * HEAD_DIM + column[:, None]
            key = tl.load(raw_keys + there_transposed)
            unit = tl.load(chunk_w + there_transposed)
            u = tl.load(chunk_u + there)
            x = tl.load(mixing + at[:, None] * CHUNK_SIZE + lane[None, :])
            is_visible = key_slot[None, :] <= slot[:, None]
            on_w = tl.dot(moved.to(TRANSPORT), unit, input_precision="ieee")
            on_w = tl.where(is_visible, on_w, 0.0).to(TRANSPORT)
            dot = tl.dot(moved.to(KEY), key, input_precision="ieee")
            dot -= tl.dot(on_w, x, input_precision="ieee")
            logits = dot * scale[:, None]
            is_key = key_slot < end
            if HAS_GATE:
                gate = tl.load(
                    gates + page * gates_stride + head * PAGE_SIZE + key_slot,
                    mask=is_key, other=0.0,
                )  # fmt: skip
                logits -= (gate_scale * gate)[None, :]
            logits = tl.where(is_visible & is_key[None, :], logits, float("-inf"))
            value = tl.load(
                values + page * values_stride
                + (kv_head * PAGE_SIZE + key_slot)[:, None] * HEAD_DIM + column[None, :],
                mask=is_key[:, None], other=0.0,
            )  # fmt: skip
            maximum, total, weighted = absorb(logits, value, maximum, total, weighted, False)
            moved -= tl.dot(on_w, u, input_precision="ieee")
        if closed_before > 0:
            rounded = moved.to(KEY)
            for first in range(0, closed_before, CHUNK_SIZE):
                key_slot = first + lane
                key = tl.load(raw_keys + (slots + key_slot)[None, :] * HEAD_DIM + column[:, None])
                logits = tl.dot(rounded, key, input_precision="ieee") * scale[:, None]
                if HAS_GATE:
                    gate = tl.load(gates + page * gates_stride + head * PAGE_SIZE + key_slot)
                    logits -= (gate_scale * gate)[None, :]
                value = tl.load(
                    values + page * values_stride
                    + (kv_head * PAGE_SIZE + key_slot)[:, None] * HEAD_DIM + column[None, :]
                )  # fmt: skip
                maximum, total, weighted = absorb(
                    logits, value, maximum, total, weighted, WIDE=False
                )
            kept = (request.to(tl.int64) * NUM_KV_HEADS + kv_head) * HEAD_DIM + column
            factor = tl.load(old_product + kept[:, None] * HEAD_DIM + column[None, :])
            moved = tl.dot(moved.to(TRANSPORT), factor, input_precision="ieee")
    else:
        rounded = moved.to(KEY)
        for first in range(0, tl.minimum(end, (block + 1) * BLOCK_Q), CHUNK_SIZE):
            key_slot = first + lane
            is_key = key_slot < end
            key = tl.load(
                keys + page * keys_stride
                + (kv_head * PAGE_SIZE + key_slot)[None, :] * HEAD_DIM + column[:, None],
                mask=is_key[None, :], other=0.0,
            )  # fmt: skip
            logits = tl.dot(rounded, key, input_precision="ieee") * scale[:, None]
            if HAS_GATE:
                gate = tl.load(
                    gates + page * gates_stride + head * PAGE_SIZE + key_slot,
                    mask=is_key, other=0.0,
                )  # fmt: skip
                logits -= (gate_scale * gate)[None, :]
            is_visible = (key_slot[None, :] <= slot[:, None]) & is_key[None, :]
            logits = tl.where(is_visible, logits, float("-inf"))
            value = tl.load(
                values + page * values_stride
                + (kv_head * PAGE_SIZE + key_slot)[:, None] * HEAD_DIM + column[None, :],
                mask=is_key[:, None], other=0.0,
            )  # fmt: skip
            maximum, total, weighted = absorb(logits, value, maximum, total, weighted, False)

    first_page = 0
    if SKIP:
        # |q . k| <= |q| |k| and no H lengthens a vector, so this bounds the logits of every page
        # but for its gates, which only fall to the left. The margin covers the roundings.
        longest = tl.load(longest_key + request * NUM_KV_HEADS + kv_head)
        reach = tl.sqrt(tl.sum(moved * moved, 1)) * scale * longest * 1.02 - maximum
        reach = tl.max(tl.where(is_query, reach, NEVER), 0)
        reach += skipped_bits + tl.log2((page_idx * PAGE_SIZE + 1).to(tl.float32))
        decay = 0.0
        first_page = page_idx
        while (first_page > 0) & (reach + gate_scale * decay >= 0.0):
            first_page -= 1
            earlier = tl.load(table + first_page).to(tl.int64)
            decay += tl.load(gates + earlier * gates_stride + head * PAGE_SIZE + PAGE_SIZE - 1)
    if HAS_FAR:
        base = tl.load(group_base + request)
        first_page = tl.where(base >= 0, page_idx // PAGES_PER_GROUP * PAGES_PER_GROUP, 0)
    if COUNT:
        tl.atomic_add(visits, (page_idx - first_page).to(tl.int64))
        tl.atomic_add(visits + 1, page_idx.to(tl.int64))

    # One loop over the blocks of all pages, so that loads run ahead across the pages' borders.
    blocks_k: tl.constexpr = PAGE_SIZE // BLOCK_K
    offset = 0.0
    rounded = moved.to(KEY)
    for i in tl.range(0, (page_idx - first_page) * blocks_k, num_stages=NEAR_STAGES):
        some_page = page_idx - 1 - i // blocks_k
        first = i % blocks_k * BLOCK_K
        page = tl.load(table + some_page).to(tl.int64)
        if HAS_TRANSPORT:  # noqa: SIM102 - a constant, which must not meet a tensor in `and`
            if (first == 0) & (i > 0):
                right = tl.load(table + some_page + 1).to(tl.int64)
                factor = tl.load(
                    product + right * product_stride + kv_head * HEAD_DIM * HEAD_DIM
                    + column[:, None] * HEAD_DIM + column[None, :]
                )  # fmt: skip
                moved = tl.dot(moved.to(TRANSPORT), factor, input_precision="ieee")
                rounded = moved.to(KEY)
        key_slot = first + tl.arange(0, BLOCK_K)
        at_key = (kv_head * PAGE_SIZE + key_slot)[None, :] * HEAD_DIM + column[:, None]
        key = tl.load(keys + page * keys_stride + at_key)
        dot = tl.dot(rounded, key, input_precision="ieee")
        at_value = (kv_head * PAGE_SIZE + key_slot)[:, None] * HEAD_DIM + column[None, :]
        value = tl.load(values + page * values_stride + at_value)
        if HAS_GATE:
            page_gates = gates + page * gates_stride + head * PAGE_SIZE
            if first == 0:
                offset += tl.load(page_gates + PAGE_SIZE - 1)
            gate = tl.load(page_gates + key_slot)
            logits = dot * scale[:, None] + (gate_scale * (offset - gate))[None, :]
            maximum, total, weighted = absorb(logits, value, maximum, total, weighted, False)
        else:
            maximum, total, weighted = absorb_scaled(dot, scale, value, maximum, total, weighted)

    if HAS_FAR:
        if first_page < page_idx:
            page = tl.load(table + first_page).to(tl.int64)
            factor = tl.load(
                product + page * product_stride + kv_head * HEAD_DIM * HEAD_DIM
                + column[:, None] * HEAD_DIM + column[None, :]
            )  # fmt: skip
            moved = tl.dot(moved.to(TRANSPORT), factor, input_precision="ieee")
        num_groups = first_page // PAGES_PER_GROUP
        # Between groups the query is only multiplied, so it need not be kept in fp32.
        crossing = moved.to(TRANSPORT)
        for i in range(0, num_groups):
            group = num_groups - 1 - i
            at_group = (base + group).to(tl.int64) * far_heads + kv_head - first_head
            at_group *= PAGES_PER_GROUP * PAGE_SIZE * HEAD_DIM
            rounded = crossing.to(KEY)
            for first in range(0, PAGES_PER_GROUP * PAGE_SIZE, BLOCK_K):
                key_slot = first + tl.arange(0, BLOCK_K)
                key = tl.load(far_keys + at_group + key_slot[None, :] * HEAD_DIM + column[:, None])
                dot = tl.dot(rounded, key, input_precision="ieee")
                value = tl.load(
                    far_values + at_group + key_slot[:, None] * HEAD_DIM + column[None, :]
                )
                maximum, total, weighted = absorb_scaled(
                    dot, scale, value, maximum, total, weighted
                )
            page = tl.load(table + group * PAGES_PER_GROUP + PAGES_PER_GROUP - 1).to(tl.int64)
            factor = tl.load(
                group_product + page * group_product_stride + kv_head * HEAD_DIM * HEAD_DIM
                + column[:, None] * HEAD_DIM + column[None, :]
            )  # fmt: skip
            crossing = tl.dot(crossing, factor, input_precision="ieee").to(TRANSPORT)

    result = weighted / total[:, None]
    tl.store(
        out + row[:, None] * out_stride + in_row, result.to(out.dtype.element_ty),
        mask=is_query[:, None],
    )  # fmt: skip


@triton.jit(do_not_specialize=["block_table_stride"])
def _longest_keys(
    key_norm, key_norm_stride, longest, query_start_loc, seq_lens, block_table, block_table_stride,
    NUM_KV_HEADS: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid [num_requests, num_kv_heads]: the largest key norm of a request's pages."""
    request = tl.program_id(0)
    head = tl.program_id(1)
    num_pages = tl.cdiv(tl.load(seq_lens + request), PAGE_SIZE)
    norm = tl.zeros([BLOCK], tl.float32)
    for first in range(0, num_pages, BLOCK):
        page_idx = first + tl.arange(0, BLOCK)
        live = page_idx < num_pages
        page = tl.load(
            block_table + request.to(tl.int64) * block_table_stride + page_idx, mask=live, other=0
        ).to(tl.int64)
        norm = tl.maximum(
            norm, tl.load(key_norm + page * key_norm_stride + head, mask=live, other=0.0)
        )
    tl.store(longest + request * NUM_KV_HEADS + head, tl.max(norm, 0))


FAR_BYTES = 512 << 20
"""Most memory of gathered keys and values; kv heads are done in turn where it is too little."""


@dataclass(frozen=True)
class Tiles:
    """Launch options of `_attend`."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int


def attend_tiles(head_dim: int, page_size: int, dtype: torch.dtype, shared_bytes: int) -> Tiles:
    """Tiles that fit a block's shared memory, tuned on Hopper (227 KiB)."""
    if dtype == torch.float32:
        tiles = Tiles(32, 32, 4, 2)
    elif shared_bytes >= 200_000:
        tiles = Tiles(64, 128, 4, 3) if head_dim <= 64 else Tiles(128, 64, 8, 3)
    elif shared_bytes >= 160_000:
        tiles = Tiles(64, 64, 4, 3) if head_dim <= 64 else Tiles(128, 64, 8, 2)
    else:
        tiles = Tiles(64, 32, 4 if head_dim <= 64 else 8, 2)
    return Tiles(
        min(tiles.block_q, page_size),
        min(tiles.block_k, page_size),
        tiles.num_warps,
        tiles.num_stages,
    )


def workspace_bytes(num_tokens: int, layout: PageLayout) -> int:
    """What `Prefill` allocates for a step of `num_tokens`, with a page to spare for each end."""
    if not layout.has_transport:
        return 0
    slots = (num_tokens + 2 * layout.page_size) * layout.num_kv_heads
    element = layout.dtype.itemsize
    return FAR_BYTES + slots * (3 * layout.head_dim + layout.chunk_size) * element


class Prefill:
    """The prefill part of one call: first `write`, and once all pages are written, `attend`."""

    def __init__(
        self,
        step: Step,
        *,
        skip_pages: bool,
        visits: torch.Tensor | None = None,
    ) -> None:
        """Take a workspace.

        Args:
            step: the call.
            skip_pages: leave out pages whose weight cannot matter; gated kinds only.
            visits: int64 [2], to which pages read and pages read without skipping are added.
        """
        self._step = step
        self._skip_pages = skip_pages and step.log_fgate is not None
        self._visits = visits
        self._request, self._page_idx = step.batch.segments
        self._workspace: list[torch.Tensor | None] = [None] * 5
        if step.w is not None:
            _, heads, page_size, head_dim = step.pages.keys.shape
            chunk_size, slots = step.batch.chunk_size, step.batch.max_segments * heads * page_size
            transport = TRANSPORT_TORCH_DTYPE[step.q.dtype]
            num_requests = len(step.batch.seq_lens)
            self._workspace = [
                step.q.new_empty(slots, head_dim, dtype=transport),
                step.q.new_empty(slots, head_dim, dtype=transport),
                step.q.new_empty(slots, head_dim, dtype=transport),
                step.q.new_empty(slots, chunk_size, dtype=transport),
                step.q.new_empty(num_requests, heads, head_dim, head_dim, dtype=transport),
            ]

    def _where(self) -> tuple[torch.Tensor | int, ...]:
        batch = self._step.batch
        table = batch.block_table
        lens = batch.query_start_loc, batch.seq_lens
        return *lens, table, table.stride(0), self._request, self._page_idx

    def write(self) -> None:
        """Store the new tokens and bring their pages to the state after the step."""
        step, pages, batch = self._step, self._step.pages, self._step.batch
        _, heads, page_size, head_dim = pages.keys.shape
        raw_keys, chunk_w, chunk_u, mixing, old_product = self._workspace
        wy = None
        if step.w is not None:
            # The mixing is made from M, in its place.
            wy = mixing
            _invert_chunks[batch.max_segments * (page_size // batch.chunk_size), heads](
                step.w, step.beta, *strides(step.w, step.beta),
                pages.pending_w, pages.pending_beta,
                *strides(pages.pending_w, pages.pending_beta),
                *self._where(),
                chunk_w, wy,
                NUM_KV_HEADS=heads, PAGE_SIZE=page_size, CHUNK_SIZE=batch.chunk_size,
                HEAD_DIM=head_dim, BLOCK_D=min(head_dim, 32), EXACT=EXACT[step.q.dtype],
                num_warps=1, maxnreg=128,
            )  # fmt: skip
        _prepare_chunks[batch.max_segments * (page_size // batch.chunk_size), heads](
            step.k, step.v, *strides(step.k, step.v),
            pages.keys, pages.values, *strides(pages.keys, pages.values),
            *self._where(),
            raw_keys, chunk_w, chunk_u, wy, mixing,
            NUM_KV_HEADS=heads, PAGE_SIZE=page_size, CHUNK_SIZE=batch.chunk_size,
            HEAD_DIM=head_dim, HAS_TRANSPORT=step.w is not None, num_warps=4,
        )  # fmt: skip
        if step.log_fgate is not None:
            num_heads = step.q.shape[1]
            _write_gates[batch.max_segments, num_heads](
                step.k, step.log_fgate, *strides(step.k, step.log_fgate),
                pages.gates, pages.key_norm, *strides(pages.gates, pages.key_norm),
                *self._where(),
                GROUP_SIZE=num_heads // heads, PAGE_SIZE=page_size, CHUNK_SIZE=batch.chunk_size,
                HEAD_DIM=head_dim, num_warps=4,
            )  # fmt: skip
        if step.w is not None:
            written = (
                pages.keys, pages.product,
                pages.pending_w, pages.pending_beta, pages.pending_u, pages.pending_mixing,
            )  # fmt: skip
            _write_pages[batch.max_segments, heads](
                step.w, step.beta, *strides(step.w, step.beta),
                *written, *strides(*written),
                *self._where(),
                raw_keys, chunk_w, chunk_u, mixing, old_product,
                NUM_KV_HEADS=heads, PAGE_SIZE=page_size, CHUNK_SIZE=batch.chunk_size,
                HEAD_DIM=head_dim, num_warps=4 if head_dim <= 64 else 8,
                num_stages=step.num_stages,
            )  # fmt: skip

    def write_group_products(self) -> None:
        """Multiply the products of groups; reads those of any page that this step writes."""
        pages, batch = self._step.pages, self._step.batch
        if pages.product is None:
            return
        _, heads, page_size, head_dim = pages.keys.shape
        block_rows = min(head_dim, 64)
        _write_group_products[batch.max_segments, heads, head_dim // block_rows](
            pages.product, pages.group_product, *strides(pages.product, pages.group_product),
            *self._where(),
            PAGE_SIZE=page_size, HEAD_DIM=head_dim, BLOCK_ROWS=block_rows,
            PAGES_PER_GROUP=PAGES_PER_GROUP, num_warps=4,
        )  # fmt: skip

    def attend(self, out: torch.Tensor) -> None:
        """Write the outputs of the requests' new tokens to their rows of `out`."""
        step, pages, batch = self._step, self._step.pages, self._step.batch
        _, heads, page_size, head_dim = pages.keys.shape
        num_heads, dtype = step.q.shape[1], step.q.dtype
        longest = None
        if self._skip_pages:
            num_requests = len(batch.seq_lens)
            longest = step.q.new_empty(num_requests, heads, dtype=torch.float32)
            _longest_keys[num_requests, heads](
                pages.key_norm, *strides(pages.key_norm), longest, *self._where()[:4],
                NUM_KV_HEADS=heads, PAGE_SIZE=page_size, BLOCK=64, num_warps=1,
            )  # fmt: skip
        tiles = attend_tiles(head_dim, page_size, dtype, step.shared_bytes)
        group_size = num_heads // heads
        is_far = step.w is not None and step.log_fgate is None
        far = batch.far_groups if is_far else None
        far_heads, far_keys, far_values = 0, None, None
        if far is not None:
            group_numbers = len(far.request) * PAGES_PER_GROUP * page_size * head_dim
            far_heads = max(1, min(heads, FAR_BYTES // (2 * group_numbers * dtype.itemsize)))
            far_values = step.q.new_empty(far_heads * group_numbers)
            far_keys = torch.empty_like(far_values, dtype=pages.keys.dtype)
        for first_head in range(0, heads, far_heads or heads):
            some_heads = min(far_heads or heads, heads - first_head)
            if far is not None:
                _gather_groups[len(far.request) * PAGES_PER_GROUP, some_heads](
                    pages.keys, pages.values, pages.product,
                    *strides(pages.keys, pages.values, pages.product),
                    batch.block_table, batch.block_table.stride(0),
                    far.request, far.group_idx, far_keys, far_values, first_head, far_heads,
                    PAGE_SIZE=page_size, HEAD_DIM=head_dim,
                    BLOCK_K=min(page_size, 64), PAGES_PER_GROUP=PAGES_PER_GROUP,
                    num_warps=4 if head_dim <= 64 else 8,
                    num_stages=step.num_stages,
                )  # fmt: skip
            _attend[batch.max_segments * (page_size // tiles.block_q), some_heads * group_size](
                step.q, out, *strides(step.q, out),
                pages.keys, pages.values, pages.gates, longest, pages.product,
                *strides(pages.keys, pages.values, pages.gates, pages.product),
                *self._where(),
                *self._workspace,
                pages.group_product, *strides(pages.group_product),
                far_keys, far_values, None if far is None else far.base, first_head, far_heads,
                self._visits,
                step.sm_scale * LOG2_E, step.gate_scale * LOG2_E, SKIPPED_BITS[dtype],
                NUM_KV_HEADS=heads, GROUP_SIZE=group_size, HAS_FAR=far is not None,
                PAGE_SIZE=page_size, CHUNK_SIZE=batch.chunk_size, HEAD_DIM=head_dim,
                PAGES_PER_GROUP=PAGES_PER_GROUP,
                BLOCK_Q=tiles.block_q, BLOCK_K=tiles.block_k,
                HAS_TRANSPORT=step.w is not None, HAS_GATE=step.log_fgate is not None,
                SKIP=self._skip_pages, COUNT=self._visits is not None,
                KEY=TRITON_DTYPE[pages.keys.dtype],
                TRANSPORT=TRITON_DTYPE[TRANSPORT_TORCH_DTYPE[dtype]],
                # Page numbers are loaded ahead as well, which takes as many stages again.
                NEAR_STAGES=2 * tiles.num_stages - 1,
                num_warps=tiles.num_warps, num_stages=tiles.num_stages,
            )  # fmt: skip
