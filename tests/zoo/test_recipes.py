import dataclasses

import pytest

from patheval.errors import CheckpointError
from patheval.zoo import recipes


def test_long_context_family_differs_in_attention_only() -> None:
    plain = {
        dataclasses.replace(recipe, name="any", attention="rope")
        for recipe in recipes.LONG_CONTEXT.values()
    }
    assert len(plain) == 1


def test_budget_is_at_least_300m_tokens() -> None:
    assert all(recipe.num_tokens >= 300_000_000 for recipe in recipes.LONG_CONTEXT.values())


def test_learning_rate_warms_up_and_decays() -> None:
    recipe = recipes.find("path")
    rates = [recipe.learning_rate(step) for step in range(recipe.num_steps)]
    peak = rates.index(max(rates))
    assert rates[peak] == recipe.peak_lr
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(recipe.final_lr_ratio * recipe.peak_lr, rel=1e-3)


def test_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match="rope, fox, path, path-fox"):
        recipes.find("alibi")
