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
    """Describes each step without waiting for the device."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

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
        """See vLLM's base class.

        The tensors of a step of single tokens are vLLM's own buffers, which a CUDA graph that was
        captured with them reads again at each replay.
        """
        common, num_reqs = common_attn_metadata, common_attn_metadata.num_reqs
        if common.max_query_len <= 1:
            return PagedMetadata(
                PagedBatch.of_single_tokens(
                    common.num_actual_tokens,
                    common.query_start_loc[: num_reqs + 1],
                    common.seq_lens[:num_reqs],
                    common.block_table_tensor,
                    page_size=self._page_size,
                    chunk_size=CHUNK_SIZE,
                )
            )
        upper_bounds = common.seq_lens_cpu_upper_bound
        return PagedMetadata(
            PagedBatch.build(
                common.query_start_loc_cpu[: num_reqs + 1].tolist(),
                common.seq_lens[:num_reqs],
                common.block_table_tensor,
                page_size=self._page_size,
                chunk_size=CHUNK_SIZE,
                host_seq_lens=None if upper_bounds is None else upper_bounds[:num_reqs].tolist(),
                device_query_start_loc=common.query_start_loc[: num_reqs + 1],
            )
        )
