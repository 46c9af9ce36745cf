"""Plans against a made-up model: every pair gets its own values, from as few prompts as can be."""

import hashlib
import itertools
from collections.abc import Iterable
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from patheval.model_adapters import _jobs
from patheval.model_adapters._jobs import (
    GenerationJob,
    Scores,
    ScoringJob,
    schedule,
    shared_prefixes,
    tokens,
)
from patheval.model_adapters._scoring_plan import ScoringPlan

# Few tokens and short texts, so that prefixes are shared in every way.
TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=5)


def common_prefix(left: Iterable[int], right: Iterable[int]) -> int:
    """Tokens with which both begin."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def model(prefix: list[int], target: int) -> tuple[float, bool]:
    """A number and a flag that depend on nothing but prefix and target."""
    digest = hashlib.sha256(f"{prefix} {target}".encode()).digest()
    return -float(digest[0] + 256 * digest[1]), bool(digest[2] & 1)


def answer(job: ScoringJob) -> Scores:
    prompt = job.prompt.tolist()
    values = [
        model(prompt[: row + 1], int(target))
        for row, target in zip(job.rows, job.targets, strict=True)
    ]
    return Scores(np.array([x for x, _ in values]), np.array([x for _, x in values]))


@settings(max_examples=300, deadline=None)
@given(pairs=st.lists(st.tuples(TEXT, TEXT), max_size=12), seed=st.randoms(use_true_random=False))
def test_every_pair_gets_its_own_values_once(
    pairs: list[tuple[list[int], list[int]]], seed
) -> None:
    plan = ScoringPlan([(tokens(context), tokens(rest)) for context, rest in pairs])
    order = list(range(len(plan.jobs)))
    seed.shuffle(order)
    got: dict[int, Scores] = {}
    for job in order:
        for pair, scores in plan.finish(job, answer(plan.jobs[job])):
            assert pair not in got
            got[pair] = scores
    assert got.keys() == set(range(len(pairs)))
    for pair, (context, rest) in enumerate(pairs):
        wanted = [model(context + rest[:i], target) for i, target in enumerate(rest)]
        assert got[pair].logprobs.tolist() == [x for x, _ in wanted]
        assert got[pair].is_greedy.tolist() == [x for _, x in wanted]


@settings(max_examples=300, deadline=None)
@given(pairs=st.lists(st.tuples(TEXT, TEXT), max_size=12))
def test_prompts_are_those_that_begin_no_other_and_no_row_is_scored_twice(
    pairs: list[tuple[list[int], list[int]]],
) -> None:
    plan = ScoringPlan([(tokens(context), tokens(rest)) for context, rest in pairs])
    whole = {tuple(context + rest[:-1]) for context, rest in pairs}
    longest = {own for own in whole if not any(own == other[: len(own)] for other in whole - {own})}
    prompts = [tuple(job.prompt.tolist()) for job in plan.jobs]
    assert prompts == sorted(longest)
    # What an earlier prompt may have left in the prefix cache is never scored in a later one.
    for earlier, later in zip(plan.jobs, plan.jobs[1:], strict=False):
        assert later.rows.min() >= common_prefix(earlier.prompt, later.prompt)


def test_one_token_choices_of_a_question_are_one_prompt() -> None:
    context = tokens(range(50))
    plan = ScoringPlan([(context, tokens([choice])) for choice in (7, 8, 9)])
    (job,) = plan.jobs
    assert job.rows.tolist() == [49, 49, 49] and job.targets.tolist() == [7, 8, 9]


@settings(max_examples=200, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=20),
    compared=st.sampled_from([1, 10, 1 << 20]),
)
def test_shared_prefixes_are_counted_in_comparisons_of_any_size(
    prompts: list[list[int]], compared: int
) -> None:
    with patch.object(_jobs, "_TOKENS_COMPARED", compared):
        shared = shared_prefixes([tokens(prompt) for prompt in prompts])
    expected = [common_prefix(left, right) for left, right in itertools.pairwise(prompts)]
    assert shared == [0, *expected][: len(prompts)]


@settings(max_examples=200, deadline=None)
@given(prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=20))
def test_schedules_run_each_job_once_and_count_new_tokens(prompts: list[list[int]]) -> None:
    jobs = [GenerationJob(tokens(prompt), 3, None) for prompt in prompts]
    order = schedule(jobs)
    assert sorted(job for unit in order.units for job in unit) == list(range(len(jobs)))
    costs = []
    for unit in order.units:
        seen = [prompts[job] for job in unit]
        for before, job in zip([[], *seen], unit, strict=False):
            shared = common_prefix(tokens(before), tokens(prompts[job]))
            assert order.num_new_tokens[job] == len(prompts[job]) - shared
        costs.append(sum(order.num_new_tokens[job] + 3 for job in unit))
    assert costs == sorted(costs, reverse=True)


def test_questions_behind_the_same_examples_are_neighbours_but_large_units_are_cut() -> None:
    rng = np.random.default_rng(0)
    examples = rng.integers(0, 50, 400)
    questions = [
        np.concatenate([examples, rng.integers(0, 50, 30)]).astype(np.uint32) for _ in range(200)
    ]
    other = rng.integers(0, 50, 900).astype(np.uint32)
    pairs = [(own, tokens([choice, 1])) for own in questions for choice in (1, 2, 3, 4)]
    plan = ScoringPlan([*pairs, (other, tokens([1, 2]))])
    order = schedule(plan.jobs)
    # The other prompt, and units of eight times the examples that the next one reads again.
    assert len(order.units) == 4
    for unit in order.units:
        prompts = [plan.jobs[job].prompt for job in unit]
        # All four choices of a question are in one unit.
        assert len(unit) % 4 == 0 or len(unit) == 1
        assert all(common_prefix(prompts[0], own) >= 400 for own in prompts)
