"""What an engine is asked and what it answers, and the order in which to ask.

Token ids are arrays of uint32: a tenth of the memory of Python's lists of integers, which counts
where hundreds of prompts of 64K tokens wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]


def tokens(token_ids: Sequence[int] | Tokens) -> Tokens:
    """Token ids as an array."""
    return np.asarray(token_ids, dtype=np.uint32)


@dataclass(frozen=True)
class ScoringJob:
    """Log-probabilities to take from one prompt.

    Attributes:
        prompt: Token ids, at least one.
        rows: [n]; row r is the distribution behind the tokens 0..r of the prompt.
        targets: [n], the token that is looked up in each row.
    """

    prompt: Tokens
    rows: NDArray[np.int64]
    targets: Tokens

    @property
    def budget(self) -> int:
        """Tokens to generate."""
        return 0


@dataclass(frozen=True)
class GenerationJob:
    """A prompt to continue.

    Attributes:
        prompt: Token ids, at least one.
        budget: Most tokens to generate.
        settings: What the engine takes: `vllm.SamplingParams`, or `Generation` for path-ref.
    """

    prompt: Tokens
    budget: int
    settings: Any


Job = ScoringJob | GenerationJob


@dataclass(frozen=True)
class Scores:
    """Answer to a `ScoringJob`.

    Attributes:
        logprobs: [n], natural log, fp64; NaN if the model gives NaN.
        is_greedy: [n], whether no token is more probable than the target.
    """

    logprobs: NDArray[np.float64]
    is_greedy: NDArray[np.bool_]


@dataclass(frozen=True)
class Text:
    """Answer to a prompt to continue.

    Attributes:
        text: The continuation, at most up to and with a stop string.
        num_tokens: Tokens generated.
        is_nan: Whether a token was drawn where logits were NaN or infinite; the text means nothing.
    """

    text: str
    num_tokens: int
    is_nan: bool = False


Answer = Scores | Text
Answers = list[tuple[int, Answer]]
AnswerStream = Generator[Answers, None, None]


class Executor(Protocol):
    """Runs jobs: one engine in this process, or several in processes of their own."""

    def run(self, jobs: Sequence[Job], units: Sequence[Sequence[int]]) -> AnswerStream:
        """Answers jobs; closing the generator drops what is open.

        Args:
            jobs: The jobs.
            units: Their numbers, in the order in which to start them; those of one unit share
                prefixes and should be run by one engine.

        Yields:
            In any order, what has just finished: numbers and answers.
        """

    def facts(self) -> dict[str, object]:
        """Describes what computes, for the record; the part that is in the answers' key."""

    def peak_gpu_memory_bytes(self) -> int | None:
        """Most memory that tensors took on a GPU; None on a CPU."""

    def close(self) -> None:
        """Stops the engines."""


_TOKENS_COMPARED = 1 << 20


def shared_prefixes(prompts: Sequence[Tokens]) -> list[int]:
    """For each prompt the number of tokens with which it and the one before begin; 0 at first."""
    shared = [0] * len(prompts)
    lengths = [min(map(len, pair)) for pair in itertools.pairwise(prompts)]
    first = 0
    while first < len(lengths):
        # Many short prompts in one comparison, long ones one by one.
        last, size = first + 1, lengths[first]
        while last < len(lengths) and size + lengths[last] <= _TOKENS_COMPARED:
            size += lengths[last]
            last += 1
        own = lengths[first:last]
        left = [prompt[:length] for prompt, length in zip(prompts[first:], own, strict=False)]
        right = [prompt[:length] for prompt, length in zip(prompts[first + 1 :], own, strict=False)]
        differing = np.flatnonzero(np.concatenate(left) != np.concatenate(right))
        starts = np.cumsum([0, *own[:-1]])
        ends = np.append(differing, size)[np.searchsorted(differing, starts)]
        shared[first + 1 : last + 1] = np.minimum(ends - starts, own).tolist()
        first = last
    return shared


def sort_key(prompt: Tokens) -> bytes:
    """Sorting by this is sorting by token ids, so that equal beginnings become neighbours."""
    return prompt.astype(">u4").tobytes()


@dataclass(frozen=True)
class Schedule:
    """An order of jobs.

    Attributes:
        units: Numbers of jobs that share prefixes, the longest unit first.
        num_new_tokens: For each job, the prompt's tokens that none before it in its unit has.
    """

    units: list[list[int]]
    num_new_tokens: list[int]


# A unit's share of the whole work, so that several engines finish at about the same time; but at
# least so many times the prefix that the next unit may have to read again.
_MAX_UNIT_SHARE = 1 / 64
_MIN_UNIT_PREFIXES = 8


def schedule(jobs: Sequence[Job]) -> Schedule:
    """Brings jobs with a common beginning together, and starts with the longest.

    Sorted by tokens, neighbours share the longest prefixes: the choices of a question, the
    questions behind the same few-shot examples. A unit ends where the next prompt shares less than
    half of its tokens, or where the unit is large and the next prompt begins another question.

    Args:
        jobs: The jobs, without order.
    """
    order = sorted(range(len(jobs)), key=lambda number: sort_key(jobs[number].prompt))
    shared = shared_prefixes([jobs[number].prompt for number in order])
    total = sum(len(job.prompt) + job.budget for job in jobs) - sum(shared)
    num_new_tokens = [0] * len(jobs)
    units: list[list[int]] = []
    costs: list[int] = []
    context = 0
    for number, prefix in zip(order, shared, strict=True):
        job = jobs[number]
        is_new_question = prefix < context
        if is_new_question or not units:
            # Of the choices of a question, the first one scores the context's last row.
            context = int(job.rows.min()) + 1 if isinstance(job, ScoringJob) else len(job.prompt)
        limit = max(total * _MAX_UNIT_SHARE, prefix * _MIN_UNIT_PREFIXES)
        is_full = bool(costs) and costs[-1] > limit and is_new_question
        if 2 * prefix < len(job.prompt) or is_full:
            units.append([])
            costs.append(0)
            prefix = 0
        num_new_tokens[number] = len(job.prompt) - prefix
        units[-1].append(number)
        costs[-1] += num_new_tokens[number] + job.budget
    longest_first = sorted(range(len(units)), key=lambda unit: -costs[unit])
    return Schedule([units[unit] for unit in longest_first], num_new_tokens)
