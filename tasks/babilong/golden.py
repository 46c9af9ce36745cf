"""Replay of BABILong's recorded cases."""

from collections.abc import Iterator

from patheval.golden.case import Case, Check

from .prompts import render_prompt
from .scoring import is_correct, is_mentioned
from .stories import hide


def replay(case: Case) -> Iterator[Check]:
    """Compares scores, prompts, and texts in which facts are hidden."""
    if case["kind"] == "single":
        [target] = case["references"]
        answer = case["prediction"]
        score = is_correct(answer, target, case["question"], case["labels"])
        yield Check("score", case["expected_score"], float(score))
        yield Check(
            "lenient score", case["expected_score_loose"], float(is_mentioned(answer, target))
        )
    elif case["kind"] == "rendered":
        switches = {
            name: case[name] for name in ("use_instruction", "use_examples", "use_post_prompt")
        }
        prompt = render_prompt(case["task"], case["context"], case["question"], **switches)
        yield Check("prompt", case["prompt"], prompt)
    elif case["kind"] == "noise_injection":
        yield Check("input", case["input"], _hidden_again(case))


def _hidden_again(case: Case) -> str:
    """Take the facts out of the recorded text and hide them again, at the recorded places.

    What lies between two places is one piece here, for the sentences are not recorded.
    """
    rest: str = case["input"]
    pieces = []
    for fact in case["facts"]:
        before, _, rest = rest.partition(fact)
        pieces.append(before.strip(" "))
    pieces.append(rest.strip(" "))
    places = list(range(1, len(pieces)))
    return hide(case["facts"], places, pieces)
