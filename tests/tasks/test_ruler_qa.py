"""RULER's question answering on small data sets of our own in the formats of SQuAD and HotpotQA."""

import json
import re
from pathlib import Path

import pytest
from datasets import Dataset

from patheval.errors import UnsupportedError
from patheval.tasks.ruler import documents, qa
from patheval.tasks.ruler.scoring import process_qa_results
from patheval.tasks.tokenization import load_tokenizer

KINDS = ["bpe-2k", "bpe-12k", "chars-bos", "two-lines"]


def docs_of(task, length, folder, own_data, num_samples=6, **metadata):
    make = getattr(qa, task)
    return make(
        target_length=length, tokenizer=folder, num_samples=num_samples, **own_data, **metadata
    )["test"]


def shown(prompt):
    numbered = prompt.partition("given documents.\n\n")[2].rpartition("\n\nAnswer the")[0]
    parts = re.split(r"(?:^|\n\n)Document (\d+):\n", numbered)[1:]
    assert [int(number) for number in parts[::2]] == list(range(1, len(parts) // 2 + 1))
    return parts[1::2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_size_is_exact_and_depth_is_that_of_the_answer(tokenizer_folders, own_data, task, kind):
    tokenizer = load_tokenizer({"tokenizer": tokenizer_folders[kind]})
    for doc in docs_of(task, 4096, tokenizer_folders[kind], own_data):
        assert doc["num_tokens"] == tokenizer.num_tokens(doc["prompt"] + doc["answer_prefix"])
        texts = shown(doc["prompt"])
        assert doc["num_units"] == len(texts)
        sizes = sorted(tokenizer.num_tokens(f"\n\nDocument 20:\n{text}") for text in texts)
        assert 0 <= 4096 - qa.MAX_GEN_TOKS - doc["num_tokens"] < sizes[len(sizes) // 2]
        if task == "qa_1":
            start = doc["prompt"].index(f"in {doc['references'][0]} by") + 3
            assert doc["depth_tokens"] == tokenizer.num_tokens(doc["prompt"][:start])


def test_squad_prompt_holds_its_paragraph_once_and_its_article(bpe_folder, own_data):
    data = documents.squad(own_data).data
    for index, doc in enumerate(docs_of("qa_1", 8192, bpe_folder, own_data)):
        question = data.questions[index]
        texts = shown(doc["prompt"])
        assert doc["references"] == [str(1100 + index), "long ago"]
        assert doc["prompt"].endswith(f"\n\nQuestion: When was Vale {index} founded?")
        for needed in (*question.needed, *question.related):
            assert texts.count(data.documents[needed]) == 1
        assert len(set(texts)) == len(texts) > 20


def test_hotpotqa_prompt_holds_the_questions_ten_paragraphs(bpe_folder, own_data):
    data = documents.hotpotqa(own_data).data
    for index, doc in enumerate(docs_of("qa_2", 8192, bpe_folder, own_data)):
        question = data.questions[index]
        texts = shown(doc["prompt"])
        assert len(question.needed) == 2 and len(question.related) == 8
        assert {data.documents[i] for i in (*question.needed, *question.related)} <= set(texts)
        assert doc["references"] == ["Ada Holm"]
    small = docs_of("qa_2", 768, bpe_folder, own_data)[0]
    needed = {data.documents[i] for i in data.questions[0].needed}
    assert needed <= set(shown(small["prompt"]))


def test_answer_is_anywhere(bpe_folder, own_data):
    docs = docs_of("qa_1", 4096, bpe_folder, own_data, num_samples=200)
    depths = sorted(doc["depth_tokens"] / doc["num_tokens"] for doc in docs)
    assert [depths[i] for i in (20, 100, 180)] == pytest.approx([0.1, 0.5, 0.9], abs=0.12)


def test_all_lengths_ask_the_same_questions(bpe_folder, own_data):
    short, long = (docs_of("qa_1", length, bpe_folder, own_data) for length in (1024, 4096))
    assert [d["references"] for d in short] == [d["references"] for d in long]


def test_question_that_fits_no_prompt_is_passed_over(bpe_folder, own_data, tmp_path):
    content = json.loads((Path(own_data["data_dir"]) / "ruler" / "squad.json").read_text())
    first = content["data"][0]["paragraphs"][0]
    first["context"] *= 9
    (tmp_path / "ruler").mkdir()
    (tmp_path / "ruler" / "squad.json").write_text(json.dumps(content))
    metadata = {"data_dir": str(tmp_path), "own_data": True}
    assert docs_of("qa_1", 512, bpe_folder, metadata)[0]["references"][0] == "1101"
    assert docs_of("qa_1", 4096, bpe_folder, metadata)[0]["references"][0] == "1100"
    with pytest.raises(UnsupportedError) as error:
        docs_of("qa_1", 128, bpe_folder, metadata)
    found = re.search(
        r"takes (\d+) and generation 32; use a length of at least (\d+): path_ruler_qa_1_512, or "
        r"path_ruler_qa_1_any with --metadata '{\"length\": (\d+)}'",
        str(error.value),
    )
    assert found, str(error.value)
    smallest, needed, repeated = map(int, found.groups())
    assert needed == repeated == smallest + 32
    assert docs_of("qa_1", needed, bpe_folder, metadata, num_samples=1)[0]["num_tokens"] == smallest


def test_hub_s_table_is_read_as_the_original_file(own_data, tmp_path):
    content = json.loads((Path(own_data["data_dir"]) / "ruler" / "squad.json").read_text())
    rows = [
        {
            "title": f"article {number}",
            "context": paragraph["context"],
            "question": item["question"],
            "answers": {"text": [answer["text"] for answer in item["answers"]]},
        }
        for number, article in enumerate(content["data"])
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]
    place = tmp_path / documents.SQUAD.folder / documents.SQUAD.path
    place.parent.mkdir(parents=True)
    Dataset.from_list(rows).to_parquet(place)
    read = documents.squad({"data_dir": str(tmp_path), "own_data": True}).data
    original = documents.squad(own_data).data
    assert (read.documents, read.questions) == (original.documents, original.questions)


def test_too_few_questions_are_an_error_that_says_how_many(bpe_folder, own_data):
    with pytest.raises(UnsupportedError, match=r"has 600 questions .* '{\"num_samples\": 600}'"):
        docs_of("qa_1", 4096, bpe_folder, own_data, num_samples=601)


def test_small_data_set_shows_documents_again(bpe_folder, tmp_path):
    paragraphs = [
        {
            "context": text,
            "qas": [{"question": "Who?", "answers": [{"text": text[:3]}], "is_impossible": False}],
        }
        for text in ("Ada came.", "Ben left.")
    ]
    (tmp_path / "ruler").mkdir()
    (tmp_path / "ruler" / "squad.json").write_text(
        json.dumps({"data": [{"paragraphs": paragraphs}]})
    )
    metadata = {"data_dir": str(tmp_path), "own_data": True}
    doc = docs_of("qa_1", 1024, bpe_folder, metadata, num_samples=1)[0]
    texts = shown(doc["prompt"])
    assert texts.count("Ada came.") == 1 and texts.count("Ben left.") == len(texts) - 1 > 10


def test_paper_preset_goes_down_in_steps_of_ten_documents(bpe_folder, own_data):
    docs = docs_of("qa_2", 16384, bpe_folder, own_data, num_samples=30, preset="paper")
    assert len({doc["num_units"] % 10 for doc in docs}) == 1
    assert len({doc["num_units"] for doc in docs}) == 2


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_file_of_another_format_is_named(bpe_folder, tmp_path, task):
    (tmp_path / "ruler").mkdir()
    name = {"qa_1": "squad.json", "qa_2": "hotpotqa.json"}[task]
    (tmp_path / "ruler" / name).write_text('{"rows": []}')
    with pytest.raises(UnsupportedError, match=f"{name} has not the format of the original"):
        docs_of(task, 4096, bpe_folder, {"data_dir": str(tmp_path), "own_data": True})


@pytest.mark.parametrize(
    ("answer", "references", "score", "strict"),
    [
        ("I think the Denver Broncos won.", ["Denver Broncos"], 1, 1),
        ("denver\x00", ["Denver", "Broncos", "Elway"], 1, 1),
        ("I do not know.", ["no"], 1, 0),
        ("11999", ["1199"], 1, 0),
        ("maybe", ["yes", "no"], 0, 0),
        ("", ["a"], 0, 0),
    ],
)
def test_any_reference_counts_as_in_the_original(answer, references, score, strict):
    scores = process_qa_results({"references": references}, [answer])
    assert scores == {
        "score": score,
        "strict": strict,
        "string_match_part": score,
        "empty": float(not answer),
    }
