"""Scoring of LongBench-E answers, with the numbers that the original code gives."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from .sets import SETS

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def process_results(doc: Mapping[str, Any], results: list[str]) -> dict[str, float]:
    """Scores one answer on a scale from 0 to 1 where LongBench prints percent.

    Args:
        doc: The document, with its set, references and classes.
        results: The generated text.

    Returns:
        `score`: by the set's metric, for the reference that fits best. `empty`: 1 if nothing but
        white space was generated, else 0. `cut`: 1 if the prompt lost its middle, else 0.
    """
    return {
        "score": score(doc["set"], results[0], doc["references"], doc["all_classes"]),
        "empty": float(not results[0].strip()),
        "cut": float(doc["num_tokens_uncut"] > doc["num_tokens"]),
    }


def score(
    name: str, answer: str, references: Sequence[str], all_classes: Sequence[str] | None
) -> float:
    """Scores an answer by the metric of its set, for the reference that fits best.

    Args:
        name: Name of the set.
        answer: The generated text.
        references: Right answers.
        all_classes: Every possible answer of a set of classes; else None.

    Returns:
        From 0 to 1.
    """
    if SETS[name].first_line_only:
        answer = answer.lstrip("\n").split("\n")[0]
    metric = METRICS[SETS[name].metric]
    return max(
        (metric(answer, reference, all_classes or ()) for reference in references), default=0.0
    )


def qa_f1(answer: str, reference: str, all_classes: Sequence[str] = ()) -> float:
    """Harmonic mean of precision and recall of the words, without case, punctuation, articles."""
    words, wanted = _plain_words(answer), _plain_words(reference)
    num_common = (Counter(words) & Counter(wanted)).total()
    if num_common == 0:
        return 0.0
    precision, recall = num_common / len(words), num_common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def rouge_l(answer: str, reference: str, all_classes: Sequence[str] = ()) -> float:
    """ROUGE-L of whole texts as the package rouge 1.0.1 has it: over sets of distinct words.

    For each sentence of the reference, the words of its longest common subsequences with all
    sentences of the answer are collected; their share of the distinct words of reference and
    answer are recall and precision. Sentences end at full stops. 0 for an empty text.
    """
    sentences, wanted = _sentences(answer), _sentences(reference)
    if not sentences or not wanted:
        return 0.0
    common: set[str] = set()
    for wanted_sentence in wanted:
        for sentence in sentences:
            common |= _common_subsequence(wanted_sentence, sentence)
    precision = len(common) / len({word for sentence in sentences for word in sentence})
    recall = len(common) / len({word for sentence in wanted for word in sentence})
    return 2.0 * precision * recall / (precision + recall + 1e-8)


def classification(answer: str, reference: str, all_classes: Sequence[str] = ()) -> float:
    """One over the number of classes that the answer names, if the right one is among them.

    A class inside the right class's name does not count; but as the original deletes such a class
    from the list that it is going through, the class behind it is not looked at and does count.
    """
    named = [name for name in all_classes if name in answer]
    position = 0
    while position < len(named):
        if named[position] != reference and named[position] in reference:
            del named[position]
        position += 1
    return 1 / len(named) if reference in named else 0.0


def count(answer: str, reference: str, all_classes: Sequence[str] = ()) -> float:
    """Share of the numbers in the answer that are the right one."""
    return _share(re.findall(r"\d+", answer), reference)


def retrieval(answer: str, reference: str, all_classes: Sequence[str] = ()) -> float:
    """Share of the numbers in the answer that are the number of the right paragraph."""
    return _share(re.findall(r"\d+", answer), re.findall(r"Paragraph (\d+)", reference)[0])


def code_sim(answer: str, reference: str, all_classes: Sequence[str] = ()) -> float:
    """Similarity, rounded to percent, of the first line of code without comment or backtick."""
    lines = answer.lstrip("\n").split("\n")
    line = next((line for line in lines if not re.search(r"[`#]|//", line)), "")
    if not line or not reference:
        return float(line == reference)
    return round(100 * SequenceMatcher(None, line, reference).ratio()) / 100


METRICS: dict[str, Callable[[str, str, Sequence[str]], float]] = {
    "qa_f1": qa_f1,
    "rouge_l": rouge_l,
    "classification": classification,
    "count": count,
    "retrieval": retrieval,
    "code_sim": code_sim,
}
"""Metrics by name; each takes answer, reference and classes."""


def _plain_words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _sentences(text: str) -> list[list[str]]:
    # A sentence of white space alone has one word, which is empty.
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _common_subsequence(left: Sequence[str], right: Sequence[str]) -> set[str]:
    """Words of one longest common subsequence; of several, the one that the package rouge takes."""
    lengths = [[0] * (len(right) + 1)]
    for word in left:
        above, row = lengths[-1], [0]
        for j, other in enumerate(right):
            row.append(above[j] + 1 if word == other else max(above[j + 1], row[j]))
        lengths.append(row)
    words = set()
    i, j = len(left), len(right)
    while i and j:
        if left[i - 1] == right[j - 1]:
            i, j = i - 1, j - 1
            words.add(left[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def _share(found: Sequence[str], wanted: str) -> float:
    return found.count(wanted) / len(found) if found else 0.0
