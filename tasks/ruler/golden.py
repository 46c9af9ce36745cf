"""Replay of RULER's recorded prompts and scores."""

import re
from collections.abc import Iterator
from typing import Any

from patheval.golden.case import Case, Check

from . import cwe, fwe, niah, qa, vt
from .scoring import clean, process_qa_results, process_results

_NIAH = "niah_"


def replay(case: Case) -> Iterator[Check]:
    """Renders a `generated` prompt again, or scores a `single` or an `aggregate` prediction."""
    match case["kind"]:
        case "generated":
            yield from _prompt(case)
        case "single":
            scores = _scores(case["task"], case["prediction"], case["references"])
            yield Check("score", case["expected_score"], _percent([scores["score"]]))
            if "postprocessed" in case.fields:
                yield Check("answer", case["postprocessed"], clean(case["prediction"]))
            if "is_null" in case.fields:
                yield Check("empty", case["is_null"], bool(scores["empty"]))
        case "aggregate":
            pairs = zip(case["prediction"], case["references"], strict=True)
            scored = [_scores(case["task"], *pair) for pair in pairs]
            yield Check("score", case["expected_score"], _percent([s["score"] for s in scored]))
            nulls = f"{sum(int(s['empty']) for s in scored)}/{len(scored)}"
            yield Check("nulls", case.get("nulls", nulls), nulls)


def _prompt(case: Case) -> Iterator[Check]:
    parts: dict[str, Any] = case["parts"]
    task, context = case["task"], parts["context"]
    if task.startswith(_NIAH):
        plural = parts["type_needle_v_in_prompt"].endswith("s")
        kind = parts["type_needle_v_in_prompt"].removesuffix("s")
        prompt = niah.render_prompt(context, parts["query"], kind, plural=plural)
        prefix = niah.render_answer_prefix(parts["query"], kind, plural=plural)
        for needle in parts.get("needles_in_order", []):
            sentence = niah.render_needle(needle["key"], needle["value"], kind)
            start = needle["char_offset"]
            found = prompt[start : start + len(sentence)]
            yield Check(f"needle {needle['key']}", found, sentence)
    elif task == "vt":
        prompt = _vt_example(parts["example"]) + vt.render_prompt(context, parts["query"])
        prefix = vt.render_answer_prefix(parts["query"], int(parts["num_v"]))
        lines = [line for line in context.split("\n") if line.startswith("VAR ")]
        chain = vt.render_chain(case["references"], parts["query"])
        yield Check("assignments", lines, chain)
    elif task == "cwe":
        prompt = _cwe_example(parts["example"]) + cwe.render_prompt(_listed_words(context))
        prefix = cwe.render_answer_prefix()
    elif task == "fwe":
        prompt = fwe.render_prompt(context.split(" "))
        prefix = fwe.render_answer_prefix()
    elif task in ("qa_1", "qa_2"):
        prompt = qa.render_prompt(_documents(context), parts["query"])
        prefix = qa.render_answer_prefix()
    else:
        return
    yield Check("prompt", case["prompt"], prompt)
    yield Check("answer prefix", case["answer_prefix"], prefix)


def _vt_example(recorded: str) -> str:
    _, _, rest = recorded.partition("\n\n")
    context, _, question = rest.rpartition("\nQuestion: ")
    value = re.findall(r"assigned the value (\d+)", question)[0]
    return vt.render_example(context, question.split()[-vt.NUM_HOPS - 1 :], value)


def _cwe_example(recorded: str) -> str:
    _, listed, rest = recorded.split("\n", 2)
    answers = rest.rpartition("in the list are: ")[2].removesuffix("\n")
    return cwe.render_example(_listed_words(listed), _listed_words(answers))


def _listed_words(numbered: str) -> list[str]:
    return re.split(r" ?\d+\. ", numbered)[1:]


def _documents(numbered: str) -> list[str]:
    documents: list[str] = []
    rest = numbered.removeprefix("Document 1:\n")
    while rest:
        text, _, rest = rest.partition(f"\n\nDocument {len(documents) + 2}:\n")
        documents.append(text)
    return documents


def _scores(task: str, prediction: str, references: list[str]) -> dict[str, float]:
    process = process_qa_results if task in ("qa_1", "qa_2") else process_results
    doc: Any = {"references": references}
    return process(doc, [prediction])


def _percent(scores: list[float]) -> float:
    # In the original's order, which decides on which side of a tie the rounding falls.
    return round(sum(scores) / len(scores) * 100, 2)
