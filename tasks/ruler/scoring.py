"""Scoring of RULER answers."""

import re

from ..generation import Doc

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")


def process_results(doc: Doc, results: list[str]) -> dict[str, float]:
    """Scores one answer as RULER does, on a scale from 0 to 1 where RULER prints percent.

    Args:
        doc: The document with its references.
        results: The generated text.

    Returns:
        `string_match_all`: share of the references that occur in the answer, whatever their case.
        `empty`: 1 if nothing but white space and control characters was generated, else 0.
    """
    answer = _CONTROL_CHARACTER.sub("\n", results[0].strip()).strip()
    found = [reference.lower() in answer.lower() for reference in doc["references"]]
    return {"string_match_all": sum(found) / len(found), "empty": float(not answer)}
