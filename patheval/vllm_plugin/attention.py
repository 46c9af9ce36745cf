"""The attention layer that vLLM gives cache pages to, and the backend that it names."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionBackend, AttentionImplBase
from vllm.v1.kv_cache_interface import FullAttentionSpec

from patheval.kernels import PageLayout, paged_attention, short_conv
from patheval.vllm_plugin.config_hooks import CHUNK_SIZE
from patheval.vllm_plugin.metadata import PagedMetadata, PagedMetadataBuilder


class PathAttentionBackend(AttentionBackend):
    """Backend of `PagedAttention`; the layer itself calls the kernels."""

    supported_dtypes: ClassVar = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_name() -> str:
        """Name in vLLM's logs."""
        return "PATHEVAL"

    @staticmethod
    def get_impl_cls() -> type[AttentionImplBase]:
        """Not used: vLLM asks for it only where it builds the layer itself."""
        raise NotImplementedError

    @staticmethod
    def get_builder_cls() -> type[PagedMetadataBuilder]:
        """Builder of `PagedMetadata`."""
        return PagedMetadataBuilder

    @classmethod
    def supports_kv_connector(cls) -> bool:
        """Pages are not keys and values that a connector could move."""
        return False


class PagedAttention(nn.Module, AttentionLayerBase):
    """PaTH, PaTH-FoX or FoX attention over the pages of one layer.

    vLLM finds the layer by its prefix, asks it for its page size, and binds its cache; all state of
    a sequence is in its pages.
    """

    supports_dcp = False

    def __init__(
        self,
        prefix: str,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        has_transport: bool,
        has_gate: bool,
        conv_size: int,
    ) -> None:
        """Register the layer with the engine that is being built.

        Args:
            prefix: unique name that holds one integer, the layer's index.
            num_heads: query heads on this rank.
            num_kv_heads: key and value heads on this rank.
            head_dim: channels of a head.
            has_transport: PaTH or PaTH-FoX.
            has_gate: PaTH-FoX or FoX.
            conv_size: taps of the short convolution on w; 0 without one.
        """
        super().__init__()
        vllm_config = get_current_vllm_config()
        self._layout = PageLayout(
            page_size=vllm_config.cache_config.block_size,
            chunk_size=CHUNK_SIZE,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=vllm_config.model_config.dtype,
            has_transport=has_transport,
            has_gate=has_gate,
            conv_size=conv_size,
        )
        self._prefix = prefix
        self.kv_cache = torch.tensor([])
        layers = vllm_config.compilation_config.static_forward_context
        if prefix in layers:
            raise ValueError(f"two attention layers are called {prefix}")
        layers[prefix] = self

    def get_attn_backend(self) -> type[AttentionBackend]:
        """The backend, whatever vLLM would select for the platform."""
        return PathAttentionBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> FullAttentionSpec:
        """One page as one head of bytes, which keeps it contiguous in every cache layout."""
        return FullAttentionSpec(
            block_size=self._layout.page_size,
            num_kv_heads=1,
            head_size=self._layout.cell_bytes,
            head_size_v=0,
            dtype=torch.int8,
        )

    @property
    def kv_cache(self) -> torch.Tensor:
        """The cache, int8 [num_blocks, 1, block_size, cell_bytes]; empty while vLLM binds none."""
        return self._kv_cache

    @kv_cache.setter
    def kv_cache(self, kv_cache: torch.Tensor) -> None:
        self._kv_cache = kv_cache
        is_bound = kv_cache.numel() > 0
        self._pages = self._layout.views(kv_cache.squeeze(1).flatten(1)) if is_bound else None

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        w: torch.Tensor | None = None,
        conv_weight: torch.Tensor | None = None,
        beta: torch.Tensor | None = None,
        log_fgate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Store the step's tokens and attend.

        Args:
            q: [rows, num_heads * head_dim]; rows may exceed the step's tokens.
            k: [rows, num_kv_heads * head_dim].
            v: [rows, num_kv_heads * head_dim].
            w: [rows, num_kv_heads * head_dim], before convolution and normalisation.
            conv_weight: [num_kv_heads * head_dim, conv_size], or None without a convolution.
            beta: [rows, num_kv_heads], fp32, in (0, 2).
            log_fgate: [rows, num_heads], fp32, natural log, <= 0.

        Returns:
            [rows, num_heads * head_dim]; zero in rows without a token, and in profiling runs.
        """
        out = torch.zeros_like(q)
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            return out
        assert isinstance(metadata, dict) and self._pages is not None
        step = metadata[self._prefix]
        assert isinstance(step, PagedMetadata)
        n, head_dim = step.batch.num_tokens, self._layout.head_dim
        unit_w = None
        if w is not None:
            w = w[:n]
            if conv_weight is not None:
                w = short_conv(w, conv_weight, self._pages, step.batch, impl="reference")
            unit_w = unit_norm(w.unflatten(-1, (-1, head_dim)))
        out[:n] = paged_attention(
            q[:n].unflatten(-1, (-1, head_dim)),
            k[:n].unflatten(-1, (-1, head_dim)),
            v[:n].unflatten(-1, (-1, head_dim)),
            unit_w,
            None if beta is None else beta[:n],
            None if log_fgate is None else log_fgate[:n],
            self._pages,
            step.batch,
            sm_scale=head_dim**-0.5,
            gate_inside_scale=self._layout.has_transport,
            impl="reference",
        ).flatten(-2)
        return out


def unit_norm(w: torch.Tensor) -> torch.Tensor:
    """Scale each head to unit L2 norm in fp32, as fla does: a zero w stays zero."""
    w = w.float()
    return w * torch.rsqrt(w.square().sum(-1, keepdim=True) + 1e-6)
