"""Small data of our own, where those of the benchmarks lie in a data folder."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as parquet
from datasets import Dataset

from patheval.tasks.longbench_e.generate import ARCHIVE
from patheval.tasks.longbench_e.sets import SETS

# A question and an answer of each BABILong task, in the words of its labels.
QUESTIONS = {
    "qa1": ("Where is Daniel? ", "office"),
    "qa2": ("Where is the football? ", "garden"),
    "qa3": ("Where was the apple before the kitchen? ", "bathroom"),
    "qa4": ("What is west of the garden? ", "hallway"),
    "qa5": ("Who gave the apple to Bill? ", "Mary"),
    "qa6": ("Is Daniel in the kitchen? ", "no"),
    "qa7": ("How many objects is Mary carrying? ", "two"),
    "qa8": ("What is Daniel carrying? ", "apple,milk"),
    "qa9": ("Is Sandra in the hallway? ", "yes"),
    "qa10": ("Is Bill in the park? ", "maybe"),
}
# Stated words and real characters of LongBench records: of each length, by either count.
_RECORDS = [(1500, 9000), (5000, 20_000), (9000, 60_000)] * 2


def prose(num_sentences):
    """Sentences of a dozen tokens, no two alike."""
    numbers = range(num_sentences)
    return " ".join(f"Word number {n} stands in this book and says nothing." for n in numbers)


def write_sources(folder, sizes=("0k", "1k")):
    """Writes the sources of BABILong at `sizes`, LongBench and perplexity to a folder."""
    for task, (question, target) in QUESTIONS.items():
        row = {"input": "Daniel went to the office. ", "question": question, "target": target}
        path = folder / "RMT-team/babilong/data" / task
        path.mkdir(parents=True)
        for size in sizes:
            (path / f"{size}.json").write_text(json.dumps([row, row]))
    text = prose(9000)
    books = folder / "emozilla/pg19-test/data"
    books.mkdir(parents=True)
    Dataset.from_dict({"text": [text, text[9:]]}).to_parquet(books / "test.parquet")
    code = folder / "codeparrot/codeparrot-clean-valid"
    code.mkdir(parents=True)
    files = [f"def function_{n}(argument):\n    return argument + {n}\n" * 40 for n in range(600)]
    Dataset.from_dict({"content": files}).to_json(code / "train.json")
    for number in (0, 1, 4):
        path = folder / f"deepmind/narrativeqa/data/test-0000{number}-of-00008.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({"document": [{"id": str(number), "text": text}]}), path)
    archive = folder / ARCHIVE.folder / "data"
    archive.mkdir(parents=True)
    for name in SETS:
        answer = "Paragraph 7" if name == "passage_retrieval_en" else "7"
        rows = [
            {
                "input": "Which number is it?",
                "context": text[:num_chars],
                "answers": [answer],
                "all_classes": ["7", "8"] if name == "trec" else None,
                "length": num_words,
            }
            for num_words, num_chars in _RECORDS
        ]
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (archive / f"{name}_e.jsonl").write_text(lines)
    shutil.make_archive(str(archive), "zip", archive.parent, "data")
