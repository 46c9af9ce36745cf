"""The attention layer that vLLM gives cache pages to, and the backend that it names."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.utils.torch_utils import direct_register_custom_op
from vllm.v1.attention.backend import AttentionBackend, AttentionImplBase
from vllm.v1.kv_cache_interface import FullAttentionSpec

from patheval.kernels import (
    PageLayout,
    householder_vectors,
    paged_attention,
    paged_attention_workspace,
    previous_tokens,
)
from patheval.vllm_plugin.config_hooks import (
    ATTENTION_OP,
    CHUNK_SIZE,
    SHIFT_OP,
    attention_options,
)
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
    """PaTH, PaTH-FoX, FoX or plain attention over the pages of one layer.

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
        has_token_shift: bool = False,
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
            has_token_shift: `previous` will be called in each step.
        """
        super().__init__()
        vllm_config = get_current_vllm_config()
        self._options = attention_options(vllm_config)
        self.kernel_impl: str = self._options.impl
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
            has_token_shift=has_token_shift,
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
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        torch.ops.vllm.patheval_paged_attention(
            q, k, v, w, conv_weight, beta, log_fgate, out, self._prefix
        )
        return out

    def previous(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the step's unshifted keys and values, and return those one token earlier.

        Args:
            x: [rows, 2 * num_kv_heads * head_dim].

        Returns:
            As x; zero before a sequence's first token.
        """
        out = torch.zeros_like(x)
        torch.ops.vllm.patheval_previous_tokens(x, out, self._prefix)
        return out

    def shift(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """`previous`, into the rows of `out` that have a token."""
        step = self._step()
        if step is not None and self._pages is not None:
            n = step.batch.num_tokens
            out[:n] = previous_tokens(x[:n], self._pages, step.batch)

    def _step(self) -> PagedMetadata | None:
        """The step that runs; None in profiling runs."""
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            return None
        assert isinstance(metadata, dict)
        step = metadata[self._prefix]
        assert isinstance(step, PagedMetadata)
        return step

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        w: torch.Tensor | None,
        conv_weight: torch.Tensor | None,
        beta: torch.Tensor | None,
        log_fgate: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """`forward`, into the rows of `out` that have a token; the others keep what they hold."""
        step = self._step()
        if step is None:
            # vLLM measures the memory of this call and leaves as much free.
            paged_attention_workspace(q, self._layout, impl=self._options.impl)
            return
        assert self._pages is not None
        n, head_dim = step.batch.num_tokens, self._layout.head_dim
        unit_w = None
        if w is not None:
            unit_w = householder_vectors(
                w[:n], conv_weight, self._pages, step.batch, impl=self._options.impl
            )
        paged_attention(
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
            impl=self._options.impl,
            skip_pages=self._options.skip_pages,
            out=out[:n].unflatten(-1, (-1, head_dim)),
        )


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor | None,
    conv_weight: torch.Tensor | None,
    beta: torch.Tensor | None,
    log_fgate: torch.Tensor | None,
    out: torch.Tensor,
    layer_name: str,
) -> None:
    layer = get_forward_context().no_compile_layers[layer_name]
    assert isinstance(layer, PagedAttention)
    layer.attend(q, k, v, w, conv_weight, beta, log_fgate, out)


def _attend_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor | None,
    conv_weight: torch.Tensor | None,
    beta: torch.Tensor | None,
    log_fgate: torch.Tensor | None,
    out: torch.Tensor,
    layer_name: str,
) -> None:
    pass


# Ops of their own, so that torch.compile can split the model at them: what they do depends on the
# step's metadata, which no compiled graph may hold.
direct_register_custom_op(
    op_name=ATTENTION_OP.removeprefix("vllm::"),
    op_func=_attend,
    mutates_args=["out"],
    fake_impl=_attend_fake,
)


def _shift(x: torch.Tensor, out: torch.Tensor, layer_name: str) -> None:
    layer = get_forward_context().no_compile_layers[layer_name]
    assert isinstance(layer, PagedAttention)
    layer.shift(x, out)


def _shift_fake(x: torch.Tensor, out: torch.Tensor, layer_name: str) -> None:
    pass


direct_register_custom_op(
    op_name=SHIFT_OP.removeprefix("vllm::"),
    op_func=_shift,
    mutates_args=["out"],
    fake_impl=_shift_fake,
)
