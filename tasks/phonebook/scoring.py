"""Scoring of PhoneBook answers."""

from ..generation import Doc


def first_line(generated: str) -> str:
    """Returns the answer that is scored: the first line without surrounding white space."""
    return generated.split("\n", maxsplit=1)[0].strip()


def process_results(doc: Doc, results: list[str]) -> dict[str, float]:
    """Scores one answer.

    Args:
        doc: The document; its only reference is the number.
        results: The generated text.

    Returns:
        `exact_match`: 1 if the first line without surrounding white space is the number, else 0.
        `empty`: 1 if that line is empty, else 0.
    """
    answer = first_line(results[0])
    return {"exact_match": float(answer == doc["references"][0]), "empty": float(not answer)}
