"""`--model path-ref`: lm-eval over the plain PyTorch model, without vLLM.

One prompt at a time, greedy, in float32 by default: the slow side of a parity check.
"""

import inspect
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from patheval.errors import RequestError, UnsupportedError
from patheval.reference_model import ReferenceModel

from ._arguments import choice, refuse_unknown
from ._checkpoint_lm import ARGUMENTS, CheckpointLM, Generation

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
        refuse_unknown(kwargs, {*inspect.signature(PathRefLM.__init__).parameters, *ARGUMENTS})
        dtype = choice("dtype", dtype, DTYPE_CHOICES)
        resolved_device = _resolve_device(device)
        super().__init__(pretrained, **kwargs)
        self._device = resolved_device
        dtype_name = self._checkpoint.config.dtype if dtype == "auto" else dtype
        self._model = ReferenceModel(
            self._checkpoint, device=self._device, dtype=getattr(torch, dtype_name)
        )
        config_eos = self._model.config.eos_token_id
        self._stop_ids = {self.tokenizer.eos_token_id, config_eos} - {None}

    def get_model_info(self) -> dict[str, object]:
        """Describes the model and the run for lm-eval's results file."""
        return super().get_model_info() | {
            "backend": "path-ref",
            "platform": str(self._device),
            "torch_version": torch.__version__,
        }

    @property
    def _model_dtype(self) -> str:
        return str(self._model.dtype).removeprefix("torch.")

    def _score(
        self, requests: Sequence[tuple[list[int], list[int]]]
    ) -> Iterator[tuple[int, tuple[float, bool]]]:
        for index, (context, continuation) in enumerate(requests):
            hidden, _ = self._model.prefill((context + continuation)[:-1])
            targets = torch.tensor(continuation, dtype=torch.long, device=self._device)
            total, is_greedy = 0.0, True
            rows = hidden[len(context) - 1 :]
            for start in range(0, len(continuation), _LOGITS_ROWS):
                part = slice(start, start + _LOGITS_ROWS)
                logprobs = torch.log_softmax(self._model.logits(rows[part]), dim=-1)
                chosen = logprobs.gather(1, targets[part].unsqueeze(1))
                total += float(chosen.sum(dtype=torch.float64))
                is_greedy &= bool((logprobs.argmax(dim=-1) == targets[part]).all())
            yield index, (total, is_greedy)

    def _generate(self, requests: Sequence[Generation]) -> Iterator[tuple[int, str]]:
        for request in requests:
            _check_greedy(request.sampling)
        for index, request in enumerate(requests):
            yield index, self._continue(request)

    def _continue(self, request: Generation) -> str:
        hidden, cache = self._model.prefill(request.prompt)
        generated: list[int] = []
        text = ""
        while True:
            logits = self._model.logits(hidden[-1:])
            if logits.isnan().any():
                raise self._not_a_number(len(request.prompt))
            token_id = int(logits.argmax())
            if token_id in self._stop_ids:
                return text
            generated.append(token_id)
            text = self._codec.decode_after(request.prompt, generated)
            is_stopped = any(stop and stop in text for stop in request.until)
            if is_stopped or len(generated) == request.max_gen_toks:
                return text
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
