"""How long a prompt may be, and what happens to longer ones.

The limit `max_length` counts everything that the model sees or writes: context plus continuation,
or context plus generation budget. It is the argument `max_length` or else 8192, for every attention
kind and whatever the checkpoint's config states: models that are compared must be cut alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from patheval.errors import RequestError

from ._jobs import Tokens

TokenIds = TypeVar("TokenIds", list[int], Tokens)

DEFAULT_MAX_LENGTH = 8192
OVERLENGTH_CHOICES = ("error", "skip", "truncate")


@dataclass(frozen=True)
class FittedPrompts(Generic[TokenIds]):
    """Contexts that fit, in the order of the requests.

    Attributes:
        contexts: Token ids; None for a request that is skipped.
        num_truncated: Contexts that lost tokens on the left.
        num_skipped: Requests left out.
    """

    contexts: list[TokenIds | None]
    num_truncated: int
    num_skipped: int


def fit_prompts(
    contexts: Sequence[TokenIds],
    budgets: Sequence[int],
    *,
    max_length: int,
    overlength: str,
) -> FittedPrompts[TokenIds]:
    """Applies the policy for prompts that do not fit.

    Args:
        contexts: Token ids of each request's context.
        budgets: Tokens that each request needs after its context: the length of the continuation to
            score, or the most tokens to generate.
        max_length: Limit of context and budget together.
        overlength: `error` raises; `skip` leaves the request out; `truncate` drops the context's
            first tokens, a BOS token among them, but keeps at least one.

    Raises:
        RequestError: Under `error`, a prompt does not fit; under `truncate`, a budget leaves no
            room for a single token of context.
    """
    lengths = [len(context) + budget for context, budget in zip(contexts, budgets, strict=True)]
    num_long = sum(length > max_length for length in lengths)
    if overlength == "error" and num_long:
        longest = max(lengths)
        budget = budgets[lengths.index(longest)]
        raise RequestError(
            f"{num_long} of {len(lengths)} prompts are longer than max_length={max_length}; the "
            f"longest needs {longest} tokens ({longest - budget} of context and {budget} after "
            f"it), so pass max_length={longest}, overlength=skip or overlength=truncate"
        )
    if overlength == "skip":
        kept: list[TokenIds | None] = [
            None if length > max_length else context
            for context, length in zip(contexts, lengths, strict=True)
        ]
        return FittedPrompts(kept, num_truncated=0, num_skipped=num_long)

    largest_budget = max(budgets, default=0)
    if num_long and largest_budget >= max_length:
        raise RequestError(
            f"a request needs {largest_budget} tokens after its context, which leaves none for the "
            f"context in max_length={max_length}; pass max_length={max(lengths)} or overlength=skip"
        )
    cut: list[TokenIds | None] = [
        context[max(0, length - max_length) :]
        for context, length in zip(contexts, lengths, strict=True)
    ]
    return FittedPrompts(cut, num_truncated=num_long, num_skipped=0)
