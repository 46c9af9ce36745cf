"""Medians of CUDA-event timings, in milliseconds."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def median_ms(call: Callable[[], object], *, repeats: int = 15, warmup: int = 3) -> float:
    """Median time of `call`'s work on the GPU, launches included as far as they delay it."""
    for _ in range(warmup):
        call()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def graph_median_ms(call: Callable[[], object], *, calls: int = 20) -> float:
    """Median time of one of `calls` calls in a CUDA graph, as a decode step replays them."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return median_ms(graph.replay) / calls
