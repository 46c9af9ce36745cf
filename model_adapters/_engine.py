"""One vLLM engine: jobs in, answers out as they finish."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from patheval.errors import EngineError, RequestError, UnsupportedError

from ._jobs import Answers, AnswerStream, Job, Scores, ScoringJob, Text

# Sequences that wait behind those in the running batch, so that it is always full.
_QUEUE_PER_SEQUENCE = 1


class Engine:
    """A vLLM engine in this process, or in one that vLLM starts.

    Args:
        arguments: Those of `vllm.LLM`.

    Attributes:
        max_requests: Open requests that keep the batch full.

    Raises:
        TypeError: vLLM does not know an argument.
        ValueError: vLLM refuses the arguments.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        # NaN must not pass for an answer; log-probabilities, which would show it, cost the front
        # end more than all else that it does for a token.
        os.environ["VLLM_COMPUTE_NANS_IN_LOGITS"] = "1"
        import vllm

        vllm.envs.disable_envs_cache()  # of an engine that this process had before
        from patheval.vllm_plugin.scoring import EXTENSION
        from patheval.vllm_plugin.scoring_client import ScoringClient

        self._vllm_version = vllm.__version__
        self._llm = vllm.LLM(**arguments, worker_extension_cls=EXTENSION)
        self._engine = self._llm.llm_engine
        self._client = ScoringClient(self._engine.engine_core)
        self._engine.engine_core = self._client
        self._runner = self._llm.collective_rpc("patheval_install_scoring")[0]
        config = self._engine.vllm_config
        self.max_requests = config.scheduler_config.max_num_seqs * (1 + _QUEUE_PER_SEQUENCE)
        cache = config.cache_config
        # What waits is a list of Python integers for each prompt: no more than fills the cache
        # twice.
        self._max_tokens = 2 * cache.num_gpu_blocks * cache.block_size
        self._vocab_size = config.model_config.get_vocab_size()
        self._reads_cache = bool(cache.enable_prefix_caching)
        self._block_size = int(cache.block_size)
        self._open: dict[int, tuple[Job, bool]] = {}
        self._num_tokens = 0
        self._serial = itertools.count()
        self._numbers: dict[str, int] = {}
        self._lost: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether enough requests wait to keep the batch full."""
        return bool(self._open) and (
            len(self._open) >= self.max_requests or self._num_tokens >= self._max_tokens
        )

    @property
    def is_idle(self) -> bool:
        """Whether all requests have been answered."""
        return not self._open

    def submit(self, number: int, job: Job) -> None:
        """Adds a request.

        Args:
            number: What its answer is returned under; not one of an open request.
            job: The request.

        Raises:
            RequestError: A token is beyond the vocabulary, or vLLM refuses the request.
            EngineError: vLLM's process has died.
        """
        # Where next to nothing can be shared, a row in a cached block is all there is to gain.
        reads_cache = self._reads_cache and not (
            isinstance(job, ScoringJob) and job.rows.min() < self._block_size
        )
        with _alive():
            self._add(number, job, reads_cache)
        self._num_tokens += len(job.prompt)

    def step(self) -> Answers:
        """Runs one step of the engine and returns the answers that it completed.

        Raises:
            UnsupportedError: vLLM lost the scores of a request again and again.
            EngineError: vLLM's process has died.
        """
        answers: Answers = []
        with _alive():
            outputs = self._engine.step()
        for output in outputs:
            number, job, _ = self._close(output.request_id)
            completion = output.outputs[0]
            answers.append(
                (
                    number,
                    Text(
                        completion.text,
                        len(completion.token_ids),
                        is_nan=self._client.take_nan(output.request_id),
                    ),
                )
            )
            self._num_tokens -= len(job.prompt)
        for request_id, own in self._client.take_scored():
            number, job, reads_cache = self._close(request_id)
            if own is None and not reads_cache:
                if number in self._lost:
                    raise UnsupportedError(
                        f"vLLM {self._vllm_version} twice handed out no scores for a prompt of "
                        f"{len(job.prompt)} tokens; install a version that patheval supports "
                        "(`patheval doctor` names them)"
                    )
                self._lost.add(number)
            if own is None or (reads_cache and np.isnan(own[0]).any()):
                # A row lay in a block that was computed for an earlier prompt.
                self._add(number, job, False)
                continue
            self._lost.discard(number)
            self._num_tokens -= len(job.prompt)
            answers.append((number, Scores(*own)))
        return answers

    def run(self, jobs: Sequence[Job], units: Sequence[Sequence[int]]) -> AnswerStream:
        """See `Executor.run`."""
        waiting = itertools.chain.from_iterable(units)
        upcoming = next(waiting, None)
        try:
            while upcoming is not None or not self.is_idle:
                while upcoming is not None and not self.is_full:
                    self.submit(upcoming, jobs[upcoming])
                    upcoming = next(waiting, None)
                if answers := self.step():
                    yield answers
        finally:
            self.abort()

    def abort(self) -> None:
        """Drops all open requests."""
        self._engine.abort_request(list(self._numbers))
        self._client.abort()
        self._numbers.clear()
        self._open.clear()
        self._lost.clear()
        self._num_tokens = 0

    def facts(self) -> dict[str, object]:
        """See `Executor.facts`."""
        from vllm.platforms import current_platform

        config = self._engine.vllm_config
        return {
            "backend": "vllm",
            "vllm_version": self._vllm_version,
            "platform": current_platform.device_name,
            "device_name": current_platform.get_device_name(),
            "model_runner": self._runner,
            "kernel_impl": self._worker_facts()["kernel_impl"],
            "kv_block_size": config.cache_config.block_size,
            "prefix_caching": config.cache_config.enable_prefix_caching,
            "compilation_mode": str(config.compilation_config.mode),
            "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
        }

    def peak_gpu_memory_bytes(self) -> int | None:
        """See `Executor.peak_gpu_memory_bytes`."""
        peak = self._worker_facts()["peak_gpu_memory_bytes"]
        return None if peak is None else int(peak)

    def close(self) -> None:
        """See `Executor.close`."""
        self._engine.engine_core.shutdown()

    def _worker_facts(self) -> dict[str, Any]:
        with _alive():
            facts: dict[str, Any] = self._llm.collective_rpc("patheval_facts")[0]
        return facts

    def _add(self, number: int, job: Job, reads_cache: bool) -> None:
        from vllm.exceptions import VLLMClientError
        from vllm.inputs import tokens_input

        request_id = f"{number}-{next(self._serial)}"
        if isinstance(job, ScoringJob):
            highest = max(job.prompt.max(), job.targets.max())
            if highest >= self._vocab_size:
                raise RequestError(
                    f"a prompt has token {highest}, but the model has {self._vocab_size} tokens; "
                    "pass the tokenizer that it was trained with"
                )
            self._client.add_scored(
                request_id, job.prompt, job.rows, job.targets, read_prefix_cache=reads_cache
            )
        else:
            try:
                self._engine.add_request(
                    request_id, tokens_input(job.prompt.tolist()), job.settings
                )
            except (ValueError, VLLMClientError) as error:
                raise RequestError(
                    f"vLLM refuses a prompt of {len(job.prompt)} tokens ({error}); lower "
                    "max_length or give the KV cache more memory (gpu_memory_utilization)"
                ) from error
        self._numbers[request_id] = number
        self._open[number] = (job, reads_cache)

    def _close(self, request_id: str) -> tuple[int, Any, bool]:
        """Take a finished request out of the open ones: its number, job, and use of the cache."""
        number = self._numbers.pop(request_id)
        return number, *self._open.pop(number)


@contextmanager
def _alive() -> Iterator[None]:
    """Says what to do when vLLM's own process has died, which vLLM has described in its log."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise EngineError(
            "vLLM's engine process has died (if it had an error of its own, it is above; if not, "
            "it was killed, as for want of memory); answers so far are kept unless resume is off: "
            "run the same command again"
        ) from error
