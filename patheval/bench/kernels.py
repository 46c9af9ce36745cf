"""`patheval bench kernels` and `decode`: the attention of one layer, against other kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from patheval.bench.rivals import decode_rival, prefill_rival
from patheval.bench.steps import Shape, check, decode_step, prefill_step
from patheval.bench.timing import graph_median_ms, median_ms

PREFILL_SHAPES = {
    "1x64k-16x64": Shape(1, 65536, 16, 64),
    "1x64k-8x128": Shape(1, 65536, 8, 128),
    "16x2k-32x64": Shape(16, 2048, 32, 64),
    "4x8k-16x128": Shape(4, 8192, 16, 128),
    "2x16k-32x64": Shape(2, 16384, 32, 64),
    "1x64k-16x64-path-fox": Shape(1, 65536, 16, 64, "path-fox", -0.02),
    "1x64k-16x64-fox": Shape(1, 65536, 16, 64, "fox", -0.02),
    # 65,536 tokens in shorter and shorter sequences, for the plot of time against length.
    "2x32k-16x64": Shape(2, 32768, 16, 64),
    "4x16k-16x64": Shape(4, 16384, 16, 64),
    "8x8k-16x64": Shape(8, 8192, 16, 64),
    "16x4k-16x64": Shape(16, 4096, 16, 64),
    "32x2k-16x64": Shape(32, 2048, 16, 64),
    "4x16k-16x64-path-fox": Shape(4, 16384, 16, 64, "path-fox", -0.02),
    "16x4k-16x64-path-fox": Shape(16, 4096, 16, 64, "path-fox", -0.02),
    "4x16k-16x64-fox": Shape(4, 16384, 16, 64, "fox", -0.02),
    "16x4k-16x64-fox": Shape(16, 4096, 16, 64, "fox", -0.02),
}
DECODE_SHAPES = {
    "1x64k-16x64": Shape(1, 65536, 16, 64),
    "16x16k-16x64": Shape(16, 16384, 16, 64),
    "32x2k-16x64": Shape(32, 2048, 16, 64),
    "1x64k-8x128": Shape(1, 65536, 8, 128),
    "1x64k-16x64-path-fox": Shape(1, 65536, 16, 64, "path-fox", -0.02),
}


def bench_prefill(
    names: Sequence[str], rivals: Sequence[str], page_size: int
) -> Iterator[dict[str, Any]]:
    """Rows of the prefill of whole sequences, the pages left ready for decode."""
    for name in names:
        shape = PREFILL_SHAPES[name]
        error = check(shape, page_size)
        step = prefill_step(shape, page_size)
        out = torch.empty_like(step.tokens.q)
        ours = median_ms(partial(step.run, out=out))
        facts = {"relative_error": error, "page_size": page_size}
        if shape.mean_log_fgate is not None:
            facts["share_skipped"] = step.share_skipped()
        del step, out
        times = _rival_times(rivals, partial(prefill_rival, shape=shape), median_ms)
        yield from _rows("prefill", name, shape, ours, times, facts)


def bench_decode(
    names: Sequence[str], rivals: Sequence[str], page_size: int
) -> Iterator[dict[str, Any]]:
    """Rows of one decode step in a CUDA graph; a rival's best page size of 16 and 256 counts."""
    for name in names:
        shape = DECODE_SHAPES[name]
        error = check(shape, page_size)
        prefilled = prefill_step(shape, page_size, spare_tokens=64)
        prefilled.run()
        # Half of a chunk is open, as on average.
        for i in range(16):
            prefilled = decode_step(replace(shape, seq_len=shape.seq_len + i), prefilled)
            prefilled.run()
        step, out = prefilled, torch.empty_like(prefilled.tokens.q)
        ours = graph_median_ms(partial(step.run, out=out))
        facts = {"relative_error": error, "page_size": page_size}
        if shape.mean_log_fgate is not None:
            facts["share_skipped"] = step.share_skipped()
        del step, prefilled, out
        times: dict[str, float] = {}
        for rival_page_size in (16, 256):
            found = _rival_times(
                rivals,
                partial(decode_rival, shape=shape, page_size=rival_page_size),
                graph_median_ms,
            )
            times |= {rival: min(ms, times.get(rival, ms)) for rival, ms in found.items()}
        yield from _rows("decode", name, shape, ours, times, facts)


def _rival_times(
    rivals: Sequence[str],
    make: Callable[[str], Callable[[], object]],
    timer: Callable[[Callable[[], object]], float],
) -> dict[str, float]:
    return {rival: timer(make(rival)) for rival in rivals}


def _rows(
    bench: str,
    name: str,
    shape: Shape,
    ours: float,
    rivals: dict[str, float],
    facts: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    common = {"bench": bench, "name": name, "shape": asdict(shape)}
    ratios = {rival: ours / ms for rival, ms in rivals.items()}
    yield common | {"impl": "patheval", "median_ms": ours, "ratio_to": ratios} | facts
    for rival, ms in rivals.items():
        yield common | {"impl": rival, "median_ms": ms, "ratio_to": {}}
