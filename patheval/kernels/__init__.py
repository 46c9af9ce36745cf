"""PaTH, PaTH-FoX and FoX attention over paged state."""

from patheval.kernels.api import (
    Impl,
    available_impls,
    householder_vectors,
    paged_attention,
    paged_attention_workspace,
)
from patheval.kernels.batch import PagedBatch
from patheval.kernels.pages import PageLayout, Pages
from patheval.kernels.shift import previous_tokens

__all__ = [
    "Impl",
    "PageLayout",
    "PagedBatch",
    "Pages",
    "available_impls",
    "householder_vectors",
    "paged_attention",
    "paged_attention_workspace",
    "previous_tokens",
]
