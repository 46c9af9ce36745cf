"""Engine settings of paged PaTH and FoX attention: defaults, and refusals of what cannot be."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.model_executor.models.config import VerifyAndUpdateConfig

from patheval.errors import UnsupportedError
from patheval.kernels import Impl, available_impls
from patheval.kernels.validation import TRITON_HEAD_DIMS

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ATTENTION_OP = "vllm::patheval_paged_attention"
SHIFT_OP = "vllm::patheval_previous_tokens"
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
        compilation = vllm_config.compilation_config
        if attention_options(vllm_config).impl == "reference":
            # It reads lengths back to the host, which no CUDA graph can hold.
            compilation.mode = CompilationMode.NONE
            compilation.cudagraph_mode = CUDAGraphMode.NONE
        elif compilation.splitting_ops is None:
            own = [ATTENTION_OP, SHIFT_OP]
            compilation.splitting_ops = [*CompilationConfig._attention_ops, *own]


@dataclass(frozen=True)
class AttentionOptions:
    """What vLLM's `additional_config={"patheval": {...}}` can choose.

    Attributes:
        impl: implementation of `patheval.kernels`; "triton" on GPUs and "reference" elsewhere
            where none is named.
        skip_pages: whether gated kinds leave out pages that cannot matter.
    """

    impl: Impl
    skip_pages: bool = True


def attention_options(vllm_config: VllmConfig) -> AttentionOptions:
    """Read the options of an engine.

    Raises:
        UnsupportedError: An unknown option or value, or an implementation that cannot run here.
    """
    from vllm.platforms import current_platform

    found = (vllm_config.additional_config or {}).get("patheval", {})
    default: Impl = "triton" if current_platform.is_cuda() else "reference"
    if not isinstance(found, dict):
        raise UnsupportedError(
            f"additional_config has {found!r} under 'patheval'; pass a mapping such as "
            '{"impl": "reference"}'
        )
    options: dict[str, Any] = {"impl": default} | found
    if unknown := options.keys() - {field.name for field in fields(AttentionOptions)}:
        raise UnsupportedError(
            f"additional_config names the unknown patheval option {min(unknown)!r}; the options "
            "are impl and skip_pages"
        )
    if options["impl"] not in available_impls():
        raise UnsupportedError(
            f"the attention implementation {options['impl']!r} cannot run here; use one of "
            f"{', '.join(available_impls())}"
        )
    if not isinstance(options.get("skip_pages", True), bool):
        raise UnsupportedError(
            f"the patheval option skip_pages is {options['skip_pages']!r}; pass true or false"
        )
    return AttentionOptions(**options)


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
    is_triton = attention_options(vllm_config).impl == "triton"
    checks: list[tuple[bool, str, object, str]] = [
        (
            is_triton and model.get_head_size() not in TRITON_HEAD_DIMS,
            "head_dim",
            model.get_head_size(),
            f"the Triton kernels have {', '.join(map(str, TRITON_HEAD_DIMS))}: run it with "
            'additional_config={"patheval": {"impl": "reference"}}',
        ),
        (
            is_triton and cache.block_size & (cache.block_size - 1) != 0,
            "block_size",
            cache.block_size,
            f"use a power of two such as {DEFAULT_PAGE_SIZE}",
        ),
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
