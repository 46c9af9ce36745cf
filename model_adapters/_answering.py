"""From requests in token ids to answers: what is stored already, what the model is asked, records.

This knows nothing of texts or of lm-eval.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from patheval.errors import RequestError, UnsupportedError
from patheval.store import AnswerStore, check_folder, default_folder, request_key

from ._jobs import (
    Answers,
    AnswerStream,
    GenerationJob,
    Job,
    Schedule,
    Scores,
    Text,
    Tokens,
    schedule,
)
from ._progress import PhaseProgress
from ._scoring_plan import ScoringPlan

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Generation:
    """One prompt to continue.

    Attributes:
        prompt: token ids, at least one.
        max_gen_toks: most tokens to generate.
        until: stop strings, EOS among them.
        sampling: lm-eval's other settings; empty for greedy decoding.
        repeat: how many equal requests came before it in the same call.
    """

    prompt: Tokens
    max_gen_toks: int
    until: list[str]
    sampling: dict[str, Any]
    repeat: int = 0


@dataclass
class PhaseRecord:
    """What the requests of one type came to, for the results file.

    Attributes:
        num_requests: Requests; of whole texts, their windows.
        num_resumed: Those whose answers were in the store.
        prompt_tokens: Tokens read; what prompts of one unit share is counted once.
        generated_tokens: Tokens written.
        wall_seconds: Time in the model.
    """

    num_requests: int = 0
    num_resumed: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    wall_seconds: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """The attributes, with speeds."""
        seconds = self.wall_seconds
        return vars(self) | {
            "prompt_tokens_per_second": self.prompt_tokens / seconds if seconds else None,
            "generated_tokens_per_second": self.generated_tokens / seconds if seconds else None,
        }


class Answering(ABC):
    """A model with a store of its answers; subclasses run the model.

    Args:
        resume: See `CheckpointLM`.

    Raises:
        UnsupportedError: `resume` is neither a folder nor `off`.
        PrerequisiteError: The folder cannot be written.
    """

    def __init__(self, resume: str | bool | None) -> None:
        self._phases: dict[str, PhaseRecord] = {}
        self._store_folder = _store_folder(resume)
        if self._store_folder is not None:
            check_folder(self._store_folder)
        self._open_store: AnswerStore | None = None

    @abstractmethod
    def _run(self, jobs: Sequence[Job], units: Sequence[Sequence[int]]) -> AnswerStream:
        """Runs the model; see `_jobs.Executor.run`."""

    @abstractmethod
    def _engine_settings(self, generation: Generation) -> object:
        """What `_run` needs to know of a generation besides its prompt and budget.

        Raises:
            RequestError: The model cannot follow a setting.
        """

    @abstractmethod
    def _engine_facts(self) -> dict[str, object]:
        """What computes, as far as numbers can depend on it: JSON values."""

    @property
    @abstractmethod
    def _model_dtype(self) -> str:
        """Dtype that the model computes in."""

    @abstractmethod
    def _identity(self) -> dict[str, object]:
        """All that answers depend on besides the requests: JSON values."""

    def _score(
        self, pairs: Sequence[tuple[Tokens, Tokens]], phase: str, disable_progress: bool
    ) -> list[Scores]:
        """Score continuations behind contexts, both of at least one token."""
        keys = [request_key("score", *pair) for pair in pairs]
        distinct = dict(zip(keys, pairs, strict=True))
        store = self._store()
        known = {
            key: Scores(*row)
            for key, row in (store.scores(list(distinct)) if store else {}).items()
        }
        record = self._begin(phase, keys, known)
        # Known pairs are planned too: then a prompt scores the same rows, to the last bit, whether
        # or not an earlier run has answered some of them.
        names = list(distinct)
        plan = ScoringPlan(list(distinct.values()))
        work = {
            pair: sum(map(len, distinct[name]))
            for pair, name in enumerate(names)
            if name not in known
        }
        numbers = plan.jobs_of(work)
        jobs = [plan.jobs[number] for number in numbers]
        with ExitStack() as stack:
            progress = stack.enter_context(
                PhaseProgress(
                    phase, list(work.values()), num_done=len(known), disable=disable_progress
                )
            )
            order = schedule(jobs)
            stream = stack.enter_context(closing(self._run(jobs, order.units)))
            for answers in stream:
                finished = {
                    pair: scores
                    for job, answer in answers
                    if isinstance(answer, Scores)
                    for pair, scores in plan.finish(numbers[job], answer)
                    if pair in work
                }
                fresh = {
                    pair: scores
                    for pair, scores in finished.items()
                    if not np.isnan(scores.logprobs).any()
                }
                if store:
                    store.add_scores(
                        (names[pair], (scores.logprobs, scores.is_greedy))
                        for pair, scores in fresh.items()
                    )
                for pair in finished:
                    if pair not in fresh:
                        raise self._not_a_number(len(distinct[names[pair]][0]))
                known |= {names[pair]: scores for pair, scores in fresh.items()}
                num_tokens = _num_read(order, answers)
                record.prompt_tokens += num_tokens
                progress.advance([work[pair] for pair in fresh], num_tokens)
            record.wall_seconds += progress.seconds
        return [known[key] for key in keys]

    def _generate(
        self,
        generations: Sequence[Generation],
        think_end_token: str | None,
        disable_progress: bool,
    ) -> list[Text]:
        """Continue prompts; only what follows `think_end_token` will be scored."""
        seen: Counter[bytes] = Counter()
        requests: dict[bytes, Generation] = {}
        for own in generations:
            settings = {
                "max_gen_toks": own.max_gen_toks,
                "until": own.until,
                "sampling": own.sampling,
                "think_end_token": think_end_token,
            }
            base = request_key("generate", own.prompt, **settings)
            repeat = seen[base]
            seen[base] += 1
            requests[request_key("generate", own.prompt, repeat=repeat, **settings)] = (
                dataclasses.replace(own, repeat=repeat)
            )
        keys = list(requests)
        store = self._store()
        known = {key: Text(*row) for key, row in (store.texts(keys) if store else {}).items()}
        missing = [key for key in keys if key not in known]
        jobs = [
            GenerationJob(own.prompt, own.max_gen_toks, self._engine_settings(own))
            for own in map(requests.__getitem__, missing)
        ]
        record = self._begin("generate_until", keys, known)
        work = [len(job.prompt) + job.budget for job in jobs]
        with ExitStack() as stack:
            progress = stack.enter_context(
                PhaseProgress("generate_until", work, num_done=len(known), disable=disable_progress)
            )
            order = schedule(jobs)
            stream = stack.enter_context(closing(self._run(jobs, order.units)))
            for answers in stream:
                fresh = {
                    job: text for job, text in answers if isinstance(text, Text) and not text.is_nan
                }
                if store:
                    store.add_texts(
                        (missing[job], (text.text, text.num_tokens)) for job, text in fresh.items()
                    )
                for job, _ in answers:
                    if job not in fresh:
                        raise self._not_a_number(len(jobs[job].prompt))
                known |= {missing[job]: text for job, text in fresh.items()}
                num_read = _num_read(order, answers)
                num_written = sum(text.num_tokens for text in fresh.values())
                record.prompt_tokens += num_read
                record.generated_tokens += num_written
                progress.advance([work[job] for job in fresh], num_read + num_written)
            record.wall_seconds += progress.seconds
        return [known[key] for key in keys]

    def _begin(
        self, phase: str, keys: Sequence[bytes], known: Mapping[bytes, object]
    ) -> PhaseRecord:
        record = self._phases.setdefault(phase, PhaseRecord())
        record.num_requests += len(keys)
        num_resumed = sum(key in known for key in keys)
        record.num_resumed += num_resumed
        if num_resumed and self._open_store is not None:
            _logger.warning(
                "%s: %d of %d answers are taken from %s; pass resume=off in --model_args to run "
                "them again",
                phase,
                num_resumed,
                len(keys),
                self._open_store.path,
            )
        return record

    def _store(self) -> AnswerStore | None:
        """The store of this model's answers, opened once the engine can say what it is."""
        if self._open_store is None and self._store_folder is not None:
            self._open_store = AnswerStore(self._store_folder, self._identity())
        return self._open_store

    def _not_a_number(self, num_tokens: int) -> RequestError:
        fix = (
            "its weights are beyond what can be computed: check the training"
            if self._model_dtype in ("float32", "float64")
            else "pass dtype=float32"
        )
        return RequestError(
            f"the model gives NaN for a prompt of {num_tokens} tokens in {self._model_dtype}; {fix}"
        )


def _num_read(order: Schedule, answers: Answers) -> int:
    return sum(order.num_new_tokens[job] for job, _ in answers)


def _store_folder(resume: str | bool | None) -> Path | None:
    if resume is None:
        resume = os.environ.get("PATHEVAL_RESUME") or True
    if resume is True:
        return default_folder()
    if resume is False or str(resume).lower() in ("off", "false"):
        return None
    if not isinstance(resume, str) or resume.lower() in ("", "0", "1", "no", "none", "on", "true"):
        raise UnsupportedError(
            f"resume is {resume!r}; pass a folder for answers, or off, as resume in --model_args"
        )
    return Path(resume).expanduser()
