"""Engine settings of paged PaTH and FoX attention: defaults, and refusals of what cannot be."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vllm.config import CompilationMode, CUDAGraphMode
from vllm.model_executor.models.config import VerifyAndUpdateConfig

from patheval.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

CHUNK_SIZE = 32
DEFAULT_PAGE_SIZE = 256

_logger = logging.getLogger(__name__)


class PagedAttentionConfig(VerifyAndUpdateConfig):
    """vLLM calls this once, before it chooses block size, backend and compilation."""

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """Apply the defaults and check the settings.

        Raises:
            UnsupportedError: A setting under which the results would be wrong or the state not
                kept.
        """
        cache = vllm_config.cache_config
        if not cache.user_specified_block_size:
            cache.block_size = DEFAULT_PAGE_SIZE
            # The platform hooks that run later replace any block size that no user asked for.
            cache.user_specified_block_size = True
        for setting, value, fix in _unsupported(vllm_config):
            raise UnsupportedError(
                f"{setting}={value} cannot be used with PaTH and FoX attention; {fix}"
            )
        # The attention is not yet a custom op that torch.compile could split the model at.
        compilation = vllm_config.compilation_config
        compilation.mode = CompilationMode.NONE
        compilation.cudagraph_mode = CUDAGraphMode.NONE


class RopeConfig(VerifyAndUpdateConfig):
    """The same for RoPE checkpoints, which vLLM's own attention serves."""

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """Check what vLLM would find out only in the middle of a run.

        Raises:
            UnsupportedError: The CPU's attention kernel has no code for the head size.
        """
        from vllm.platforms import current_platform

        head_dim = vllm_config.model_config.get_head_size()
        if current_platform.is_cpu():
            from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

            if not CPUAttentionBackend.supports_head_size(head_dim):
                raise UnsupportedError(
                    f"head_dim={head_dim} is not one that vLLM's RoPE attention has on the CPU "
                    f"({CPUAttentionBackend.get_supported_head_sizes()}); run it on a GPU or with "
                    "--model path-ref"
                )


def _unsupported(vllm_config: VllmConfig) -> list[tuple[str, object, str]]:
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel, speculative = vllm_config.parallel_config, vllm_config.speculative_config
    transfer, backend = vllm_config.kv_transfer_config, vllm_config.attention_config.backend
    model_dtype = str(model.dtype).removeprefix("torch.")
    checks: list[tuple[bool, str, object, str]] = [
        (
            cache.block_size % CHUNK_SIZE != 0,
            "block_size",
            cache.block_size,
            f"use a multiple of {CHUNK_SIZE} such as {DEFAULT_PAGE_SIZE}",
        ),
        (
            cache.cache_dtype not in ("auto", model_dtype),
            "kv_cache_dtype",
            cache.cache_dtype,
            "use auto: pages hold the model's dtype",
        ),
        (
            cache.prefix_match_unit not in (None, cache.block_size),
            "prefix_match_unit",
            cache.prefix_match_unit,
            "leave it out: only whole pages can be shared",
        ),
        (
            speculative is not None,
            "speculative_config",
            speculative and speculative.method,
            "leave it out: pages cannot be rolled back",
        ),
        (
            transfer is not None and transfer.kv_connector is not None,
            "kv_transfer_config",
            transfer and transfer.kv_connector,
            "leave it out: pages have no KV connector",
        ),
        (
            getattr(cache, "kv_offloading_size", None) is not None,
            "kv_offloading_size",
            getattr(cache, "kv_offloading_size", None),
            "leave it out: pages have no KV connector",
        ),
        (
            cache.kv_sharing_fast_prefill,
            "kv_sharing_fast_prefill",
            True,
            "leave it out: every layer has its own pages",
        ),
        (
            model.quantization is not None,
            "quantization",
            model.quantization,
            "leave it out: weights are used as stored",
        ),
        (
            vllm_config.lora_config is not None,
            "enable_lora",
            True,
            "merge the adapter into the checkpoint",
        ),
        (
            parallel.decode_context_parallel_size > 1,
            "decode_context_parallel_size",
            parallel.decode_context_parallel_size,
            "use tensor_parallel_size",
        ),
        (
            parallel.prefill_context_parallel_size > 1,
            "prefill_context_parallel_size",
            parallel.prefill_context_parallel_size,
            "use tensor_parallel_size",
        ),
        (parallel.use_ubatching, "enable_dbo", True, "leave it out: a step is one batch"),
        (
            backend is not None,
            "attention_backend",
            getattr(backend, "name", backend),
            "leave it out: the layers bring their own",
        ),
    ]
    return [(setting, value, fix) for failed, setting, value, fix in checks if failed]
