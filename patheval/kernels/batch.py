"""One step's work as page segments: which tokens of which request fall into which page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SegmentGroup:
    """Segments that are computed together, each the new tokens of one request in one page.

    A segment's block is the `width` slots from `base` on; it covers every token of the page whose w
    has not been applied to the page's keys before this step. All tensors are int64 [num_segments],
    on the batch's device, sorted by descending page_idx.

    Attributes:
        width: slots of a block: chunk_size (decode and short extends), doubled up to page_size.
        num_queries: most new tokens of a segment; 1 in decode.
        request: row of the request in the batch.
        page_idx: which page of its request, from 0.
        start: first new slot.
        end: slot after the last new one.
        closed_before: slots before this one were carried before the step; a multiple of chunk_size.
        closed_after: the same after the step.
        base: first slot of the block, at most closed_before.
        token: row of the first new token in the step's tensors.
        num_reaching: num_reaching[d] segments (the first ones) have a page d pages to the left.
        num_closing: segments that close at least one chunk.
        any_closed: whether any segment finds earlier keys in its own page.
    """

    width: int
    num_queries: int
    request: torch.Tensor
    page_idx: torch.Tensor
    start: torch.Tensor
    end: torch.Tensor
    closed_before: torch.Tensor
    closed_after: torch.Tensor
    base: torch.Tensor
    token: torch.Tensor
    num_reaching: list[int]
    num_closing: int
    any_closed: bool


@dataclass(frozen=True)
class PagedBatch:
    """Requests of one step and where their tokens lie.

    Attributes:
        num_tokens: new tokens of all requests.
        block_table: int64 [num_requests, max_pages], physical page of each request's page.
        context_lens: int64 [num_requests], tokens of the request before this step.
        token_request: int64 [num_tokens], row of the token's request.
        token_offset: int64 [num_tokens], the token's place among its request's new tokens.
        groups: segments by block width, single tokens apart.
    """

    num_tokens: int
    page_size: int
    block_table: torch.Tensor
    context_lens: torch.Tensor
    token_request: torch.Tensor
    token_offset: torch.Tensor
    groups: list[SegmentGroup]

    @classmethod
    def build(
        cls,
        query_start_loc: Sequence[int],
        seq_lens: Sequence[int],
        block_table: torch.Tensor,
        *,
        page_size: int,
        chunk_size: int,
    ) -> PagedBatch:
        """Cut the new tokens of a step into page segments.

        Args:
            query_start_loc: num_requests + 1 row numbers; request r owns rows [r], ..., [r + 1] -
                1.
            seq_lens: per request, tokens before the step plus new tokens. A request may have no new
                token.
            block_table: int [num_requests, max_pages], in any order of pages; sets the device.
            page_size: tokens in a page.
            chunk_size: tokens in a chunk; divides page_size.

        Raises:
            ValueError: lengths that contradict each other or the block table.
        """
        device = block_table.device
        num_requests = len(seq_lens)
        if len(query_start_loc) != num_requests + 1 or block_table.shape[0] < num_requests:
            raise ValueError(
                f"{num_requests} seq_lens need {num_requests + 1} query_start_loc and "
                f"{num_requests} block table rows, got {len(query_start_loc)} and "
                f"{block_table.shape[0]}"
            )
        query_lens = [query_start_loc[r + 1] - query_start_loc[r] for r in range(num_requests)]
        segments: dict[tuple[int, bool], list[tuple[int, ...]]] = defaultdict(list)
        for request, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
            if not 0 <= query_len <= seq_len or seq_len > block_table.shape[1] * page_size:
                raise ValueError(
                    f"request {request} has {query_len} new of {seq_len} tokens and "
                    f"{block_table.shape[1]} pages of {page_size}"
                )
            position = seq_len - query_len
            while position < seq_len:
                page_idx, start = divmod(position, page_size)
                end = min(page_size, start + seq_len - position)
                closed_before = start - start % chunk_size
                closed_after = end - end % chunk_size
                token = query_start_loc[request] + position - (seq_len - query_len)
                width = chunk_size
                while width < end - closed_before:
                    width *= 2
                width = min(width, page_size)
                base = min(closed_before, page_size - width)
                segments[width, end - start == 1].append(
                    (request, page_idx, start, end, closed_before, closed_after, base, token)
                )
                position += end - start
        lens = torch.tensor(query_lens, dtype=torch.int64)
        token_request = torch.repeat_interleave(torch.arange(num_requests), lens)
        starts = torch.tensor(query_start_loc[:-1], dtype=torch.int64)
        token_offset = torch.arange(len(token_request)) + query_start_loc[0] - starts[token_request]
        return cls(
            num_tokens=sum(query_lens),
            page_size=page_size,
            block_table=block_table[:num_requests].to(torch.int64),
            context_lens=(torch.tensor(list(seq_lens), dtype=torch.int64) - lens).to(device),
            token_request=token_request.to(device),
            token_offset=token_offset.to(device),
            groups=[_group(width, rows, device) for (width, _), rows in segments.items()],
        )


def _group(width: int, rows: list[tuple[int, ...]], device: torch.device) -> SegmentGroup:
    rows = sorted(rows, key=lambda row: -row[1])
    request, page_idx, start, end, closed_before, closed_after, base, token = (
        torch.tensor(column, dtype=torch.int64, device=device) for column in zip(*rows, strict=True)
    )
    distances = range(rows[0][1] + 1)
    return SegmentGroup(
        width=width,
        num_queries=max(row[3] - row[2] for row in rows),
        request=request,
        page_idx=page_idx,
        start=start,
        end=end,
        closed_before=closed_before,
        closed_after=closed_after,
        base=base,
        token=token,
        num_reaching=[sum(row[1] >= distance for row in rows) for distance in distances],
        num_closing=sum(row[5] > row[4] for row in rows),
        any_closed=any(row[4] > 0 for row in rows),
    )
