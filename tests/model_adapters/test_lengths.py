"""Prompts over the limit: refused, left out or cut, and always counted."""

import pytest

from patheval.errors import RequestError, UnsupportedError
from patheval.model_adapters._arguments import choice, flag, integer
from patheval.model_adapters._lengths import DEFAULT_MAX_LENGTH, FittedPrompts, fit_prompts

CONTEXTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10, 11]]
BUDGETS = [2, 2, 5]


def test_default_is_the_same_for_every_model() -> None:
    assert DEFAULT_MAX_LENGTH == 8192


@pytest.mark.parametrize("overlength", ["error", "skip", "truncate"])
def test_prompts_that_fit_exactly_are_left_alone(overlength: str) -> None:
    fitted = fit_prompts(CONTEXTS, BUDGETS, max_length=8, overlength=overlength)
    assert fitted == FittedPrompts(CONTEXTS, num_truncated=0, num_skipped=0)


def test_error_counts_the_prompts_and_names_the_setting_that_helps() -> None:
    with pytest.raises(RequestError) as error:
        fit_prompts(CONTEXTS, BUDGETS, max_length=6, overlength="error")
    message = str(error.value)
    assert "2 of 3 prompts are longer than max_length=6" in message
    assert "8 tokens (6 of context and 2 after it)" in message
    assert "pass max_length=8" in message
    fit_prompts(CONTEXTS, BUDGETS, max_length=8, overlength="error")


def test_skip_leaves_out_what_does_not_fit() -> None:
    fitted = fit_prompts(CONTEXTS, BUDGETS, max_length=7, overlength="skip")
    assert fitted == FittedPrompts([CONTEXTS[0], None, CONTEXTS[2]], num_truncated=0, num_skipped=1)


def test_truncate_cuts_the_left_of_the_context() -> None:
    fitted = fit_prompts(CONTEXTS, BUDGETS, max_length=6, overlength="truncate")
    assert fitted == FittedPrompts([[1, 2, 3], [6, 7, 8, 9], [11]], num_truncated=2, num_skipped=0)


def test_truncate_never_cuts_the_continuation() -> None:
    with pytest.raises(RequestError, match=r"5 tokens .*max_length=5; pass max_length=8"):
        fit_prompts(CONTEXTS, BUDGETS, max_length=5, overlength="truncate")


@pytest.mark.parametrize("overlength", ["error", "skip", "truncate"])
def test_no_requests(overlength: str) -> None:
    assert fit_prompts([], [], max_length=4, overlength=overlength) == FittedPrompts([], 0, 0)


@pytest.mark.parametrize("value", [4096, 4096.0, "4096", "4096.0", " 4096 "])
def test_integers_arrive_in_many_types(value: object) -> None:
    number = integer("max_length", value, minimum=1)
    assert (number, type(number)) == (4096, int)


@pytest.mark.parametrize(
    "value", [0, -1.0, 1.5, True, None, "8k", "", float("nan"), float("inf"), [8192]]
)
def test_other_values_are_no_integer(value: object) -> None:
    with pytest.raises(UnsupportedError) as error:
        integer("max_length", value, minimum=1)
    assert f"max_length is {value!r}; pass an integer of at least 1" in str(error.value)


def test_flags_and_choices() -> None:
    assert [flag("x", value) for value in (True, "False", "true")] == [True, False, True]
    with pytest.raises(UnsupportedError, match="x is 1; pass True or False"):
        flag("x", 1)
    assert choice("overlength", "skip", ("error", "skip")) == "skip"
    with pytest.raises(UnsupportedError, match="overlength is 'cut'; pass one of error, skip"):
        choice("overlength", "cut", ("error", "skip"))
