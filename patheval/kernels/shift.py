"""The token before each token, continued across steps through the pages.

One implementation for all devices, of a few gathers: it waits for no device, has no shape that
depends on a length, and can be held by a CUDA graph.
"""

from __future__ import annotations

import torch

from patheval.kernels.batch import PagedBatch
from patheval.kernels.pages import Pages


def previous_tokens(x: torch.Tensor, pages: Pages, batch: PagedBatch) -> torch.Tensor:
    """Each token's predecessor in its sequence, for layers that mix the two.

    Writes the `shift_tail` of every page that receives a token.

    Args:
        x: [num_tokens, 2 * num_kv_heads * head_dim], the pages' dtype.
        pages: pool views of one layer; shift_tail is read and written.
        batch: where the tokens lie.

    Returns:
        As x: row i is the x of the token before token i, and zero for the first of a sequence. Rows
        that no request owns hold anything.

    Raises:
        ValueError: x does not fit the pages or the batch.
    """
    tail = pages.shift_tail
    if tail is None or x.shape != (batch.num_tokens, tail.shape[1]) or x.dtype != tail.dtype:
        wanted = "no shift_tail" if tail is None else f"[{batch.num_tokens}, {tail.shape[1]}]"
        raise ValueError(f"the pages take {wanted}, got x {list(x.shape)} of {x.dtype}")
    if not batch.num_tokens:
        return x
    starts, page_size = batch.query_start_loc.long(), batch.page_size
    row = torch.arange(batch.num_tokens, device=x.device)
    # Surplus rows of a padded step write what row 0 writes.
    row = torch.where(row < starts[-1], row, 0)
    request = torch.searchsorted(starts[1:], row, right=True).clamp_max(len(starts) - 2)
    offset = row - starts[request]
    position = batch.context_lens[request] + offset

    def page_of(position: torch.Tensor, request: torch.Tensor) -> torch.Tensor:
        return batch.block_table[request, position // page_size].long()

    requests = torch.arange(len(starts) - 1, device=x.device)
    context = batch.context_lens
    page_before = page_of((context - 1).clamp_min(0), requests)
    before = tail[page_before]
    # All rows of one page write its last row, so that no two writes differ.
    to_page_end = page_size - 1 - position % page_size
    last = torch.minimum(row + to_page_end, starts[request + 1] - 1)
    tail[page_of(position, request)] = x[last]
    # At a page's start the token before may have been stored in this step by another request.
    at_page_start = (context % page_size == 0)[:, None]
    before = torch.where(at_page_start, tail[page_before], before)
    before = torch.where((context > 0)[:, None], before, 0.0)
    return torch.where((offset > 0)[:, None], x[(row - 1).clamp_min(0)], before[request])
