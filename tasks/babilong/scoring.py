"""Scoring of BABILong answers."""

from collections.abc import Collection, Mapping
from typing import Any

from .prompts import QUESTIONS


def process_results(doc: Mapping[str, Any], results: list[str]) -> dict[str, float]:
    """Scores one answer.

    Args:
        doc: The document, with its task, question and the reference.
        results: The generated text.

    Returns:
        `acc`: 1 if the answer is right by the rule of `is_correct`, else 0. `acc_lenient`:
        likewise by `is_mentioned`. `empty`: 1 if nothing but white space was generated, else 0.
    """
    answer, [target] = results[0], doc["references"]
    labels = QUESTIONS[doc["task"]].labels
    return {
        "acc": float(is_correct(answer, target, doc["question"], labels)),
        "acc_lenient": float(is_mentioned(answer, target)),
        "empty": float(not answer.strip()),
    }


def is_correct(answer: str, target: str, question: str, labels: Collection[str]) -> bool:
    """Whether the first sentence names the target and no other possible answer.

    The rule of BABILong's `compare_answers`: a label counts wherever its letters occur, labels in
    the question do not count, and a target of several labels must be named in full, in any order.

    Args:
        answer: The generated text.
        target: The right answer; several labels have commas between them.
        question: The question.
        labels: Every possible answer of the task.
    """
    lower = [label.lower() for label in labels]
    sentence = _first_sentence(answer)
    asked = question.lower()
    named = {label for label in lower if label in sentence and label not in asked}
    target = target.lower()
    wanted = set(target.split(",")) if "," in target and target not in lower else {target}
    return named == wanted


def is_mentioned(answer: str, target: str) -> bool:
    """Whether the target occurs in the first sentence: BABILong's older rule."""
    return target.lower() in _first_sentence(answer)


def _first_sentence(answer: str) -> str:
    sentence = answer.lower().split(".")[0]
    return sentence.split("<context>")[0].split("<example>")[0]
