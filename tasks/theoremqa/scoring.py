"""Scoring of TheoremQA answers, by the rules of OpenCompass."""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .arithmetic import read_number, without_units

_TRIGGER = re.compile(r"The answer is:|The answer is|the answer is")
_OPTIONS = tuple(f"({letter})" for letter in "abcdef")
_NUMBER = re.compile(r"-?\d*\.?\d+")
_NUMBER_AND_UNIT = re.compile(r"-?[\d.]+\s(\D+|\S+)")
_TOLERANCE = 0.04
_SINGLE_NUMBERS = ("float", "integer", "bool")


def process_results(doc: Mapping[str, Any], results: list[str]) -> dict[str, float]:
    """Scores one answer.

    Args:
        doc: The question with its answer and the answer's type.
        results: The generated text.

    Returns:
        `acc`: 1 if the answer is right, else 0; a list must be written as in the data set.
        `acc_lists`: the same, with lists compared number by number. `empty`: 1 if nothing but white
        space was generated, else 0.
    """
    answer = extract_answer(results[0])
    truth = str(doc["Answer"])
    is_number = doc["Answer_type"] in _SINGLE_NUMBERS
    is_right = matches(answer, truth, _read(truth) if is_number else None)
    is_list = doc["Answer_type"].startswith("list")
    return {
        "acc": float(is_right),
        "acc_lists": float(is_right or (is_list and lists_match(results[0], truth))),
        "empty": float(not results[0].strip()),
    }


def extract_answer(text: str) -> str:
    """Takes the final answer out of a solution.

    It is what follows the last `The answer is`, of the first paragraph if there are several. With
    `yes` or `true` in it, it is `True`, with `no` or `false` in it, `False`, even inside words.
    Else it is an option such as `(a)`, or what follows the last `=`, as a number where it can be
    read as one. Without `The answer is`, the whole text is looked at, and its last number is taken.

    Args:
        text: The generated text.
    """
    text = text.strip("\n")
    if any(text.count(trigger) > 1 for trigger in _TRIGGER.pattern.split("|")):
        text = text.split("\n\n")[0]
    *before, answer = _TRIGGER.split(text)
    answer = answer.strip("\n").rstrip(".").rstrip("/").strip(" ")
    lower = answer.lower()
    if "yes" in lower or "true" in lower:
        return "True"
    if "no" in lower or "false" in lower:
        return "False"
    if any(option in lower for option in _OPTIONS):
        return answer.rstrip(".").rstrip("/")
    if not before:
        numbers = _NUMBER.findall(answer)
        return numbers[-1] if numbers else ""
    answer = without_units(answer.split("=")[-1].strip())
    number = read_number(answer)
    if number is not None:
        return str(number)
    if _NUMBER_AND_UNIT.fullmatch(answer):
        answer = answer.split(" ")[0]
    return answer.rstrip(".").rstrip("/")


def matches(answer: str, truth: str, number: float | None) -> bool:
    """Whether an extracted answer is right.

    Args:
        answer: The answer.
        truth: The right one, as the data set writes it.
        number: The right one as a number, if it is one. An integer must be met after rounding, any
            other number within 4 %.
    """
    if truth.lower() in _OPTIONS:
        return truth.lower() in answer.lower()
    if answer.lower() == truth.lower():
        return True
    given = read_number(without_units(answer))
    return number is not None and given is not None and _close(given, number)


def lists_match(text: str, truth: str) -> bool:
    """Whether a solution ends with a list of the right numbers, in any order.

    Args:
        text: The generated text.
        truth: The right list, as the data set writes it.
    """
    found = re.findall(r"[\[({]([^\[\](){}]*)[\])}]", _TRIGGER.split(text)[-1])
    if not found:
        return False
    given = [read_number(without_units(part)) for part in found[-1].split(",")]
    wanted = _read(truth)
    if not isinstance(wanted, Sequence) or len(given) != len(wanted) or None in given:
        return False
    numbers = sorted(number for number in given if number is not None)
    return all(map(_close, numbers, sorted(wanted)))


def _close(given: float, wanted: float) -> bool:
    if given != given or abs(given) == float("inf"):
        return False
    if isinstance(wanted, int):
        return round(given) == wanted
    return abs(given - wanted) <= abs(wanted) * _TOLERANCE


def _read(truth: str) -> Any:
    return ast.literal_eval(truth.strip())
