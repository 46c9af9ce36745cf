"""From vLLM's description of a step to the kernels' batch: where the two vocabularies meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec

from patheval.kernels import PagedBatch
from patheval.vllm_plugin.config_hooks import CHUNK_SIZE


@dataclass
class PagedMetadata(AttentionMetadata):
    """One step, for all layers of a cache group."""

    batch: PagedBatch


class PagedMetadataBuilder(AttentionMetadataBuilder[PagedMetadata]):
    """Cuts each step into page segments on the host."""

    _cudagraph_support = AttentionCGSupport.NEVER

    def __init__(
        self,
        kv_cache_spec: FullAttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        """See vLLM's base class."""
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._page_size = kv_cache_spec.block_size

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> PagedMetadata:
        """See vLLM's base class; waits for the device's sequence lengths."""
        common = common_attn_metadata
        batch = PagedBatch.build(
            common.query_start_loc_cpu[: common.num_reqs + 1].tolist(),
            common.seq_lens[: common.num_reqs].tolist(),
            common.block_table_tensor,
            page_size=self._page_size,
            chunk_size=CHUNK_SIZE,
        )
        return PagedMetadata(batch)
