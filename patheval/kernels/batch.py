"""One step's work: which tokens of which request fall into which page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from patheval.kernels.pages import PAGES_PER_GROUP
from patheval.kernels.transfer import to_device


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
class FarGroups:
    """Whole groups of pages that queries of long prefills can read from afar, on the device.

    Attributes:
        request: int32 [num_groups], row of the request.
        group_idx: int32 [num_groups], group of the request, from 0.
        base: int32 [num_requests], the first of a request's groups here; -1 where it has none.
    """

    request: torch.Tensor
    group_idx: torch.Tensor
    base: torch.Tensor


FAR_QUERIES = 512
"""New tokens from which on a request is a long prefill."""


@dataclass(frozen=True)
class PagedBatch:
    """Requests of one step and where their tokens lie.

    What an implementation needs beside the fields is worked out at first use and kept, so that the
    layers of a model share it.

    Attributes:
        num_tokens: new tokens of all requests.
        max_query_len: most new tokens of a request.
        max_segments: at least as many as the pages that receive a token, of requests with more
            than one new token.
        page_size: tokens in a page.
        chunk_size: tokens in a chunk; divides page_size.
        query_start_loc: int32 [num_requests + 1]; request r owns rows [r], ..., [r + 1] - 1.
        seq_lens: int32 [num_requests], tokens before the step plus new tokens.
        block_table: int32 [num_requests, max_pages], physical page of each request's page.
        host_query_lens: new tokens of each request.
        host_seq_lens: seq_lens or upper bounds of them, where the host knows any.
    """

    num_tokens: int
    max_query_len: int
    max_segments: int
    page_size: int
    chunk_size: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    host_query_lens: Sequence[int] = ()
    host_seq_lens: Sequence[int] | None = None

    @classmethod
    def build(
        cls,
        query_start_loc: Sequence[int],
        seq_lens: Sequence[int] | torch.Tensor,
        block_table: torch.Tensor,
        *,
        page_size: int,
        chunk_size: int,
        host_seq_lens: Sequence[int] | None = None,
        device_query_start_loc: torch.Tensor | None = None,
    ) -> PagedBatch:
        """Describe a step from host lengths, without waiting for the device.

        Args:
            query_start_loc: num_requests + 1 row numbers; request r owns rows [r], ..., [r + 1] -
                1.
            seq_lens: per request, tokens before the step plus new tokens; a request may have no
                new token. A tensor on the block table's device is taken as it is, unchecked.
            block_table: int [num_requests, max_pages], in any order of pages; sets the device.
            page_size: tokens in a page.
            chunk_size: tokens in a chunk; divides page_size.
            host_seq_lens: upper bounds of a seq_lens tensor that are known on the host; without
                them, long prefills take a slower way.
            device_query_start_loc: query_start_loc as int32 on the device, if it is there already.

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
        if query_start_loc[0] != 0:
            raise ValueError(f"query_start_loc must start at 0, got {query_start_loc[0]}")
        query_lens = [query_start_loc[r + 1] - query_start_loc[r] for r in range(num_requests)]
        if not isinstance(seq_lens, torch.Tensor):
            for request, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
                if not 0 <= query_len <= seq_len or seq_len > block_table.shape[1] * page_size:
                    raise ValueError(
                        f"request {request} has {query_len} new of {seq_len} tokens and "
                        f"{block_table.shape[1]} pages of {page_size}"
                    )
            host_seq_lens = seq_lens
            seq_lens = _numbers(seq_lens, device)
        if device_query_start_loc is None:
            device_query_start_loc = _numbers(query_start_loc, device)
        return cls(
            num_tokens=sum(query_lens),
            max_query_len=max(query_lens, default=0),
            max_segments=sum((n - 2) // page_size + 2 for n in query_lens if n > 1),
            page_size=page_size,
            chunk_size=chunk_size,
            query_start_loc=device_query_start_loc,
            seq_lens=seq_lens.to(torch.int32),
            block_table=block_table[:num_requests].to(torch.int32),
            host_query_lens=query_lens,
            host_seq_lens=host_seq_lens,
        )

    @classmethod
    def of_single_tokens(
        cls,
        num_tokens: int,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        *,
        page_size: int,
        chunk_size: int,
    ) -> PagedBatch:
        """Describe a step in which no request has more than one new token, by device tensors.

        Nothing is checked, copied or read back: a captured graph sees later values of the tensors.

        Args:
            num_tokens: rows of the step's tensors, at least as many as there are new tokens.
            query_start_loc: int32 [num_requests + 1].
            seq_lens: int32 [num_requests].
            block_table: int32 [num_requests or more, max_pages].
            page_size: tokens in a page.
            chunk_size: tokens in a chunk; divides page_size.
        """
        return cls(
            num_tokens=num_tokens,
            max_query_len=1,
            max_segments=0,
            page_size=page_size,
            chunk_size=chunk_size,
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_table=block_table[: len(seq_lens)],
        )

    @cached_property
    def segments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Pages that receive tokens of requests with more than one, longest history first.

        Returns:
            int32 [max_segments] each, on the device: row of the request, -1 in surplus entries, and
            page of the request, from 0. Made without waiting for the device.
        """
        query_lens = self.query_start_loc.diff()
        first = (self.seq_lens - query_lens) // self.page_size
        last = (self.seq_lens - 1) // self.page_size
        counts = torch.where(query_lens > 1, last - first + 1, 0)
        ends = counts.cumsum(0)
        index = torch.arange(self.max_segments, device=ends.device)
        request = torch.searchsorted(ends, index, right=True)
        is_surplus = request == len(ends)
        request = request.clamp_max(len(ends) - 1)
        page_idx = first[request] + index - (ends - counts)[request]
        page_idx = torch.where(is_surplus, -1, page_idx)
        order = page_idx.argsort(descending=True, stable=True)
        request = torch.where(is_surplus, -1, request)
        return request[order].to(torch.int32), page_idx[order].to(torch.int32)

    @cached_property
    def far_groups(self) -> FarGroups | None:
        """Groups left of the last one of each long prefill; None without, or on unknown lengths."""
        if self.host_seq_lens is None:
            return None
        request: list[int] = []
        group_idx: list[int] = []
        base: list[int] = []
        lens = zip(self.host_query_lens, self.host_seq_lens, strict=True)
        for row, (query_len, seq_len) in enumerate(lens):
            is_long = query_len >= FAR_QUERIES
            count = (seq_len - 1) // (PAGES_PER_GROUP * self.page_size) if is_long else 0
            base.append(len(request) if count else -1)
            request += [row] * count
            group_idx += range(count)
        if not request:
            return None
        device = self.seq_lens.device
        return FarGroups(*(_numbers(own, device) for own in (request, group_idx, base)))

    @cached_property
    def context_lens(self) -> torch.Tensor:
        """Tokens of each request before this step, int64 [num_requests]."""
        return (self.seq_lens - self.query_start_loc.diff()).to(torch.int64)

    @cached_property
    def token_request(self) -> torch.Tensor:
        """Row of each token's request, int64 [num_tokens]."""
        query_lens = self.query_start_loc.diff().to(torch.int64)
        request = torch.arange(len(query_lens), device=query_lens.device)
        return request.repeat_interleave(query_lens, output_size=self.num_tokens)

    @cached_property
    def token_offset(self) -> torch.Tensor:
        """Place of each token among its request's new tokens, int64 [num_tokens]."""
        row = torch.arange(self.num_tokens, device=self.query_start_loc.device)
        return row - self.query_start_loc[self.token_request]

    @cached_property
    def groups(self) -> list[SegmentGroup]:
        """All segments by block width, single tokens apart; waits for the device's lengths."""
        query_start_loc, seq_lens = self.query_start_loc.tolist(), self.seq_lens.tolist()
        segments: dict[tuple[int, bool], list[tuple[int, ...]]] = defaultdict(list)
        for request, seq_len in enumerate(seq_lens):
            context_len = seq_len - (query_start_loc[request + 1] - query_start_loc[request])
            position = context_len
            while position < seq_len:
                page_idx, start = divmod(position, self.page_size)
                end = min(self.page_size, start + seq_len - position)
                closed_before = start - start % self.chunk_size
                closed_after = end - end % self.chunk_size
                token = query_start_loc[request] + position - context_len
                width = self.chunk_size
                while width < end - closed_before:
                    width *= 2
                width = min(width, self.page_size)
                base = min(closed_before, self.page_size - width)
                segments[width, end - start == 1].append(
                    (request, page_idx, start, end, closed_before, closed_after, base, token)
                )
                position += end - start
        device = self.block_table.device
        return [_group(width, rows, device) for (width, _), rows in segments.items()]


def _numbers(host: Sequence[int], device: torch.device) -> torch.Tensor:
    return to_device(torch.tensor(list(host), dtype=torch.int32), device)


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
