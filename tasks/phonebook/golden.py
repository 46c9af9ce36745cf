"""Replay of PhoneBook's recorded prompts and scores."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from patheval.golden.case import Case, Check

from .generate import render_prompt
from .scoring import first_line, process_results


def replay(case: Case) -> Iterator[Check]:
    """Renders a `generated` prompt again, or scores `single` and `aggregate` predictions."""
    match case["kind"]:
        case "generated":
            book, _, _ = case["prompt"].partition("\n\n")
            entries = [_entry(line) for line in book.split("\n")]
            examples = [_entry(line) for line in case["fewshot"]]
            name = case["queried_name"]
            yield Check("prompt", case["prompt"], render_prompt(entries, examples, name))
            yield Check("entries", case["n_entries"], len(entries))
            numbers = [number for entry, number in entries if entry == name]
            yield Check("number in the book", True, case["references"][0] in numbers)
        case "single":
            doc: Any = {"references": case["references"]}
            scores = process_results(doc, [case["prediction"]])
            yield Check("score", case["expected_score"], scores["exact_match"])
            if "postprocessed" in case.fields:
                yield Check("answer", case["postprocessed"], first_line(case["prediction"]))
        case "aggregate":
            means = np.mean(case["prediction"], axis=1)
            got = {"mean": float(means.mean()), "std": float(means.std())}
            yield Check("mean and deviation of batches", case["expected_score"], got)


def _entry(line: str) -> tuple[str, str]:
    name, _, number = line.partition(": ")
    return name, number
