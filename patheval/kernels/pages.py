"""The page: how one KV-cache block holds a segment of a PaTH (or FoX) sequence.

A page covers `page_size` consecutive tokens of one sequence and is a run of bytes in these regions:

- keys [num_kv_heads, page_size, head_dim]: carried to the end of the page's last closed chunk, and
  raw after it.
- values [num_kv_heads, page_size, head_dim].
- gates [num_heads, page_size]: running sum of log_fgate from the page's first token, inclusive.
- key_norm [num_kv_heads]: largest |k| of the page; with gates only. No carried key is longer.
- product [num_kv_heads, head_dim, head_dim]: H_c ... H_1 of the page's closed tokens 1 to c.
- group_product, the same shape: in a full page, the product from the first token of its group of
  `PAGES_PER_GROUP` pages (counted from the sequence's start) to its own last token. A query crosses
  a whole group by one product.
- pending_w [num_kv_heads, chunk_size, head_dim] and pending_beta [num_kv_heads, chunk_size]: w and
  beta of the open chunk.
- pending_u, as pending_w, and pending_mixing [num_kv_heads, chunk_size, chunk_size]: rows of the
  open chunk's U and X (README.md, section 2). A row depends on the tokens before it alone.
- conv_tail [conv_size - 1, num_kv_heads * head_dim]: last inputs of the short convolution, by slot
  modulo conv_size - 1.
- shift_tail [2 * num_kv_heads * head_dim]: key and value of the page's last token before they are
  mixed with those of the token before.

A full page never changes again and depends on nothing after it, so sequences can share it. Only the
last, open page of a sequence is written. Values and the convolution's inputs are stored in the
model's dtype; products and pending w in fp16 for a 16-bit model, since no entry of theirs exceeds
1, and so are the keys that they multiply: rounding a key once a chunk to bf16 would show. A key
beyond fp16's 65504 makes its sequence NaN. All else is in fp32 (fp64 for an fp64 model).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

PAGES_PER_GROUP = 8

_ALIGNMENT_BYTES = 16


class Pages(NamedTuple):
    """Typed views of a page pool, with `num_pages` in front of the shapes that the module states.

    A region that the attention kind does not need is None. Writing to a view writes to the pool.
    """

    keys: torch.Tensor
    values: torch.Tensor
    gates: torch.Tensor | None
    key_norm: torch.Tensor | None
    product: torch.Tensor | None
    group_product: torch.Tensor | None
    pending_w: torch.Tensor | None
    pending_beta: torch.Tensor | None
    pending_u: torch.Tensor | None
    pending_mixing: torch.Tensor | None
    conv_tail: torch.Tensor | None
    shift_tail: torch.Tensor | None


@dataclass(frozen=True)
class PageLayout:
    """Sizes of one page of one layer on one rank.

    Attributes:
        page_size: tokens in a page; a multiple of chunk_size.
        chunk_size: tokens after which the open page's keys are carried forward.
        num_heads: query heads on this rank.
        num_kv_heads: key and value heads on this rank; divides num_heads.
        head_dim: channels of a head.
        dtype: of the model: q, k, v and the convolution's inputs.
        has_transport: PaTH kinds: keys are carried by H = I - beta w w^T.
        has_gate: PaTH-FoX and FoX: a log forget gate for each query head.
        conv_size: taps of the short convolution on w; 0 without one.
        has_token_shift: keys or values are mixed with those of the token before.

    Raises:
        ValueError: a size that the page cannot hold.
    """

    page_size: int
    chunk_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    has_transport: bool
    has_gate: bool
    conv_size: int = 0
    has_token_shift: bool = False

    def __post_init__(self) -> None:
        if self.page_size % self.chunk_size:
            raise ValueError(
                f"page_size {self.page_size} is not a multiple of chunk_size {self.chunk_size}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.conv_size > 1 and self.page_size % (self.conv_size - 1):
            raise ValueError(
                f"page_size {self.page_size} is not a multiple of conv_size - 1 = "
                f"{self.conv_size - 1}"
            )

    @property
    def state_dtype(self) -> torch.dtype:
        """Dtype of gates, norms and pending beta: fp32, or fp64 for an fp64 model."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def transport_dtype(self) -> torch.dtype:
        """Dtype of what H is applied to or made of: fp16 for a 16-bit model, else the model's."""
        return torch.float16 if self.dtype.itemsize == 2 else self.dtype

    @property
    def cell_bytes(self) -> int:
        """Bytes of a page divided by its tokens, rounded up so that every page starts aligned."""
        end, _ = self._offsets()
        return _align(math.ceil(end / self.page_size))

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.cell_bytes * self.page_size

    def views(self, pool: torch.Tensor) -> Pages:
        """View a pool of pages by region.

        Args:
            pool: int8, [num_pages, page_bytes], each page contiguous.

        Raises:
            ValueError: another dtype, page size in bytes or stride.
        """
        if pool.dtype != torch.int8 or pool.shape[1:] != (self.page_bytes,) or pool.stride(1) != 1:
            raise ValueError(
                f"pool must be int8 [num_pages, {self.page_bytes}] with contiguous pages, "
                f"got {pool.dtype} {tuple(pool.shape)} with strides {pool.stride()}"
            )
        _, offsets = self._offsets()
        found: dict[str, torch.Tensor | None] = dict.fromkeys(Pages._fields)
        for name, (offset, shape, dtype) in offsets.items():
            size = math.prod(shape) * dtype.itemsize
            found[name] = pool[:, offset : offset + size].view(dtype).unflatten(1, shape)
        return Pages(**found)  # type: ignore[arg-type]

    def empty_pool(self, num_pages: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allocate an uninitialised pool of pages, int8 [num_pages, page_bytes]."""
        return torch.empty(num_pages, self.page_bytes, dtype=torch.int8, device=device)

    def _offsets(self) -> tuple[int, dict[str, tuple[int, tuple[int, ...], torch.dtype]]]:
        head, kv = self.head_dim, self.num_kv_heads
        regions: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "keys": (
                (kv, self.page_size, head),
                self.transport_dtype if self.has_transport else self.dtype,
            ),
            "values": ((kv, self.page_size, head), self.dtype),
        }
        if self.has_gate:
            regions["gates"] = ((self.num_heads, self.page_size), self.state_dtype)
            regions["key_norm"] = ((kv,), self.state_dtype)
        if self.has_transport:
            regions["product"] = ((kv, head, head), self.transport_dtype)
            regions["group_product"] = ((kv, head, head), self.transport_dtype)
            regions["pending_w"] = ((kv, self.chunk_size, head), self.transport_dtype)
            regions["pending_beta"] = ((kv, self.chunk_size), self.state_dtype)
            regions["pending_u"] = ((kv, self.chunk_size, head), self.transport_dtype)
            square = (kv, self.chunk_size, self.chunk_size)
            regions["pending_mixing"] = (square, self.transport_dtype)
        if self.conv_size > 1:
            regions["conv_tail"] = ((self.conv_size - 1, kv * head), self.dtype)
        if self.has_token_shift:
            regions["shift_tail"] = ((2 * kv * head,), self.dtype)
        end, offsets = 0, {}
        for name, (shape, dtype) in regions.items():
            offsets[name] = (end, shape, dtype)
            end = _align(end + math.prod(shape) * dtype.itemsize)
        return end, offsets


def _align(size: int) -> int:
    return math.ceil(size / _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
