"""Questions over paragraphs, from SQuAD and HotpotQA, as RULER reads them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from patheval.errors import UnsupportedError

from ..generation import Loaded
from ..sources import Fetched, SourceFile, data_folder

SQUAD = SourceFile(
    name="SQuAD 2.0's development set",
    folder="rajpurkar/squad_v2",
    path="squad_v2/validation-00000-of-00001.parquet",
    revision="3ffb306f725f7d2ce8394bc1873b24868140c412",
    sha256="0560174ab095c5ac0a8c8dc8da05f1625453c45a77e4ce9cabc6947ddfdd24cb",
)
# In a data folder, the files as RULER's own scripts name them are taken first.
RULER_SQUAD = SourceFile(
    name="RULER's squad.json",
    folder="ruler",
    path="squad.json",
    url="https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json",
    sha256="80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
)
HOTPOTQA = SourceFile(
    name="HotpotQA's development set with distractors",
    folder="namlh2004/hotpotqa",
    path="hotpot_dev_distractor_v1.json",
    revision="7e54db4656209750ff487f6fdf8e39a66dba136b",
    sha256="e3da074df24e8369009918aa5cdbdd254dadcde4c63f7569d36afd6f2268caa8",
)
RULER_HOTPOTQA = SourceFile(
    name="RULER's hotpotqa.json",
    folder="ruler",
    path="hotpotqa.json",
    url="http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json",
    sha256=HOTPOTQA.sha256,
)


@dataclass(frozen=True)
class Question:
    """A question, with indices of documents.

    Attributes:
        query: The question.
        references: Accepted answers.
        needed: Documents that answer it.
        related: Further documents on the same subject.
    """

    query: str
    references: tuple[str, ...]
    needed: tuple[int, ...]
    related: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Questions:
    """A data set.

    Attributes:
        documents: All distinct documents, sorted.
        questions: The questions, in the order of the file.
    """

    documents: tuple[str, ...]
    questions: tuple[Question, ...]


def squad(metadata: Mapping[str, Any]) -> Loaded:
    """Loads the answerable questions of SQuAD.

    Args:
        metadata: The task's metadata.

    Returns:
        `Questions`, and the SHA-256 of the file.

    Raises:
        PrerequisiteError: The file is missing.
        UnsupportedError: It has other content, or not the format.
    """
    own = RULER_SQUAD.is_in(data_folder(metadata))
    return _load((RULER_SQUAD if own else SQUAD).fetch(metadata), read_squad)


def hotpotqa(metadata: Mapping[str, Any]) -> Loaded:
    """Loads the questions of HotpotQA; arguments and errors are those of `squad`."""
    own = RULER_HOTPOTQA.is_in(data_folder(metadata))
    return _load((RULER_HOTPOTQA if own else HOTPOTQA).fetch(metadata), read_hotpotqa)


def read_squad(content: Any) -> Questions:
    """Reads SQuAD 2.0's JSON: needed is the question's paragraph, related are its article's."""
    articles = [
        [paragraph["context"] for paragraph in article["paragraphs"]] for article in content["data"]
    ]
    documents, index_of = _number(text for article in articles for text in article)
    questions = []
    for article, texts in zip(content["data"], articles, strict=True):
        for paragraph in article["paragraphs"]:
            gold = index_of[paragraph["context"]]
            related = dict.fromkeys(index_of[text] for text in texts)
            related.pop(gold)
            questions += [
                Question(
                    query=item["question"],
                    references=tuple(answer["text"] for answer in item["answers"]),
                    needed=(gold,),
                    related=tuple(related),
                )
                for item in paragraph["qas"]
                if not item["is_impossible"]
            ]
    return Questions(documents, tuple(questions))


def read_hotpotqa(content: Any) -> Questions:
    """Reads HotpotQA's JSON: needed are the supporting paragraphs, related the other eight."""
    own = [
        {title: f"{title}\n{''.join(sentences)}" for title, sentences in item["context"]}
        for item in content
    ]
    documents, index_of = _number(text for texts in own for text in texts.values())
    questions = []
    for item, texts in zip(content, own, strict=True):
        supporting = {title for title, _ in item["supporting_facts"]}
        needed = tuple(index_of[text] for title, text in texts.items() if title in supporting)
        related = tuple(index_of[text] for title, text in texts.items() if title not in supporting)
        questions.append(Question(item["question"], (item["answer"],), needed, related))
    return Questions(documents, tuple(questions))


def _number(texts: Any) -> tuple[tuple[str, ...], dict[str, int]]:
    documents = tuple(sorted(set(texts)))
    return documents, {text: index for index, text in enumerate(documents)}


def _squad_json(path: Path) -> Any:
    """Reads the hub's table, one row for each question, into the form of the original file."""
    from datasets import Dataset

    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in Dataset.from_parquet(str(path)):
        answers = [{"text": text} for text in row["answers"]["text"]]
        item = {"question": row["question"], "answers": answers, "is_impossible": not answers}
        articles.setdefault(row["title"], {}).setdefault(row["context"], []).append(item)
    return {
        "data": [
            {"paragraphs": [{"context": text, "qas": qas} for text, qas in paragraphs.items()]}
            for paragraphs in articles.values()
        ]
    }


def _load(file: Fetched, read: Callable[[Any], Questions]) -> Loaded:
    return Loaded(_read(file.path, file.sha256, read), file.sha256)


@cache
def _read(path: Path, sha256: str, read: Callable[[Any], Questions]) -> Questions:
    del sha256  # Part of the key.
    try:
        content = (
            _squad_json(path)
            if path.suffix == ".parquet"
            else json.loads(path.read_text(encoding="utf-8"))
        )
        data = read(content)
        if not data.questions:
            raise ValueError("no question has an answer")
        return data
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise UnsupportedError(
            f"{path} has not the format of the original ({type(error).__name__}: {error}); "
            "put the original file there"
        ) from error
