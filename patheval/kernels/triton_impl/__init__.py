"""Paged attention in Triton, for NVIDIA GPUs from Ampere on, and for CPUs by Triton's interpreter.

Never waits for the device. A batch of single tokens makes the same launches whatever the lengths.
"""

from __future__ import annotations

import torch

from patheval.kernels.batch import PagedBatch
from patheval.kernels.pages import Pages
from patheval.kernels.triton_impl import decode
from patheval.kernels.triton_impl.common import Step, optional_rows, rows
from patheval.kernels.triton_impl.conv import householder_vectors
from patheval.kernels.triton_impl.device import device_facts
from patheval.kernels.triton_impl.prefill import Prefill, workspace_bytes

__all__ = ["householder_vectors", "paged_attention", "workspace_bytes"]


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
    visits: torch.Tensor | None = None,
) -> None:
    """See `patheval.kernels.api.paged_attention`.

    `visits`, int64 [2], has added to it the page reads (a block of queries and a page) that were
    done and those that there would be without skipping.
    """
    facts = device_facts(q.device)
    step = Step(
        rows(q),
        rows(k),
        rows(v),
        optional_rows(w),
        optional_rows(beta),
        optional_rows(log_fgate),
        pages=pages,
        batch=batch,
        sm_scale=sm_scale,
        gate_scale=sm_scale if gate_inside_scale else 1.0,
        shared_bytes=facts.shared_bytes,
    )
    prefill = Prefill(step, skip_pages=skip_pages, visits=visits) if batch.max_segments else None
    has_decode = batch.max_query_len == 1 or len(batch.seq_lens) > 1
    if prefill is not None:
        prefill.write()
    progress = decode.close(step) if has_decode else None
    if prefill is not None:
        prefill.write_group_products()
        prefill.attend(out)
    if progress is not None:
        programs = len(batch.seq_lens) * pages.keys.shape[1]
        # About as many as run at once; fewer parts make fewer steps of the query inside a group.
        num_parts = min(128, max(1, 4 * facts.num_processors // programs))
        decode.attend(
            step, progress, out,
            num_parts=num_parts, skip_pages=skip_pages, prefetch=facts.has_bulk_copies,
            visits=visits,
        )  # fmt: skip
