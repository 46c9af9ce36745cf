"""Decode: requests with exactly one new token, for any number of tokens before it.

No launch depends on a length that only the device knows, so that the launches can be captured in
a CUDA graph. `_close` has nothing to do but for tokens that end a chunk: it stores them and carries
their page's keys, before any request of the step reads the page. In `_attend` one program of each
request and kv head walks: it takes the query through the open chunk and from there, by one product
a group of pages, to the end of each group. The others read the pages in parallel parts, each from
the moment at which the query has come to its group, and move their own copies of it on; the one
that has most time stores the new token before. Whoever is last adds the parts up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from patheval.kernels.pages import PAGES_PER_GROUP
from patheval.kernels.triton_impl.common import (
    LOG2_E,
    NEVER,
    SKIPPED_BITS,
    TRANSPORT_TORCH_DTYPE,
    TRITON_DTYPE,
    Step,
    absorb,
    normalised,
    rounded_beta,
    rounded_w,
    strides,
    wide_dot,
)


@triton.jit
def _store_token(
    row, head, page, slot, key,
    v, log_fgate, v_stride, log_fgate_stride,
    values, gates, key_norm, values_stride, gates_stride, key_norm_stride,
    GROUP_SIZE: tl.constexpr, PADDED_GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, HAS_GATE: tl.constexpr,
):  # fmt: skip
    """Store the new token's value and its gate, and let the page's longest key know its key."""
    column = tl.arange(0, HEAD_DIM)
    value = tl.load(v + row * v_stride + head * HEAD_DIM + column)
    tl.store(values + page * values_stride + (head * PAGE_SIZE + slot) * HEAD_DIM + column, value)
    if HAS_GATE:
        member = tl.arange(0, PADDED_GROUP)
        query_head = head * GROUP_SIZE + member
        live = member < GROUP_SIZE
        at = gates + page * gates_stride + query_head * PAGE_SIZE + slot
        earlier = tl.load(at - 1, mask=live & (slot + 0 * member > 0), other=0.0)
        gate = tl.load(log_fgate + row * log_fgate_stride + query_head, mask=live, other=0.0)
        tl.store(at, earlier + gate, mask=live)
        wide = key.to(tl.float32)
        there = key_norm + page * key_norm_stride + head
        longest = tl.load(there, mask=slot > 0, other=0.0)
        tl.store(there, tl.maximum(longest, tl.sqrt(tl.sum(wide * wide, 0))))


@triton.jit
def _new_w(
    row, head, w, beta, w_stride, beta_stride, HEAD_DIM: tl.constexpr, STORED: tl.constexpr
):  # fmt: skip
    """The new token's w [1, D], as it is stored, and the beta [1] that goes with it."""
    new_w = tl.load(w + row * w_stride + head * HEAD_DIM + tl.arange(0, HEAD_DIM))
    new_beta = tl.load(beta + row * beta_stride + head + tl.arange(0, 1))
    new_w, square, rounded_square = rounded_w(new_w[None, :], STORED)
    return new_w, rounded_beta(new_beta, square, rounded_square)


@triton.jit
def _extended_chunk(
    row, page, head, slot, w, beta, w_stride, beta_stride,
    keys, pending_w, pending_u, pending_mixing,
    keys_stride, pending_w_stride, pending_u_stride, pending_mixing_stride,
    PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """The open chunk's tokens before the new one, 0 elsewhere, and what the new one adds.

    Returns:
        w and u [C, D], x [C, C] and raw keys [C, D]; the new token's w [1, D] and beta [1] as they
        are stored, and its rows of u [1, D] and x [1, C]: those before are as they were.
    """
    new_w, new_beta = _new_w(
        row, head, w, beta, w_stride, beta_stride, HEAD_DIM, pending_w.dtype.element_ty
    )
    column = tl.arange(0, HEAD_DIM)
    lane = tl.arange(0, CHUNK_SIZE)
    own = slot % CHUNK_SIZE
    is_pending = (lane < own)[:, None]
    pending = head * CHUNK_SIZE + lane
    at = pending[:, None] * HEAD_DIM + column[None, :]
    unit = tl.load(pending_w + page * pending_w_stride + at, mask=is_pending, other=0.0)
    u = tl.load(pending_u + page * pending_u_stride + at, mask=is_pending, other=0.0)
    at_square = pending[:, None] * CHUNK_SIZE + lane[None, :]
    x = tl.load(
        pending_mixing + page * pending_mixing_stride + at_square, mask=is_pending, other=0.0
    )
    in_page = (head * PAGE_SIZE + slot - own + lane)[:, None] * HEAD_DIM + column[None, :]
    raw = tl.load(keys + page * keys_stride + in_page, mask=is_pending, other=0.0)
    wide_w = new_w.to(tl.float32)
    overlap = tl.sum(unit.to(tl.float32) * wide_w, 1)[:, None]
    new_u = new_beta[:, None] * (wide_w - tl.sum(overlap * u.to(tl.float32), 0)[None, :])
    on_keys = tl.sum(raw.to(tl.float32) * wide_w, 1)
    new_x = new_beta[:, None] * (on_keys - tl.sum(overlap * x.to(tl.float32), 0))[None, :]
    return unit, u, x, raw, new_w, new_beta, new_u.to(u.dtype), new_x.to(x.dtype)


@triton.jit
def _append(
    row, head, page, slot,
    k, v, w, beta, log_fgate,
    k_stride, v_stride, w_stride, beta_stride, log_fgate_stride,
    keys, values, gates, key_norm, pending_w, pending_beta, pending_u, pending_mixing,
    keys_stride, values_stride, gates_stride, key_norm_stride,
    pending_w_stride, pending_beta_stride, pending_u_stride, pending_mixing_stride,
    GROUP_SIZE: tl.constexpr, PADDED_GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    HAS_TRANSPORT: tl.constexpr, HAS_GATE: tl.constexpr,
):  # fmt: skip
    """Store a new token that leaves its chunk open."""
    column = tl.arange(0, HEAD_DIM)
    key = tl.load(k + row * k_stride + head * HEAD_DIM + column)
    tl.store(keys + page * keys_stride + (head * PAGE_SIZE + slot) * HEAD_DIM + column, key)
    _store_token(
        row, head, page, slot, key,
        v, log_fgate, v_stride, log_fgate_stride,
        values, gates, key_norm, values_stride, gates_stride, key_norm_stride,
        GROUP_SIZE, PADDED_GROUP, PAGE_SIZE, HEAD_DIM, HAS_GATE,
    )  # fmt: skip
    if HAS_TRANSPORT:
        _, _, _, _, new_w, new_beta, new_u, new_x = _extended_chunk(
            row, page, head, slot, w, beta, w_stride, beta_stride,
            keys, pending_w, pending_u, pending_mixing,
            keys_stride, pending_w_stride, pending_u_stride, pending_mixing_stride,
            PAGE_SIZE, CHUNK_SIZE, HEAD_DIM,
        )  # fmt: skip
        own = head * CHUNK_SIZE + slot % CHUNK_SIZE
        at = (own * HEAD_DIM + column)[None, :]
        at_square = (own * CHUNK_SIZE + tl.arange(0, CHUNK_SIZE))[None, :]
        tl.store(pending_w + page * pending_w_stride + at, new_w)
        tl.store(pending_u + page * pending_u_stride + at, new_u)
        tl.store(pending_mixing + page * pending_mixing_stride + at_square, new_x)
        tl.store(pending_beta + page * pending_beta_stride + own + tl.arange(0, 1), new_beta)


@triton.jit(do_not_specialize=["block_table_stride"])
def _close(
    k, v, w, beta, log_fgate,
    k_stride, v_stride, w_stride, beta_stride, log_fgate_stride,
    keys, values, gates, key_norm, product, group_product,
    pending_w, pending_u, pending_mixing,
    keys_stride, values_stride, gates_stride, key_norm_stride, product_stride,
    group_product_stride,
    pending_w_stride, pending_u_stride, pending_mixing_stride,
    query_start_loc, seq_lens, block_table, block_table_stride, progress,
    GROUP_SIZE: tl.constexpr, PADDED_GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr, PAGES_PER_GROUP: tl.constexpr,
    HAS_TRANSPORT: tl.constexpr, HAS_GATE: tl.constexpr,
):  # fmt: skip
    """Grid [num_requests, num_kv_heads, blocks of a page + 1]; the last writes all but keys."""
    request = tl.program_id(0)
    head = tl.program_id(1)
    block = tl.program_id(2)
    is_last = block == tl.num_programs(2) - 1
    row = tl.load(query_start_loc + request)
    next_row = tl.load(query_start_loc + request + 1)
    position = tl.load(seq_lens + request) - 1
    if is_last:
        tl.store(progress + (request * tl.num_programs(1) + head) * 2 + tl.arange(0, 2), 0)
    if (next_row - row != 1) | ((position + 1) % CHUNK_SIZE != 0):
        return
    page_idx = position // PAGE_SIZE
    slot = position % PAGE_SIZE
    closed_before = slot + 1 - CHUNK_SIZE
    row = row.to(tl.int64)
    table = block_table + request.to(tl.int64) * block_table_stride
    page = tl.load(table + page_idx).to(tl.int64)
    column = tl.arange(0, HEAD_DIM)
    lane = tl.arange(0, CHUNK_SIZE)
    key = tl.load(k + row * k_stride + head * HEAD_DIM + column)
    page_keys = keys + page * keys_stride + head * PAGE_SIZE * HEAD_DIM
    if is_last:
        _store_token(
            row, head, page, slot, key,
            v, log_fgate, v_stride, log_fgate_stride,
            values, gates, key_norm, values_stride, gates_stride, key_norm_stride,
            GROUP_SIZE, PADDED_GROUP, PAGE_SIZE, HEAD_DIM, HAS_GATE,
        )  # fmt: skip
    if not HAS_TRANSPORT:
        tl.store(page_keys + slot * HEAD_DIM + column, key)
    elif is_last | (block * BLOCK_K <= slot):
        unit, u, x, raw, new_w, _, new_u, new_x = _extended_chunk(
            row, page, head, slot, w, beta, w_stride, beta_stride,
            keys, pending_w, pending_u, pending_mixing,
            keys_stride, pending_w_stride, pending_u_stride, pending_mixing_stride,
            PAGE_SIZE, CHUNK_SIZE, HEAD_DIM,
        )  # fmt: skip
        is_new = (lane == CHUNK_SIZE - 1)[:, None]
        unit = tl.where(is_new, new_w, unit)
        u = tl.where(is_new, new_u, u)
        if is_last:
            square = (head * HEAD_DIM + column)[:, None] * HEAD_DIM + column[None, :]
            before_chunk = (column[:, None] == column[None, :]).to(u.dtype)
            at_product = product + page * product_stride + square
            if closed_before > 0:
                before_chunk = tl.load(at_product)
            on_product = tl.dot(u, before_chunk, input_precision="ieee")
            whole = before_chunk.to(tl.float32)
            whole -= tl.dot(tl.trans(unit), on_product.to(unit.dtype), input_precision="ieee")
            tl.store(at_product, whole.to(product.dtype.element_ty))
            if slot == PAGE_SIZE - 1:
                if page_idx % PAGES_PER_GROUP > 0:
                    before = tl.load(table + page_idx - 1).to(tl.int64)
                    factor = tl.load(group_product + before * group_product_stride + square)
                    whole = tl.dot(whole.to(factor.dtype), factor, input_precision="ieee")
                tl.store(
                    group_product + page * group_product_stride + square,
                    whole.to(group_product.dtype.element_ty),
                )
        else:
            key_slot = block * BLOCK_K + tl.arange(0, BLOCK_K)
            is_closed = key_slot < closed_before
            at_keys = page_keys + key_slot[:, None] * HEAD_DIM + column[None, :]
            old = tl.load(at_keys, mask=is_closed[:, None], other=0.0)
            on_u = tl.dot(old, tl.trans(u), input_precision="ieee")
            carried = old.to(tl.float32)
            carried -= tl.dot(on_u.to(unit.dtype), unit, input_precision="ieee")
            tl.store(at_keys, carried.to(old.dtype), mask=is_closed[:, None])
            if closed_before // BLOCK_K == block:
                x = tl.where(is_new, new_x, x)
                raw = tl.where(is_new, key[None, :].to(raw.dtype), raw)
                moved = raw.to(tl.float32)
                moved -= tl.dot(tl.trans(x), unit, input_precision="ieee")
                in_chunk = (closed_before + lane)[:, None] * HEAD_DIM + column[None, :]
                tl.store(page_keys + in_chunk, moved.to(raw.dtype))


@triton.jit
def _publish(progress, value):
    """Let the readers see all that this program has stored, and that `value` of it is there."""
    tl.debug_barrier()
    tl.atomic_xchg(progress, value, sem="release")


@triton.jit
def _await(progress, value):
    """Wait until the walk has published `value`.

    It cannot wait for a program that waits for a place on the GPU: programs start in their order,
    and those that walk come first.
    """
    seen = tl.atomic_add(progress, 0, sem="acquire")
    while seen < value:
        seen = tl.atomic_add(progress, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def _prefetch(start, SIZE: tl.constexpr):
    """Have the L2 cache fetch SIZE elements from `start`, 16-byte aligned; Hopper and later."""
    piece: tl.constexpr = 512 * 8 // start.dtype.element_ty.primitive_bitwidth
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], 512; mov.b32 $0, 0;", "=r,l",
        [start + tl.arange(0, SIZE // piece) * piece],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _walk(
    request, head, row, progress,
    q, k, v, w, beta, log_fgate,
    q_stride, k_stride, v_stride, w_stride, beta_stride, log_fgate_stride,
    keys, values, gates, key_norm, product, group_product,
    pending_w, pending_u, pending_mixing,
    keys_stride, values_stride, gates_stride, key_norm_stride, product_stride,
    group_product_stride,
    pending_w_stride, pending_u_stride, pending_mixing_stride,
    seq_len, block_table, block_table_stride,
    group_query, page_offset, first_pages, part_output, part_sums, visits,
    num_parts, max_pages, max_groups,
    logit_scale, gate_scale, skipped_bits,
    NUM_KV_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, PADDED_GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_PAGES: tl.constexpr, PAGES_PER_GROUP: tl.constexpr, PUBLISHED_GROUPS: tl.constexpr,
    HAS_TRANSPORT: tl.constexpr, HAS_GATE: tl.constexpr, SKIP: tl.constexpr,
    COUNT: tl.constexpr, TRANSPORT: tl.constexpr,
):  # fmt: skip
    """Take the query to the end of each group; the open chunk is the output's last part.

    `progress` becomes 1 when the pages' gate sums are there, and 1 more with each group's query,
    from right to left.
    """
    last_page = (seq_len - 1) // PAGE_SIZE
    slot = (seq_len - 1) % PAGE_SIZE
    wide_request = request.to(tl.int64)
    table = block_table + wide_request * block_table_stride
    page = tl.load(table + last_page).to(tl.int64)
    column = tl.arange(0, HEAD_DIM)
    member = tl.arange(0, PADDED_GROUP)
    query_head = head * GROUP_SIZE + member
    live = member < GROUP_SIZE
    at_heads = wide_request * NUM_KV_HEADS * GROUP_SIZE + query_head
    moved = tl.load(
        q + row * q_stride + query_head[:, None] * HEAD_DIM + column[None, :],
        mask=live[:, None], other=0.0,
    ).to(tl.float32)  # fmt: skip
    maximum = tl.full([PADDED_GROUP], NEVER, tl.float32)
    total = tl.zeros([PADDED_GROUP], tl.float32)
    weighted = tl.zeros([PADDED_GROUP, HEAD_DIM], tl.float32)

    # The query's own key: the largest logit that is known before any page is read.
    own_key = tl.load(k + row * k_stride + head * HEAD_DIM + column).to(tl.float32)
    own_logit = tl.sum(moved * own_key[None, :], 1) * logit_scale
    row_scale = tl.full([PADDED_GROUP], 1.0, tl.float32)
    own_gate = tl.zeros([PADDED_GROUP], tl.float32)
    # A token that ends a chunk has been stored.
    closed = (slot + 1) // CHUNK_SIZE * CHUNK_SIZE
    is_open = slot + 1 > closed
    num_stored = seq_len - is_open.to(tl.int32)
    if HAS_GATE:
        last_stored = slot - is_open.to(tl.int32)
        own_gate = tl.load(
            gates + page * gates_stride + query_head * PAGE_SIZE + last_stored,
            mask=live & (last_stored + 0 * member >= 0), other=0.0,
        )  # fmt: skip
        if is_open:
            own_gate += tl.load(
                log_fgate + row * log_fgate_stride + query_head, mask=live, other=0.0
            )
    if HAS_TRANSPORT:
        moved, row_scale = normalised(moved)
        lane = tl.arange(0, CHUNK_SIZE)
        is_pending = lane < slot - closed
        is_own = lane == slot - closed
        if is_open:
            new_w, new_beta = _new_w(
                row, head, w, beta, w_stride, beta_stride, HEAD_DIM, pending_w.dtype.element_ty
            )
            wide_w = new_w.to(tl.float32)
            moved -= (tl.sum(moved * wide_w, 1) * new_beta)[:, None] * wide_w
            in_page = (head * PAGE_SIZE + closed + lane)[:, None] * HEAD_DIM + column[None, :]
            pending = head * CHUNK_SIZE + lane
            key = tl.load(keys + page * keys_stride + in_page, mask=is_pending[:, None], other=0.0)
            value = tl.load(
                values + page * values_stride + in_page, mask=is_pending[:, None], other=0.0
            )
            unit = tl.load(
                pending_w + page * pending_w_stride + pending[:, None] * HEAD_DIM
                + column[None, :],
                mask=is_pending[:, None], other=0.0,
            )  # fmt: skip
            u = tl.load(
                pending_u + page * pending_u_stride + pending[:, None] * HEAD_DIM
                + column[None, :],
                mask=is_pending[:, None], other=0.0,
            )  # fmt: skip
            x = tl.load(
                pending_mixing + page * pending_mixing_stride + pending[:, None] * CHUNK_SIZE
                + lane[None, :],
                mask=is_pending[:, None], other=0.0,
            )  # fmt: skip
            own_value = tl.load(v + row * v_stride + head * HEAD_DIM + column)
            value = tl.where(is_own[:, None], own_value[None, :].to(value.dtype), value)
            on_w = tl.dot(moved.to(TRANSPORT), tl.trans(unit), input_precision="ieee")
            dot = wide_dot(-on_w, x, tl.zeros([PADDED_GROUP, CHUNK_SIZE], tl.float32))
            dot = wide_dot(moved, tl.trans(key), dot)
            logits = dot * (row_scale * logit_scale)[:, None]
            if HAS_GATE:
                gate = tl.load(
                    gates + page * gates_stride + query_head[:, None] * PAGE_SIZE
                    + (closed + lane)[None, :],
                    mask=live[:, None] & is_pending[None, :], other=0.0,
                )  # fmt: skip
                logits += gate_scale * (own_gate[:, None] - gate)
            logits = tl.where(is_pending[None, :], logits, float("-inf"))
            logits = tl.where(is_own[None, :], own_logit[:, None], logits)
            maximum, total, weighted = absorb(logits, value, maximum, total, weighted, True)
            moved = wide_dot(-on_w, u, moved)
    elif is_open:
        own_value = tl.load(v + row * v_stride + head * HEAD_DIM + column).to(tl.float32)
        maximum = own_logit
        total = tl.full([PADDED_GROUP], 1.0, tl.float32)
        weighted = tl.zeros([PADDED_GROUP, HEAD_DIM], tl.float32) + own_value[None, :]
    part = at_heads * (num_parts + 1) + num_parts
    tl.store(part_output + part[:, None] * HEAD_DIM + column[None, :], weighted, mask=live[:, None])
    tl.store(part_sums + part * 2, maximum, mask=live)
    tl.store(part_sums + part * 2 + 1, total, mask=live)

    first_page = 0
    if HAS_GATE:
        longest = tl.zeros([BLOCK_PAGES], tl.float32) + tl.sqrt(tl.sum(own_key * own_key, 0))
        if SKIP:
            for first in range(0, last_page + 1, BLOCK_PAGES):
                page_idx = first + tl.arange(0, BLOCK_PAGES)
                # An empty page has the norm of whatever it held before.
                there = page_idx * PAGE_SIZE < num_stored
                some_page = tl.load(table + page_idx, mask=there, other=0).to(tl.int64)
                norm = tl.load(key_norm + some_page * key_norm_stride + head, mask=there, other=0.0)
                longest = tl.maximum(longest, norm)
        # As in prefill: no logit of a page exceeds this plus the gates of the pages between.
        length = tl.sqrt(tl.sum(moved * moved, 1)) * row_scale
        bound = length * logit_scale * tl.max(longest, 0) * 1.02
        bound += gate_scale * own_gate - tl.maximum(maximum, own_logit)
        bound += skipped_bits + tl.log2(seq_len.to(tl.float32))
        bound = tl.where(live, bound, NEVER)
        offset = own_gate
        reached = 1
        first = last_page // BLOCK_PAGES * BLOCK_PAGES
        while (first >= 0) & (reached > 0):
            page_idx = first + tl.arange(0, BLOCK_PAGES)
            is_earlier = page_idx < last_page
            some_page = tl.load(table + page_idx, mask=is_earlier, other=0).to(tl.int64)
            sums = tl.load(
                gates + some_page[None, :] * gates_stride
                + query_head[:, None] * PAGE_SIZE + PAGE_SIZE - 1,
                mask=live[:, None] & is_earlier[None, :], other=0.0,
            )  # fmt: skip
            through = tl.cumsum(sums, 1, reverse=True)
            is_page = page_idx <= last_page
            tl.store(
                page_offset + at_heads[:, None] * max_pages + page_idx[None, :],
                offset[:, None] + through, mask=live[:, None] & is_page[None, :],
            )  # fmt: skip
            if SKIP:
                until = through - sums + (offset - own_gate)[:, None]
                matters = (bound[:, None] + gate_scale * until >= 0.0) & is_page[None, :]
                matters = tl.max(matters.to(tl.int32), 0) > 0
                matters = matters | (page_idx == last_page)
                lowest = tl.min(tl.where(matters, page_idx, last_page + 1), 0)
                reached = (lowest == first).to(tl.int32)
                first_page = tl.where(lowest <= last_page, lowest, first + BLOCK_PAGES)
            offset += tl.sum(sums, 1)
            first -= BLOCK_PAGES
        tl.store(first_pages + request * NUM_KV_HEADS + head, first_page)
        _publish(progress, 1)
    if COUNT:
        tl.atomic_add(visits, (last_page + 1 - first_page).to(tl.int64))
        tl.atomic_add(visits + 1, (last_page + 1).to(tl.int64))

    if HAS_TRANSPORT:
        square = (head * HEAD_DIM + column)[:, None] * HEAD_DIM + column[None, :]
        at_group = group_query + (at_heads * max_groups)[:, None] * HEAD_DIM + column[None, :]
        group = last_page // PAGES_PER_GROUP
        tl.store(at_group + group * HEAD_DIM, moved * row_scale[:, None], mask=live[:, None])
        _publish(progress, 2)
        if closed > 0:
            factor = tl.load(product + page * product_stride + square)
            moved = tl.dot(moved.to(TRANSPORT), factor, input_precision="ieee")
        if last_page % PAGES_PER_GROUP > 0:
            before = tl.load(table + last_page - 1).to(tl.int64)
            factor = tl.load(group_product + before * group_product_stride + square)
            moved = tl.dot(moved.to(TRANSPORT), factor, input_precision="ieee")
        # The loads run one group ahead of the products, the page numbers two.
        at_end = table + PAGES_PER_GROUP - 1
        current = tl.load(at_end + tl.maximum(group - 1, 0) * PAGES_PER_GROUP).to(tl.int64)
        following = tl.load(at_end + tl.maximum(group - 2, 0) * PAGES_PER_GROUP).to(tl.int64)
        count = group - first_page // PAGES_PER_GROUP
        counts = count + 0 * column[None, :]
        products = group_product + square
        factor = tl.load(products + current * group_product_stride, mask=counts > 0, other=0.0)
        for i in range(0, count):
            next_factor = tl.load(
                products + following * group_product_stride, mask=i + 1 < counts, other=0.0
            )
            following = tl.load(at_end + tl.maximum(group - 3 - i, 0) * PAGES_PER_GROUP).to(
                tl.int64
            )
            tl.store(
                at_group + (group - 1 - i) * HEAD_DIM, moved * row_scale[:, None],
                mask=live[:, None],
            )  # fmt: skip
            # Publishing waits for the stores, so it is done for several groups at once.
            if (i % PUBLISHED_GROUPS == PUBLISHED_GROUPS - 1) | (i == count - 1):
                _publish(progress, i + 3)
            moved = tl.dot(moved.to(TRANSPORT), factor, input_precision="ieee")
            factor = next_factor


@triton.jit
def _read(
    request, head, part, row, progress,
    q, q_stride,
    keys, values, gates, product, group_product,
    keys_stride, values_stride, gates_stride, product_stride, group_product_stride,
    seq_len, block_table, block_table_stride,
    group_query, page_offset, first_pages, part_output, part_sums,
    num_parts, max_pages, max_groups,
    logit_scale, gate_scale,
    NUM_KV_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, PADDED_GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr, PAGES_PER_GROUP: tl.constexpr,
    HAS_TRANSPORT: tl.constexpr, HAS_GATE: tl.constexpr,
    TRANSPORT: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """Attend to one run of pages, from right to left."""
    num_pages = tl.cdiv(seq_len, PAGE_SIZE)
    column = tl.arange(0, HEAD_DIM)
    member = tl.arange(0, PADDED_GROUP)
    query_head = head * GROUP_SIZE + member
    live = member < GROUP_SIZE
    wide_request = request.to(tl.int64)
    at_heads = wide_request * NUM_KV_HEADS * GROUP_SIZE + query_head
    table = block_table + wide_request * block_table_stride
    maximum = tl.full([PADDED_GROUP], NEVER, tl.float32)
    total = tl.zeros([PADDED_GROUP], tl.float32)
    weighted = tl.zeros([PADDED_GROUP, HEAD_DIM], tl.float32)

    # A part is 1, 2 or 4 pages or whole groups, so that it never crosses the border of a group
    # without starting at one.
    first_page = 0
    if HAS_GATE:
        _await(progress, 1)
        first_page = tl.load(first_pages + request * NUM_KV_HEADS + head)
    span = tl.cdiv(num_pages - first_page // PAGES_PER_GROUP * PAGES_PER_GROUP, num_parts)
    groups = tl.cdiv(span, PAGES_PER_GROUP) * PAGES_PER_GROUP
    span = tl.where(span <= 1, 1, tl.where(span <= 2, 2, tl.where(span <= 4, 4, groups)))
    unit_span = tl.minimum(span, PAGES_PER_GROUP)
    aligned = first_page // unit_span * unit_span
    low = tl.maximum(aligned + part * span, first_page)
    high = tl.minimum(aligned + (part + 1) * span, num_pages)
    if low < high:
        square = (head * HEAD_DIM + column)[:, None] * HEAD_DIM + column[None, :]
        # The walk has read the rest.
        open_end = seq_len - (num_pages - 1) * PAGE_SIZE
        closed = open_end // CHUNK_SIZE * CHUNK_SIZE
        open_end = closed if HAS_TRANSPORT else open_end - (open_end > closed).to(tl.int32)
        if HAS_TRANSPORT:
            group = (high - 1) // PAGES_PER_GROUP
            if PREFETCH:
                # All parts wait for the walk, which would fetch its products one after another.
                for walked in range(low // PAGES_PER_GROUP, group + 1):
                    end = tl.minimum((walked + 1) * PAGES_PER_GROUP, num_pages - 1) - 1
                    page = tl.load(table + tl.maximum(end, 0)).to(tl.int64)
                    at_head = page * group_product_stride + head * HEAD_DIM * HEAD_DIM
                    _prefetch(group_product + at_head, HEAD_DIM * HEAD_DIM)
            _await(progress, 2 + (num_pages - 1) // PAGES_PER_GROUP - group)
            moved = tl.load(
                group_query + (at_heads * max_groups + group)[:, None] * HEAD_DIM
                + column[None, :],
                mask=live[:, None], other=0.0,
            )  # fmt: skip
            moved, row_scale = normalised(moved)
            group_end = tl.minimum((group + 1) * PAGES_PER_GROUP, num_pages)
            for i in range(0, group_end - high):
                page_idx = group_end - 1 - i
                if (page_idx < num_pages - 1) | (open_end > 0):
                    page = tl.load(table + page_idx).to(tl.int64)
                    factor = tl.load(product + page * product_stride + square)
                    moved = tl.dot(moved.to(TRANSPORT), factor, input_precision="ieee")
        else:
            moved = tl.load(
                q + row * q_stride + query_head[:, None] * HEAD_DIM + column[None, :],
                mask=live[:, None], other=0.0,
            ).to(tl.float32)  # fmt: skip
            moved, row_scale = normalised(moved)
        scale = row_scale * logit_scale
        # One loop over the blocks of all pages, so that loads run ahead across the pages' borders.
        blocks: tl.constexpr = PAGE_SIZE // BLOCK_K
        for i in range(0, (high - low) * blocks):
            page_idx = high - 1 - i // blocks
            first = i % blocks * BLOCK_K
            page = tl.load(table + page_idx).to(tl.int64)
            if HAS_TRANSPORT:  # noqa: SIM102 - a constant, which must not meet a tensor in `and`
                if (first == 0) & (i > 0) & ((page_idx < num_pages - 2) | (open_end > 0)):
                    right = tl.load(table + page_idx + 1).to(tl.int64)
                    factor = tl.load(product + right * product_stride + square)
                    moved = tl.dot(moved.to(TRANSPORT), factor, input_precision="ieee")
            key_slot = first + tl.arange(0, BLOCK_K)
            is_key = key_slot < tl.where(page_idx == num_pages - 1, open_end, PAGE_SIZE)
            at_slot = (head * PAGE_SIZE + key_slot) * HEAD_DIM
            key = tl.load(
                keys + page * keys_stride + at_slot[None, :] + column[:, None],
                mask=is_key[None, :], other=0.0,
            )  # fmt: skip
            # Matrix units are idle here, so query and weights need not be rounded.
            nothing = tl.zeros([PADDED_GROUP, BLOCK_K], tl.float32)
            logits = wide_dot(moved, key, nothing) * scale[:, None]
            if HAS_GATE:
                offset = tl.load(
                    page_offset + at_heads * max_pages + page_idx, mask=live, other=0.0
                )
                gate = tl.load(
                    gates + page * gates_stride + query_head[:, None] * PAGE_SIZE
                    + key_slot[None, :],
                    mask=live[:, None] & is_key[None, :], other=0.0,
                )  # fmt: skip
                logits += gate_scale * (offset[:, None] - gate)
            logits = tl.where(is_key[None, :], logits, float("-inf"))
            value = tl.load(
                values + page * values_stride + at_slot[:, None] + column[None, :],
                mask=is_key[:, None], other=0.0,
            )  # fmt: skip
            maximum, total, weighted = absorb(logits, value, maximum, total, weighted, WIDE=True)
    at_part = at_heads * (num_parts + 1) + part
    tl.store(
        part_output + at_part[:, None] * HEAD_DIM + column[None, :], weighted, mask=live[:, None]
    )
    tl.store(part_sums + at_part * 2, maximum, mask=live)
    tl.store(part_sums + at_part * 2 + 1, total, mask=live)


@triton.jit
def _combine(
    request, head, row, out, out_stride, part_output, part_sums, num_parts,
    NUM_KV_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Add up the parts of all query heads of a kv head."""
    column = tl.arange(0, HEAD_DIM)
    for member in range(0, GROUP_SIZE):
        query_head = head * GROUP_SIZE + member
        first_part = (request.to(tl.int64) * NUM_KV_HEADS * GROUP_SIZE + query_head) * (
            num_parts + 1
        )
        last_part = first_part + num_parts
        maximum = tl.load(part_sums + last_part * 2)
        total = tl.load(part_sums + last_part * 2 + 1)
        weighted = tl.load(part_output + last_part * HEAD_DIM + column)
        for first in range(0, num_parts, BLOCK_PARTS):
            part = first + tl.arange(0, BLOCK_PARTS)
            live = part < num_parts
            at = first_part + part
            part_maximum = tl.load(part_sums + at * 2, mask=live, other=NEVER)
            part_total = tl.load(part_sums + at * 2 + 1, mask=live, other=0.0)
            output = tl.load(
                part_output + at[:, None] * HEAD_DIM + column[None, :],
                mask=live[:, None], other=0.0,
            )  # fmt: skip
            new_maximum = tl.maximum(maximum, tl.max(part_maximum, 0))
            shrink = tl.exp2(maximum - new_maximum)
            share = tl.exp2(part_maximum - new_maximum)
            total = total * shrink + tl.sum(part_total * share, 0)
            weighted = weighted * shrink + tl.sum(output * share[:, None], 0)
            maximum = new_maximum
        tl.store(
            out + row * out_stride + query_head * HEAD_DIM + column,
            (weighted / total).to(out.dtype.element_ty),
        )


@triton.jit(do_not_specialize=["block_table_stride", "num_parts", "max_pages", "max_groups"])
def _attend(
    q, k, v, w, beta, log_fgate, out,
    q_stride, k_stride, v_stride, w_stride, beta_stride, log_fgate_stride, out_stride,
    keys, values, gates, key_norm, product, group_product,
    pending_w, pending_beta, pending_u, pending_mixing,
    keys_stride, values_stride, gates_stride, key_norm_stride, product_stride,
    group_product_stride,
    pending_w_stride, pending_beta_stride, pending_u_stride, pending_mixing_stride,
    query_start_loc, seq_lens, block_table, block_table_stride, progress,
    group_query, page_offset, first_pages, part_output, part_sums, visits,
    num_parts, max_pages, max_groups,
    logit_scale, gate_scale, skipped_bits,
    NUM_KV_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, PADDED_GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_PAGES: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_PARTS: tl.constexpr,
    PAGES_PER_GROUP: tl.constexpr, PUBLISHED_GROUPS: tl.constexpr,
    HAS_TRANSPORT: tl.constexpr, HAS_GATE: tl.constexpr, SKIP: tl.constexpr,
    COUNT: tl.constexpr, TRANSPORT: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """Grid [num_requests * num_kv_heads, 1 + num_parts]: the walk, and the parts."""
    request = tl.program_id(0) // NUM_KV_HEADS
    head = tl.program_id(0) % NUM_KV_HEADS
    row = tl.load(query_start_loc + request)
    if tl.load(query_start_loc + request + 1) - row != 1:
        return
    row = row.to(tl.int64)
    seq_len = tl.load(seq_lens + request)
    own_progress = progress + tl.program_id(0) * 2
    if tl.program_id(1) == 0:
        _walk(
            request, head, row, own_progress,
            q, k, v, w, beta, log_fgate,
            q_stride, k_stride, v_stride, w_stride, beta_stride, log_fgate_stride,
            keys, values, gates, key_norm, product, group_product,
            pending_w, pending_u, pending_mixing,
            keys_stride, values_stride, gates_stride, key_norm_stride, product_stride,
            group_product_stride,
            pending_w_stride, pending_u_stride, pending_mixing_stride,
            seq_len, block_table, block_table_stride,
            group_query, page_offset, first_pages, part_output, part_sums, visits,
            num_parts, max_pages, max_groups,
            logit_scale, gate_scale, skipped_bits,
            NUM_KV_HEADS, GROUP_SIZE, PADDED_GROUP, PAGE_SIZE, CHUNK_SIZE, HEAD_DIM,
            BLOCK_PAGES, PAGES_PER_GROUP, PUBLISHED_GROUPS, HAS_TRANSPORT, HAS_GATE, SKIP,
            COUNT, TRANSPORT,
        )  # fmt: skip
    else:
        # The rightmost part first: the query comes to it first. The leftmost has time.
        part = num_parts - tl.program_id(1)
        if (part == 0) & (seq_len % CHUNK_SIZE != 0):
            table = block_table + request.to(tl.int64) * block_table_stride
            page = tl.load(table + (seq_len - 1) // PAGE_SIZE).to(tl.int64)
            _append(
                row, head, page, (seq_len - 1) % PAGE_SIZE,
                k, v, w, beta, log_fgate,
                k_stride, v_stride, w_stride, beta_stride, log_fgate_stride,
                keys, values, gates, key_norm, pending_w, pending_beta, pending_u, pending_mixing,
                keys_stride, values_stride, gates_stride, key_norm_stride,
                pending_w_stride, pending_beta_stride, pending_u_stride, pending_mixing_stride,
                GROUP_SIZE, PADDED_GROUP, PAGE_SIZE, CHUNK_SIZE, HEAD_DIM,
                HAS_TRANSPORT, HAS_GATE,
            )  # fmt: skip
        _read(
            request, head, part, row, own_progress,
            q, q_stride,
            keys, values, gates, product, group_product,
            keys_stride, values_stride, gates_stride, product_stride, group_product_stride,
            seq_len, block_table, block_table_stride,
            group_query, page_offset, first_pages, part_output, part_sums,
            num_parts, max_pages, max_groups,
            logit_scale, gate_scale,
            NUM_KV_HEADS, GROUP_SIZE, PADDED_GROUP, PAGE_SIZE, CHUNK_SIZE, HEAD_DIM,
            BLOCK_K, PAGES_PER_GROUP, HAS_TRANSPORT, HAS_GATE, TRANSPORT, PREFETCH,
        )  # fmt: skip
    tl.debug_barrier()
    if tl.atomic_add(own_progress + 1, 1, sem="acq_rel") == num_parts:
        tl.debug_barrier()
        _combine(
            request, head, row, out, out_stride, part_output, part_sums, num_parts,
            NUM_KV_HEADS, GROUP_SIZE, HEAD_DIM, BLOCK_PARTS,
        )  # fmt: skip


@dataclass(frozen=True)
class Tiles:
    """Launch options of `_attend`."""

    block_k: int
    num_warps: int
    num_stages: int


def attend_tiles(head_dim: int, dtype: torch.dtype, shared_bytes: int) -> Tiles:
    """Tiles that fit a block's shared memory, tuned on Hopper (227 KiB)."""
    if dtype == torch.float32:
        return Tiles(32, 4, 2)
    # Page numbers are loaded ahead as well, so that two blocks ahead take five stages.
    return Tiles(64, 2 if head_dim <= 64 else 4, 5 if shared_bytes >= 160_000 else 3)


PUBLISHED_GROUPS = 4
"""Groups whose queries the walk publishes at once."""


def close(step: Step) -> torch.Tensor:
    """Store each single new token that ends a chunk, and carry its page's keys.

    Returns:
        int32 [num_requests, num_kv_heads, 2], 0 for these requests: what the programs of `attend`
        tell each other, how far the walk is and how many of them have finished.
    """
    pages, batch = step.pages, step.batch
    _, heads, page_size, head_dim = pages.keys.shape
    block_k = min(page_size, 64 if head_dim <= 64 else 32)
    group_size = step.q.shape[1] // heads
    stored = (
        pages.keys, pages.values, pages.gates, pages.key_norm, pages.product,
        pages.group_product, pages.pending_w, pages.pending_u, pages.pending_mixing,
    )  # fmt: skip
    blocks = page_size // block_k if step.w is not None else 0
    progress = step.q.new_empty(len(batch.seq_lens), heads, 2, dtype=torch.int32)
    _close[len(batch.seq_lens), heads, blocks + 1](
        step.k, step.v, step.w, step.beta, step.log_fgate,
        *strides(step.k, step.v, step.w, step.beta, step.log_fgate),
        *stored, *strides(*stored),
        batch.query_start_loc, batch.seq_lens, batch.block_table, batch.block_table.stride(0),
        progress,
        GROUP_SIZE=group_size, PADDED_GROUP=triton.next_power_of_2(group_size),
        PAGE_SIZE=page_size, CHUNK_SIZE=batch.chunk_size, HEAD_DIM=head_dim,
        BLOCK_K=block_k, PAGES_PER_GROUP=PAGES_PER_GROUP,
        HAS_TRANSPORT=step.w is not None, HAS_GATE=step.log_fgate is not None,
        num_warps=4 if head_dim <= 64 else 8, num_stages=1,
    )  # fmt: skip
    return progress


def attend(
    step: Step,
    progress: torch.Tensor,
    out: torch.Tensor,
    *,
    num_parts: int,
    skip_pages: bool,
    prefetch: bool,
    visits: torch.Tensor | None = None,
) -> None:
    """Store the new token of each request that has just one; write its output to a row of `out`.

    Args:
        step: the call, after `close`.
        progress: what `close` returned.
        out: [num_tokens, num_heads, head_dim].
        num_parts: programs that share the pages of one request and kv head.
        skip_pages: leave out pages whose weight cannot matter; gated kinds only.
        prefetch: bring the products of groups into the L2 cache ahead; Hopper and later.
        visits: int64 [2], to which pages read and pages read without skipping are added.
    """
    pages, batch = step.pages, step.batch
    _, heads, page_size, head_dim = pages.keys.shape
    num_heads, num_requests = step.q.shape[1], len(batch.seq_lens)
    group_size = num_heads // heads
    has_transport, has_gate = step.w is not None, step.log_fgate is not None
    max_pages = batch.block_table.shape[1]
    max_groups = triton.cdiv(max_pages, PAGES_PER_GROUP)

    def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return step.q.new_empty(num_requests, *shape, dtype=dtype)

    group_query = buffer(num_heads, max_groups, head_dim) if has_transport else None
    page_offset = buffer(num_heads, max_pages) if has_gate else None
    first_pages = buffer(heads, dtype=torch.int32) if has_gate else None
    part_output = buffer(num_heads, num_parts + 1, head_dim)
    part_sums = buffer(num_heads, num_parts + 1, 2)
    new = (step.q, step.k, step.v, step.w, step.beta, step.log_fgate, out)
    stored = (
        pages.keys, pages.values, pages.gates, pages.key_norm, pages.product,
        pages.group_product,
        pages.pending_w, pages.pending_beta, pages.pending_u, pages.pending_mixing,
    )  # fmt: skip
    tiles = attend_tiles(head_dim, step.q.dtype, step.shared_bytes)
    _attend[num_requests * heads, 1 + num_parts](
        *new, *strides(*new), *stored, *strides(*stored),
        batch.query_start_loc, batch.seq_lens, batch.block_table, batch.block_table.stride(0),
        progress, group_query, page_offset, first_pages, part_output, part_sums, visits,
        num_parts, max_pages, max_groups,
        step.sm_scale * LOG2_E, step.gate_scale * LOG2_E, SKIPPED_BITS[step.q.dtype],
        NUM_KV_HEADS=heads, GROUP_SIZE=group_size,
        PADDED_GROUP=max(16, triton.next_power_of_2(group_size)),
        PAGE_SIZE=page_size, CHUNK_SIZE=batch.chunk_size, HEAD_DIM=head_dim,
        BLOCK_PAGES=64, BLOCK_K=min(page_size, tiles.block_k), BLOCK_PARTS=64,
        PAGES_PER_GROUP=PAGES_PER_GROUP, PUBLISHED_GROUPS=PUBLISHED_GROUPS,
        HAS_TRANSPORT=has_transport, HAS_GATE=has_gate,
        SKIP=skip_pages and has_gate, COUNT=visits is not None,
        TRANSPORT=TRITON_DTYPE[TRANSPORT_TORCH_DTYPE[step.q.dtype]], PREFETCH=prefetch,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
