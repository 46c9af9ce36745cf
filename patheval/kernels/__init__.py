"""PaTH, PaTH-FoX and FoX attention over paged state."""

from patheval.kernels.api import Impl, available_impls, paged_attention, short_conv
from patheval.kernels.batch import PagedBatch
from patheval.kernels.pages import PageLayout, Pages

__all__ = [
    "Impl",
    "PageLayout",
    "PagedBatch",
    "Pages",
    "available_impls",
    "paged_attention",
    "short_conv",
]
