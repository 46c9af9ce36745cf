"""Scoring of RULER answers."""

import re

from ..generation import Doc

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")


def clean(generated: str) -> str:
    """Returns the answer that is scored: stripped, with control characters as newlines."""
    return _CONTROL_CHARACTER.sub("\n", generated.strip()).strip()


def string_match_all(answer: str, references: list[str]) -> float:
    """Returns the share of the references that occur in a clean answer, whatever their case."""
    return sum(reference.lower() in answer.lower() for reference in references) / len(references)


def string_match_part(answer: str, references: list[str]) -> float:
    """Returns 1 if any reference occurs in a clean answer, whatever its case, else 0."""
    return float(any(reference.lower() in answer.lower() for reference in references))


def process_results(doc: Doc, results: list[str]) -> dict[str, float]:
    """Scores one answer as RULER does, on a scale from 0 to 1 where RULER prints percent.

    Args:
        doc: The document with its references.
        results: The generated text.

    Returns:
        `string_match_all`: share of the references that occur in the answer, whatever their case.
        `score`: the same, under the name that all tasks share.
        `strict`: the same for references that are no part of a longer word or number.
        `empty`: 1 if nothing but white space and control characters was generated, else 0.
    """
    answer, references = clean(results[0]), doc["references"]
    score = string_match_all(answer, references)
    strict = sum(_is_word(reference, answer) for reference in references) / len(references)
    return {
        "score": score,
        "strict": strict,
        "string_match_all": score,
        "empty": float(not answer),
    }


def process_qa_results(doc: Doc, results: list[str]) -> dict[str, float]:
    """Scores one answer to a question as RULER does, on a scale from 0 to 1.

    Args:
        doc: The document with its references.
        results: The generated text.

    Returns:
        `string_match_part`: 1 if any reference occurs in the answer, whatever its case, else 0.
        `score`, `strict`, `empty`: as `process_results` gives them.
    """
    answer, references = clean(results[0]), doc["references"]
    score = string_match_part(answer, references)
    return {
        "score": score,
        "strict": float(any(_is_word(reference, answer) for reference in references)),
        "string_match_part": score,
        "empty": float(not answer),
    }


def _is_word(reference: str, answer: str) -> bool:
    pattern = rf"(?<!\w){re.escape(reference)}(?!\w)"
    return re.search(pattern, answer, re.IGNORECASE) is not None
