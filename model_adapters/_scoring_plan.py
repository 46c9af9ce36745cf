"""From (context, continuation) pairs to the fewest prompts that score them all.

All pairs form a tree of prefixes. A continuation's token t_d behind the prefix of length d is row
d - 1 of any prompt that begins with that prefix. So

- a prompt is context + continuation without the last token, and one that is the beginning of
  another is not run at all: the one-token choices of a question are rows of a single prompt;
- a row that several prompts have in common is scored in the first of them only. It then never lies
  in a block that a later prompt finds in the prefix cache, where no row could be scored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._jobs import Scores, ScoringJob, Tokens, shared_prefixes, sort_key


@dataclass(frozen=True)
class _Piece:
    """Consecutive tokens of a continuation that one prompt scores."""

    job: int
    first: int
    length: int


class ScoringPlan:
    """The prompts that score pairs, and the way back to the pairs.

    Args:
        pairs: Contexts and continuations, both of at least one token.

    Attributes:
        jobs: The prompts to run.
    """

    def __init__(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> None:
        self._pieces: list[list[_Piece]] = [[] for _ in pairs]
        self.jobs = self._build(pairs)
        self._answers: dict[int, Scores] = {}
        self._users: dict[int, set[int]] = defaultdict(set)
        for pair, pieces in enumerate(self._pieces):
            for piece in pieces:
                self._users[piece.job].add(pair)
        self._num_open = [len({piece.job for piece in pieces}) for pieces in self._pieces]

    def jobs_of(self, pairs: Iterable[int]) -> list[int]:
        """The numbers of the prompts that score `pairs`, in ascending order."""
        return sorted({piece.job for pair in pairs for piece in self._pieces[pair]})

    def finish(self, job: int, answer: Scores) -> Iterator[tuple[int, Scores]]:
        """Takes a prompt's answer.

        Args:
            job: Its number in `jobs`.
            answer: Its scores, in the order of the job's rows.

        Yields:
            The pairs that are complete now, each with a score for every token of its continuation.
        """
        self._answers[job] = answer
        for pair in sorted(self._users[job]):
            self._num_open[pair] -= 1
            if not self._num_open[pair]:
                yield pair, self._assemble(self._pieces[pair])

    def _assemble(self, pieces: list[_Piece]) -> Scores:
        parts = [
            (self._answers[piece.job], slice(piece.first, piece.first + piece.length))
            for piece in pieces
        ]
        return Scores(
            np.concatenate([answer.logprobs[own] for answer, own in parts]),
            np.concatenate([answer.is_greedy[own] for answer, own in parts]),
        )

    def _build(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> list[ScoringJob]:
        wholes = [np.concatenate(pair) for pair in pairs]
        keys = [sort_key(whole[:-1]) for whole in wholes]
        order = sorted(range(len(pairs)), key=keys.__getitem__)
        # The pairs that each prompt scores: the last one, whose prompt it is, and those before,
        # whose prompts are its beginnings.
        groups: list[list[int]] = [[]]
        for position, pair in enumerate(order):
            groups[-1].append(pair)
            upcoming = order[position + 1 : position + 2]
            if upcoming and not keys[upcoming[0]].startswith(keys[pair]):
                groups.append([])
        prompts = [wholes[group[-1]][:-1] for group in groups if group]
        rows: list[list[NDArray[np.int64]]] = [[] for _ in prompts]
        targets: list[list[Tokens]] = [[] for _ in prompts]
        lengths = [0] * len(prompts)  # values that each prompt gives so far
        # The current prompt's prefixes: up to which length each is first had by which prompt.
        owners: list[tuple[int, int]] = []
        for number, (prompt, shared) in enumerate(
            zip(prompts, shared_prefixes(prompts), strict=True)
        ):
            owners = [*_cut(owners, shared), (len(prompt), number)]
            for own in groups[number]:
                whole = wholes[own]
                depth = len(pairs[own][0])
                for end, job in owners:
                    stop = min(end + 1, len(whole))
                    if depth >= stop:
                        continue
                    rows[job].append(np.arange(depth - 1, stop - 1))
                    targets[job].append(whole[depth:stop])
                    self._pieces[own].append(_Piece(job, lengths[job], stop - depth))
                    lengths[job] += stop - depth
                    depth = stop
        return [
            ScoringJob(prompt, np.concatenate(own_rows), np.concatenate(own_targets))
            for prompt, own_rows, own_targets in zip(prompts, rows, targets, strict=True)
        ]


def _cut(owners: list[tuple[int, int]], shared: int) -> Iterator[tuple[int, int]]:
    """Keep what concerns prefixes of up to `shared` tokens."""
    for end, job in owners:
        yield min(end, shared), job
        if end >= shared:
            return
