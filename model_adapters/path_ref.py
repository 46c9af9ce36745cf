"""`--model path-ref`: lm-eval over the plain PyTorch model, without vLLM.

One prompt at a time, greedy, in float32 by default: the slow side of a parity check.
"""

import inspect
import itertools
import logging
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from patheval.errors import RequestError, UnsupportedError
from patheval.reference_model import ReferenceModel

from ._answering import Generation
from ._arguments import choice, refuse_unknown
from ._checkpoint_lm import ARGUMENTS, CheckpointLM
from ._jobs import AnswerStream, GenerationJob, Job, Scores, ScoringJob, Text

DTYPE_CHOICES = ("auto", "bfloat16", "float16", "float32", "float64")

_LOGITS_ROWS = 1024  # vocabulary-sized rows held at once
_NEUTRAL_VALUES = (None, False, 1)

_logger = logging.getLogger(__name__)


class PathRefLM(CheckpointLM):
    """Checkpoints in flash-linear-attention's format behind lm-eval's interface.

    Args:
        pretrained: Checkpoint folder, `zoo:NAME` or Hugging Face id.
        device: `auto`, `cpu` or a CUDA device. lm-eval always passes one; without CUDA the model
            runs on the CPU and says so.
        dtype: `float32`, another of `DTYPE_CHOICES`, or `auto` for the config's.
        batch_size: Accepted because lm-eval passes it; prompts run one by one.
        max_batch_size: Likewise.
        **kwargs: Arguments of `CheckpointLM`.

    Raises:
        CheckpointError: The checkpoint or its tokenizer is damaged or inconsistent.
        UnsupportedError: An argument or the checkpoint's kind is not supported.
        PrerequisiteError: The checkpoint or the tokenizer cannot be had.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        device: str = "auto",
        dtype: str = "float32",
        batch_size: int | str | None = None,
        max_batch_size: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        self.check_arguments({"dtype": dtype, **kwargs})
        resolved_device = _resolve_device(device)
        super().__init__(pretrained, **kwargs)
        self._device = resolved_device
        dtype_name = self._checkpoint.config.dtype if dtype == "auto" else dtype
        self._model = ReferenceModel(
            self._checkpoint, device=self._device, dtype=getattr(torch, dtype_name)
        )
        self._checkpoint.check_unchanged()
        config_eos = self._model.config.eos_token_id
        self._stop_ids = {self.tokenizer.eos_token_id, config_eos} - {None}

    @classmethod
    def check_arguments(cls, arguments: Mapping[str, Any]) -> None:
        """Checks names and values; see `CheckpointLM.check_arguments`."""
        refuse_unknown(arguments, {*inspect.signature(PathRefLM.__init__).parameters, *ARGUMENTS})
        choice("dtype", arguments.get("dtype", "float32"), DTYPE_CHOICES)
        super().check_arguments(arguments)

    @property
    def _model_dtype(self) -> str:
        return str(self._model.dtype).removeprefix("torch.")

    def _engine_facts(self) -> dict[str, object]:
        return {
            "backend": "path-ref",
            "platform": str(self._device),
            "device_name": (
                torch.cuda.get_device_name(self._device)
                if self._device.type == "cuda"
                else platform.machine()
            ),
            "kernel_impl": "reference_model",
        }

    def _engine_settings(self, generation: Generation) -> Generation:
        _check_greedy(generation.sampling)
        return generation

    def _run(self, jobs: Sequence[Job], units: Sequence[Sequence[int]]) -> AnswerStream:
        for number in itertools.chain.from_iterable(units):
            job = jobs[number]
            if isinstance(job, ScoringJob):
                yield [(number, self._score_job(job))]
            else:
                yield [(number, self._continue(job))]

    def _score_job(self, job: ScoringJob) -> Scores:
        hidden, _ = self._model.prefill(job.prompt.tolist())
        rows = torch.from_numpy(job.rows).to(self._device)
        targets = torch.from_numpy(job.targets.astype(np.int64)).to(self._device)
        logprobs, is_greedy = [], []
        for start in range(0, len(rows), _LOGITS_ROWS):
            part = slice(start, start + _LOGITS_ROWS)
            all_logprobs = torch.log_softmax(self._model.logits(hidden[rows[part]]), dim=-1)
            own = all_logprobs.gather(1, targets[part].unsqueeze(1)).squeeze(1)
            logprobs.append(own.double().cpu().numpy())
            is_greedy.append((all_logprobs.amax(dim=-1) <= own).cpu().numpy())
        return Scores(np.concatenate(logprobs), np.concatenate(is_greedy))

    def _continue(self, job: GenerationJob) -> Text:
        request: Generation = job.settings
        prompt = request.prompt.tolist()
        hidden, cache = self._model.prefill(prompt)
        generated: list[int] = []
        text = ""
        while True:
            logits = self._model.logits(hidden[-1:])
            if not logits.logsumexp(dim=-1).isfinite().all():
                return Text(text, len(generated), is_nan=True)
            token_id = int(logits.argmax())
            if token_id in self._stop_ids:
                return Text(text, len(generated))
            generated.append(token_id)
            text = self._codec.decode_after(prompt, generated)
            is_stopped = any(stop and stop in text for stop in request.until)
            if is_stopped or len(generated) == request.max_gen_toks:
                return Text(text, len(generated))
            hidden = self._model.decode(token_id, cache)


def _check_greedy(sampling: dict[str, Any]) -> None:
    for key, value in sampling.items():
        if value not in _NEUTRAL_VALUES:
            raise RequestError(
                f"{key} is {value!r} but path-ref only decodes greedily; remove it from "
                "--gen_kwargs or the task's generation_kwargs"
            )


def _resolve_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        _logger.info("device is %s but CUDA is not available; running on the CPU", device)
        return torch.device("cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise UnsupportedError(
            f"device is {device!r}; pass auto, cpu or cuda:INDEX as --device"
        ) from error
