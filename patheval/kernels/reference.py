"""Paged attention in plain PyTorch: any device, any floating dtype, no host loop over tokens.

Computes in fp32 (fp64 for fp64 inputs). Every page of the batch is written before any query reads,
since a request may start right after pages that another request of the same batch is only now
filling. The maths and the names (`u`, `mixing`) are in README.md beside this file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from patheval.kernels.batch import PagedBatch, SegmentGroup
from patheval.kernels.pages import PAGES_PER_GROUP, Pages


def householder_vectors(
    x: torch.Tensor, conv_weight: torch.Tensor | None, pages: Pages, batch: PagedBatch
) -> torch.Tensor:
    """See `patheval.kernels.api.householder_vectors`."""
    if conv_weight is not None:
        assert pages.conv_tail is not None
        x = _short_conv(x, conv_weight, pages.conv_tail, batch)
    return unit_norm(x.unflatten(-1, (-1, pages.keys.shape[-1])))


def unit_norm(y: torch.Tensor) -> torch.Tensor:
    """Scale each head [..., head_dim] to unit L2 norm in fp32 (fp64): a zero stays zero."""
    y = y.to(torch.promote_types(y.dtype, torch.float32))
    return y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)


def _short_conv(
    x: torch.Tensor, weight: torch.Tensor, conv_tail: torch.Tensor, batch: PagedBatch
) -> torch.Tensor:
    num_taps = weight.shape[1]
    at_page_start = (batch.context_lens % batch.page_size == 0)[:, None, None]
    before = _read_conv_history(conv_tail, batch)
    _write_conv_tail(x, conv_tail, batch)
    # At a page's start the history may have been written in this very step by another request.
    history = torch.where(at_page_start, _read_conv_history(conv_tail, batch), before)

    taps = weight.to(torch.promote_types(x.dtype, torch.float32))
    row = torch.arange(batch.num_tokens, device=x.device)
    out = x.to(taps.dtype) * taps[:, -1]
    for lag in range(1, num_taps):
        own = x[(row - lag).clamp_min(0)]
        earlier = history[batch.token_request, (lag - 1 - batch.token_offset).clamp_min(0)]
        lagged = torch.where((batch.token_offset >= lag)[:, None], own, earlier)
        out = out + lagged.to(taps.dtype) * taps[:, -1 - lag]
    return F.silu(out).to(x.dtype)


def _read_conv_history(conv_tail: torch.Tensor, batch: PagedBatch) -> torch.Tensor:
    """Inputs before each request's first new token, latest first: [R, conv_size - 1, channels]."""
    num_slots = conv_tail.shape[1]
    lag = torch.arange(1, num_slots + 1, device=conv_tail.device)
    position = batch.context_lens[:, None] - lag
    page_idx = position.clamp_min(0) // batch.page_size
    page = batch.block_table.gather(1, page_idx)
    # num_slots divides page_size, so a position and its slot in the page have the same remainder.
    history = conv_tail[page, position % num_slots]
    return torch.where((position >= 0)[..., None], history, 0.0)


def _write_conv_tail(x: torch.Tensor, conv_tail: torch.Tensor, batch: PagedBatch) -> None:
    num_slots = conv_tail.shape[1]
    for group in batch.groups:
        page = batch.block_table[group.request, group.page_idx]
        for lag in range(1, num_slots + 1):
            slot = group.end - lag
            is_new = slot >= group.start
            rows = (group.token + slot - group.start)[is_new]
            conv_tail[page[is_new], slot[is_new] % num_slots] = x[rows]


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor | None,
    beta: torch.Tensor | None,
    log_fgate: torch.Tensor | None,
    pages: Pages,
    batch: PagedBatch,
    out: torch.Tensor,
    *,
    sm_scale: float,
    gate_inside_scale: bool,
    skip_pages: bool,
) -> None:
    """See `patheval.kernels.api.paged_attention`; reads every page."""
    blocks = [_load_block(group, k, w, beta, pages, batch) for group in batch.groups]
    for block in blocks:
        _write_pages(block, v, log_fgate, pages)
    for block in blocks:
        _write_group_products(block, pages, batch)
    gate_scale = sm_scale if gate_inside_scale else 1.0
    for block in blocks:
        _attend(block, q, out, pages, batch, sm_scale, gate_scale)


@dataclass
class _Block:
    """A segment group, with its own pages as they were before this step.

    S segments; C slots in a block, M in a page; H key-value heads; D channels. Keys, w and beta are
    zero at slots that hold nothing, so that H = I there.

    Attributes:
        page: [S], physical page.
        slot: [S, C], place in the page.
        token: [S, C], row in the step's tensors, 0 where not is_new.
        is_new: [S, C].
        page_keys: [S, H, M, D], keys of earlier closed chunks, carried to closed_before.
        keys: [S, H, C, D], raw keys of pending and new tokens.
        w: [S, H, C, D], None without transport, as all that follow.
        u: [S, H, C, D], M W, where M is the WY matrix.
        mixing: [S, H, C, C], M strict_lower(W K^T).
        product: [S, H, D, D], H_c ... H_1 of the page's earlier closed tokens.
    """

    group: SegmentGroup
    page: torch.Tensor
    slot: torch.Tensor
    token: torch.Tensor
    is_new: torch.Tensor
    page_keys: torch.Tensor
    keys: torch.Tensor
    w: torch.Tensor | None = None
    beta: torch.Tensor | None = None
    u: torch.Tensor | None = None
    mixing: torch.Tensor | None = None
    product: torch.Tensor | None = None


def _load_block(
    group: SegmentGroup,
    k: torch.Tensor,
    w: torch.Tensor | None,
    beta: torch.Tensor | None,
    pages: Pages,
    batch: PagedBatch,
) -> _Block:
    dtype = torch.promote_types(k.dtype, torch.float32)
    page = batch.block_table[group.request, group.page_idx]
    slot = group.base[:, None] + torch.arange(group.width, device=k.device)
    is_new = (slot >= group.start[:, None]) & (slot < group.end[:, None])
    is_pending = (slot >= group.closed_before[:, None]) & (slot < group.start[:, None])
    token = torch.where(is_new, group.token[:, None] + slot - group.start[:, None], 0)

    def merge(new: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
        """Rows of new tokens [T, H, D] and of pending ones [S, H, C, D]; zero elsewhere."""
        rows = torch.where(is_new[:, :, None, None], new[token].to(dtype), 0.0).transpose(1, 2)
        return torch.where(is_pending[:, None, :, None], stored.to(dtype), rows)

    page_keys = pages.keys[page].to(dtype)
    is_closed = torch.arange(page_keys.shape[2], device=k.device) < group.closed_before[:, None]
    block = _Block(
        group=group,
        page=page,
        slot=slot,
        token=token,
        is_new=is_new,
        page_keys=torch.where(is_closed[:, None, :, None], page_keys, 0.0),
        keys=merge(k, _take_slots(page_keys, slot)),
    )
    if w is not None:
        assert beta is not None and pages.product is not None
        assert pages.pending_w is not None and pages.pending_beta is not None
        chunk_slot = (slot - group.closed_before[:, None]).clamp(0, pages.pending_w.shape[2] - 1)
        block.w = merge(w, _take_slots(pages.pending_w[page], chunk_slot))
        stored_beta = _take_slots(pages.pending_beta[page][..., None], chunk_slot)
        block.beta = merge(beta[..., None], stored_beta)
        block.u, block.mixing = _wy(block.w, block.beta, block.keys)
        # The product of a page that has no closed chunk yet is whatever the page held before.
        identity = torch.eye(w.shape[-1], dtype=dtype, device=w.device)
        has_closed = (group.closed_before > 0)[:, None, None, None]
        block.product = torch.where(has_closed, pages.product[page].to(dtype), identity)
    return block


def _take_slots(stored: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Rows [S, H, C, D] of `stored` [S, H, slots, D] at `slot` [S, C]."""
    index = slot[:, None, :, None].expand(-1, stored.shape[1], -1, stored.shape[3])
    return stored.gather(2, index)


def _wy(
    w: torch.Tensor, beta: torch.Tensor, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve (I + strict_lower(b W W^T)) M = b for M W and M strict_lower(W K^T)."""
    weighted = beta * w
    system = (weighted @ w.transpose(-1, -2)).tril(-1)
    right = torch.cat([weighted, (weighted @ keys.transpose(-1, -2)).tril(-1)], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    return solved[..., : w.shape[-1]], solved[..., w.shape[-1] :]


def _write_pages(
    block: _Block, v: torch.Tensor, log_fgate: torch.Tensor | None, pages: Pages
) -> None:
    group = block.group
    segment, column = block.is_new.nonzero(as_tuple=True)
    page, slot, token = (
        block.page[segment],
        block.slot[segment, column],
        block.token[segment, column],
    )
    pages.values[page, :, slot] = v[token].to(pages.values.dtype)
    pages.keys[page, :, slot] = block.keys[segment, :, column].to(pages.keys.dtype)
    if log_fgate is not None:
        assert pages.gates is not None
        last = pages.gates[block.page, :, (group.start - 1).clamp_min(0)]
        carried = torch.where(group.start[:, None] > 0, last, 0.0)
        steps = torch.where(block.is_new[..., None], log_fgate[block.token], 0.0)
        gates = carried[:, None] + steps.to(carried.dtype).cumsum(1)
        pages.gates[page, :, slot] = gates[segment, column]
        assert pages.key_norm is not None
        norm = torch.where(block.is_new[:, None], block.keys.norm(dim=-1), 0.0).amax(-1)
        earlier = torch.where(group.start[:, None] > 0, pages.key_norm[block.page], 0.0)
        pages.key_norm[block.page] = torch.maximum(norm, earlier)
    if block.w is not None:
        assert block.beta is not None
        assert pages.pending_w is not None and pages.pending_beta is not None
        if group.num_closing:
            _carry(block, pages)
        is_open = slot >= group.closed_after[segment]
        segment, column, page, slot = (x[is_open] for x in (segment, column, page, slot))
        chunk_slot = slot - group.closed_after[segment]
        pages.pending_w[page, :, chunk_slot] = block.w[segment, :, column].to(pages.pending_w.dtype)
        # The stored w is rounded; beta makes up for the change of its length.
        stored = pages.pending_w[page, :, chunk_slot].to(block.w.dtype).square().sum(-1)
        exact = block.w[segment, :, column].square().sum(-1)
        pages.pending_beta[page, :, chunk_slot] = (
            block.beta[segment, :, column, 0] * exact / torch.where(stored > 0, stored, 1.0)
        )
        _write_open_chunks(block, pages)


def _write_open_chunks(block: _Block, pages: Pages) -> None:
    """Store U and X of the chunks that are open after the step."""
    assert block.w is not None and block.beta is not None
    assert pages.pending_u is not None and pages.pending_mixing is not None
    group = block.group
    is_open = (group.end > group.closed_after).nonzero()[:, 0]
    lane = torch.arange(pages.pending_u.shape[2], device=block.w.device)
    slot = group.closed_after[is_open, None] + lane
    is_live = (slot < group.end[is_open, None])[:, None, :, None]
    column = (slot - group.base[is_open, None]).clamp_max(block.w.shape[2] - 1)
    w, beta, keys = (
        torch.where(is_live, _take_slots(x[is_open], column), 0.0)
        for x in (block.w, block.beta, block.keys)
    )
    u, mixing = _wy(w, beta, keys)
    page = block.page[is_open]
    pages.pending_u[page] = u.to(pages.pending_u.dtype)
    pages.pending_mixing[page] = mixing.to(pages.pending_mixing.dtype)


def _carry(block: _Block, pages: Pages) -> None:
    """Carry the pages' keys and products over the chunks that close in this step."""
    assert block.w is not None and block.u is not None and block.mixing is not None
    assert block.product is not None and pages.product is not None
    group = block.group
    closing = (group.closed_after > group.closed_before).nonzero()[:, 0]
    page, block_slot = block.page[closing], block.slot[closing]
    before, after = group.closed_before[closing, None], group.closed_after[closing, None]
    closes = (block_slot < after)[:, None, :, None]
    w, u, mixing = (torch.where(closes, x[closing], 0.0) for x in (block.w, block.u, block.mixing))

    def write(keys: torch.Tensor, slot: torch.Tensor, selected: torch.Tensor) -> None:
        row, column = selected.nonzero(as_tuple=True)
        pages.keys[page[row], :, slot[row, column]] = keys[row, :, column].to(pages.keys.dtype)

    page_keys = block.page_keys[closing]
    page_slot = torch.arange(page_keys.shape[2], device=page.device).expand(len(page), -1)
    write(page_keys - (page_keys @ u.transpose(-1, -2)) @ w, page_slot, page_slot < before)
    keys = block.keys[closing] - mixing.transpose(-1, -2) @ w
    write(keys, block_slot, (block_slot >= before) & (block_slot < after))
    product = block.product[closing]
    product = product - w.transpose(-1, -2) @ (u @ product)
    pages.product[page] = product.to(pages.product.dtype)


def _write_group_products(block: _Block, pages: Pages, batch: PagedBatch) -> None:
    """Store the product since the start of the group in the pages that this step fills."""
    if pages.product is None:
        return
    assert pages.group_product is not None
    group = block.group
    full = (group.end == batch.page_size).nonzero()[:, 0]
    request, page_idx = group.request[full], group.page_idx[full]
    product = pages.product[block.page[full]].to(block.keys.dtype)
    for distance in range(1, PAGES_PER_GROUP):
        is_in_group = (page_idx % PAGES_PER_GROUP >= distance).nonzero()[:, 0]
        before = batch.block_table[request[is_in_group], page_idx[is_in_group] - distance]
        product[is_in_group] = product[is_in_group] @ pages.product[before].to(product.dtype)
    pages.group_product[block.page[full]] = product.to(pages.group_product.dtype)


def _attend(
    block: _Block,
    q: torch.Tensor,
    out: torch.Tensor,
    pages: Pages,
    batch: PagedBatch,
    sm_scale: float,
    gate_scale: float,
) -> None:
    """Attend the block's queries to their own page, then to the pages on its left, nearest first.

    Queries are rows [S, H, heads of a kv head * Q, D], one for each new token and query head.
    `moved` are the queries carried to the left end of what they have visited, `gate` is each one's
    log gate summed from there on.
    """
    group = block.group
    num_kv_heads, dtype = block.keys.shape[1], block.keys.dtype
    row = torch.arange(group.num_queries, device=q.device)
    slot = group.start[:, None] + row
    is_query = slot < group.end[:, None]
    token = torch.where(is_query, group.token[:, None] + row, 0)
    moved = q[token].transpose(1, 2).reshape(len(token), num_kv_heads, -1, q.shape[-1]).to(dtype)
    num_shared = moved.shape[2] // group.num_queries
    softmax = _OnlineSoftmax(moved)

    page_slot = torch.arange(batch.page_size, device=q.device)
    is_written = (page_slot < group.end[:, None])[:, None, :, None]
    page_values = torch.where(is_written, pages.values[block.page].to(dtype), 0.0)
    gate = page_gates = block_gates = None
    if pages.gates is not None:
        page_gates = pages.gates[block.page]
        gate = _take_gates(page_gates, slot.clamp_max(batch.page_size - 1)).reshape(moved.shape[:3])
        block_gates = _per_kv_head(_take_gates(page_gates, block.slot), num_kv_heads)
        page_gates = _per_kv_head(page_gates, num_kv_heads)

    def add(
        keys_dot: torch.Tensor,
        key_gates: torch.Tensor | None,
        values: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> None:
        """Add keys: dots [S, H, rows, keys], gates [S, H, heads, keys], mask [S, Q or 1, keys]."""
        logits = (sm_scale * keys_dot).unflatten(2, (num_shared, -1))
        if gate is not None and key_gates is not None:
            own = gate.unflatten(2, (num_shared, -1))
            logits = logits + gate_scale * (own[..., None] - key_gates[..., None, :])
        if mask is not None:
            logits = torch.where(mask[:, None, None], logits, -torch.inf)
        softmax.add(logits.flatten(2, 3), values)

    is_live = (block.slot >= group.closed_before[:, None])[:, None, :]
    is_visible = is_live & (block.slot[:, None, :] <= slot[:, :, None])
    dot = moved @ block.keys.mT
    if block.w is not None:
        assert block.u is not None and block.mixing is not None
        on_w = (moved @ block.w.mT).unflatten(2, (num_shared, -1))
        on_w = torch.where(is_visible[:, None, None], on_w, 0.0).flatten(2, 3)
        dot = dot - on_w @ block.mixing
        moved = moved - on_w @ block.u
    add(dot, block_gates, _take_slots(page_values, block.slot), is_visible)

    if group.any_closed:
        is_closed = (page_slot < group.closed_before[:, None])[:, None, :]
        add(moved @ block.page_keys.mT, page_gates, page_values, is_closed)
    if block.product is not None:
        moved = moved @ block.product

    for distance, num_reaching in enumerate(group.num_reaching[1:], start=1):
        page = batch.block_table[
            group.request[:num_reaching], group.page_idx[:num_reaching] - distance
        ]
        moved = moved[:num_reaching]
        if gate is not None and pages.gates is not None:
            page_gates = _per_kv_head(pages.gates[page], num_kv_heads)
            total = page_gates[..., -1:].expand(-1, -1, -1, group.num_queries).flatten(2, 3)
            gate = gate[:num_reaching] + total
        add(moved @ pages.keys[page].to(dtype).mT, page_gates, pages.values[page].to(dtype), None)
        if pages.product is not None:
            moved = moved @ pages.product[page].to(dtype)

    segment, column = is_query.nonzero(as_tuple=True)
    attended = softmax.result().reshape(len(token), q.shape[1], group.num_queries, -1)
    out[token[segment, column]] = attended[segment, :, column].to(out.dtype)


def _take_gates(gates: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Gates [S, num_heads, slots] at `slot` [S, N]: [S, num_heads, N]."""
    return gates.gather(2, slot[:, None].expand(-1, gates.shape[1], -1))


def _per_kv_head(gates: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """[S, num_heads, slots] as [S, num_kv_heads, heads of a kv head, slots]."""
    return gates.unflatten(1, (num_kv_heads, -1))


class _OnlineSoftmax:
    """Softmax-weighted sum of values that arrive in parts, each for all or the first segments."""

    def __init__(self, queries: torch.Tensor) -> None:
        self._maximum = torch.full_like(queries[..., :1], -torch.inf)
        self._total = torch.zeros_like(self._maximum)
        self._weighted = torch.zeros_like(queries)

    def add(self, logits: torch.Tensor, values: torch.Tensor) -> None:
        """Add keys with logits [n, H, rows, keys] and values [n, H, keys, D]."""
        n = len(logits)
        maximum = torch.maximum(self._maximum[:n], logits.amax(-1, keepdim=True))
        finite = torch.where(maximum == -torch.inf, 0.0, maximum)
        shrink = torch.exp(self._maximum[:n] - finite)
        weights = torch.exp(logits - finite)
        self._maximum[:n] = maximum
        self._total[:n] = self._total[:n] * shrink + weights.sum(-1, keepdim=True)
        self._weighted[:n] = self._weighted[:n] * shrink + weights @ values

    def result(self) -> torch.Tensor:
        """[S, H, rows, D]; NaN for rows that saw no key."""
        return self._weighted / self._total
