import dataclasses

import pytest

from patheval.errors import CheckpointError
from patheval.zoo import recipes


def test_long_context_family_differs_in_attention_only() -> None:
    first, *others = [
        [dataclasses.replace(stage, name="any", attention="rope") for stage in stages]
        for stages in recipes.LONG_CONTEXT.values()
    ]
    assert all(other == first for other in others)


def test_budget_is_at_least_300m_tokens() -> None:
    for stages in recipes.LONG_CONTEXT.values():
        assert sum(stage.num_tokens for stage in stages) >= 300_000_000


def test_learning_rate_warms_up_and_decays() -> None:
    recipe = recipes.find("path", 1)
    rates = [recipe.learning_rate(step) for step in range(recipe.num_steps)]
    peak = rates.index(max(rates))
    assert rates[peak] == recipe.peak_lr
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(recipe.final_lr_ratio * recipe.peak_lr, rel=1e-3)


def test_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match="rope, fox, path, path-fox"):
        recipes.find("alibi", 1)


def test_stages_share_no_data() -> None:
    for stages in recipes.LONG_CONTEXT.values():
        assert len({stage.data_seed for stage in stages}) == len(stages)
