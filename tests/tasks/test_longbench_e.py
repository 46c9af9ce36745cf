"""LongBench-E: scores, prompts and buckets, on a small archive of our own."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from answering_lm import AnsweringLM, evaluate, manager

from patheval.errors import PrerequisiteError, UnsupportedError
from patheval.golden.case import Case
from patheval.model_adapters._lengths import DEFAULT_MAX_LENGTH as MODELS_MAX_LENGTH
from patheval.tasks.longbench_e.generate import (
    BUCKETS,
    DEFAULT_MAX_LENGTH,
    bucket_of,
    fit_prompt,
    longbench_e,
)
from patheval.tasks.longbench_e.golden import replay
from patheval.tasks.longbench_e.scoring import score
from patheval.tasks.longbench_e.sets import SETS
from patheval.tasks.tokenization import load_tokenizer

NAMES = list(SETS)
REPORT = (
    "The Government Accountability Office found that the agency did not update its guidance. It "
    "recommended three actions. The agency agreed with all of them."
)
NEWS = (
    "Police in Oslo arrested two men on Monday after a chase through the old town. No one was "
    "hurt. The men are 34 and 41 years old."
)
CLASSES = ["Food", "Date", "Order, rank", "Abbreviation", "Expression abbreviated", "City",
           "Country", "State", "Title of a person", "Description of a person"]  # fmt: skip
NESTED = ["person", "a person", "of a person", "Description of a person", "Description", "Title"]


# Scores of THUDM/LongBench at 2e00731 with rouge 1.0.1 and fuzzywuzzy 0.18.0 (difflib).
@pytest.mark.parametrize(
    ("name", "answer", "references", "classes", "expected"),
    [
        ("2wikimqa", "Unanswerable.", ["unanswerable"], None, 1.0),
        ("hotpotqa", "Rome and Paris", ["Paris"], None, 0.5),
        ("gov_report", "...  ...", [REPORT], None, 0.0),
        ("gov_report", "\n", [REPORT], None, 0.0),
        ("gov_report", "", [REPORT], None, 0.0),
        ("gov_report", "agency", [REPORT], None, 0.08695652090737242),
        (
            "gov_report",
            "Two men were arrested in Oslo. Police say no one was hurt.",
            [NEWS],
            None,
            0.3783783739956173,
        ),
        (
            "gov_report",
            "1. Police arrested two men.\n2. No one was hurt.\n3. They are 34 and 41.",
            [NEWS],
            None,
            0.5853658488994646,
        ),
        ("multi_news", REPORT.replace(".", "\n"), [REPORT], None, 0.999999995),
        ("multi_news", NEWS, [REPORT, NEWS], None, 0.999999995),
        (
            "multi_news",
            "Police in Oslo arrested two men, aged 34 and 41, on Monday.",
            [NEWS],
            None,
            0.4864864821037255,
        ),
        ("samsum", "\n\n" + NEWS + "\nDialogue: A: hi", [NEWS], None, 0.999999995),
        ("trec", "\nCountry\nQuestion: Who", ["Country"], CLASSES, 1.0),
        ("trec", "country", ["Country"], CLASSES, 0.0),
        ("trec", "Country or City or State", ["City"], CLASSES, 1 / 3),
        ("trec", "Order, rank", ["Order, rank"], CLASSES, 1.0),
        ("trec", "Expression abbreviated", ["Abbreviation"], CLASSES, 0.0),
        ("trec", "Title; Description of a person", ["Description of a person"], NESTED, 1 / 3),
        ("trec", "number", ["number"], ["num", "numb", "number", "other"], 0.5),
        ("trec", "number other", ["number"], ["num", "numb", "number", "other"], 1 / 3),
        ("passage_count", "12 of 20", ["12"], None, 0.5),
        ("passage_count", "012", ["12"], None, 0.0),
        ("passage_count", "1,200", ["1200"], None, 0.0),
        ("passage_count", "-5", ["5"], None, 1.0),
        ("passage_count", "", ["12"], None, 0.0),
        ("passage_retrieval_en", "Paragraph 3 or 4", ["Paragraph 3"], None, 0.5),
        (
            "lcc",
            "# returns the name\n        return self.name",
            ["        return self.name"],
            None,
            1,
        ),
        ("lcc", "\t\treturn a;", ["        return a;"], None, 0.64),
        ("lcc", 'print("héllo")', ['print("hello")'], None, 0.93),
        ("lcc", "RETURN X", ["return x"], None, 0.12),
        ("lcc", "", ["return x"], None, 0.0),
        ("repobench-p", "return self.name", ["        return self.name"], None, 0.8),
        ("repobench-p", "return self.name  # the name", ["return self.name"], None, 0.0),
        ("repobench-p", " \n\nreturn x", ["return x"], None, 0.22),
        ("repobench-p", "ab" * 30, ["ba" * 30], None, 0.98),
    ],
)
def test_scores_agree_with_the_original(name, answer, references, classes, expected):
    assert score(name, answer, references, classes) == pytest.approx(expected, abs=1e-12)


def test_recorded_prompts_of_the_original_are_rendered_byte_for_byte():
    # Start of the SHA-256 of what THUDM/LongBench at 2e00731 writes for this record.
    recorded = {
        "2wikimqa": "1b0ff410f502e95f",
        "gov_report": "688c9856a76c2b2e",
        "hotpotqa": "1b0ff410f502e95f",
        "multi_news": "c94ecaa489f30ad0",
        "multifieldqa_en": "abcc572caa50d8c0",
        "passage_count": "5e28982c9b5ca03a",
        "repobench-p": "ee7cf4b56b6aea80",
        "samsum": "1fe9020af4e2fa57",
    }
    for name, digest in recorded.items():
        prompt = SETS[name].render_prompt({"context": "C.", "input": "I?"})
        assert hashlib.sha256(prompt.encode()).hexdigest()[:16] == digest, name


def record(number, length, *, name, words):
    return {
        "input": f"What is number {number}?",
        "context": "word " * words,
        "answers": {"passage_retrieval_en": ["Paragraph 7"], "passage_count": ["12"]}.get(
            name, ["City" if name == "trec" else f"answer{number}"]
        ),
        "all_classes": CLASSES if name == "trec" else None,
        "length": length,
        "dataset": f"{name}_e",
        "language": "en",
        "_id": str(number),
    }


def write_archive(folder, sizes):
    """Puts an archive of records of the given (stated length, real words) for every set there."""
    path = folder / "zai-org/LongBench/data.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name in NAMES:
            rows = [
                record(number, length, name=name, words=words)
                for number, (length, words) in enumerate(sizes)
            ]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            archive.writestr(f"data/{name}_e.jsonl", lines)
    return {"data_dir": str(folder), "own_data": True}


@pytest.fixture
def data_folder(tmp_path):
    """A data folder whose archive holds records on both sides of each edge, for every set."""
    sizes = [(3999, 20), (4000, 1200), (7999, 30), (8000, 4000), (25000, 40), (0, 50)]
    return write_archive(tmp_path, sizes)


def test_buckets_are_those_of_the_original(data_folder, bpe_folder):
    assert [bucket_of(n) for n in (0, 3999, 4000, 7999, 8000, 25000)] == [
        "0-4k", "0-4k", "4-8k", "4-8k", "8k+", "8k+",
    ]  # fmt: skip
    words = {
        bucket: [
            doc["num_words"]
            for doc in longbench_e(
                name="qasper", bucket=bucket, tokenizer=bpe_folder, max_length=30000, **data_folder
            )["test"]
        ]
        for bucket in BUCKETS
    }
    assert words == {"0-4k": [3999, 0], "4-8k": [4000, 7999], "8k+": [8000, 25000]}


def test_preset_paper_buckets_by_tokens_of_the_prompt(data_folder, bpe_folder):
    given = {"tokenizer": bpe_folder, "max_length": 60000, "preset": "paper", **data_folder}
    tokens = {
        bucket: [d["num_tokens"] for d in longbench_e(name="trec", bucket=bucket, **given)["test"]]
        for bucket in ("0-4k", "8k+")
    }
    assert len(tokens["0-4k"]) == 4
    assert len(tokens["8k+"]) == 1
    assert max(tokens["0-4k"]) < 4096
    assert min(tokens["8k+"]) >= 8192
    with pytest.raises(UnsupportedError, match="preset is 'papre' and must be reference or paper"):
        longbench_e(name="trec", bucket="0-4k", **(given | {"preset": "papre"}))


def test_empty_bucket_is_an_error(tmp_path, bpe_folder):
    given = {"tokenizer": bpe_folder, **write_archive(tmp_path, [(100, 5), (9000, 5)])}
    with pytest.raises(
        UnsupportedError, match="none of the 2 records of lcc is in the bucket 4-8k"
    ):
        longbench_e(name="lcc", bucket="4-8k", **given)


def test_too_long_prompt_loses_its_middle_and_is_counted(data_folder, bpe_folder):
    given = {"tokenizer": bpe_folder, "max_length": 600, **data_folder}
    tokenizer = load_tokenizer(given)
    docs = longbench_e(name="hotpotqa", bucket="8k+", **given)["test"]
    cut, whole = docs[0], docs[1]
    assert whole["num_tokens"] == whole["num_tokens_uncut"]
    assert cut["num_tokens_uncut"] > 600
    assert 600 - 32 - 4 <= cut["num_tokens"] <= 600 - 32
    assert cut["num_tokens"] == tokenizer.num_tokens(cut["prompt"])
    assert cut["prompt"].startswith("Answer the question based on the given passages. Only give")
    assert cut["prompt"].endswith("Question: What is number 3?\nAnswer:")
    lm = AnsweringLM(generate=lambda prompt: "answer3")
    name = "path_longbench_e_hotpotqa_8k+"
    scores = evaluate(name, lm, **given)["results"][name]
    assert scores["cut,none"] == 0.5
    limited = longbench_e(name="hotpotqa", bucket="8k+", max_prompt_tokens=300, **given)["test"]
    assert 296 <= limited[0]["num_tokens"] <= 300


class GrowingTokenizer:
    """Counts characters, and one more than there are where a text was cut."""

    def cut_middle(self, text, max_tokens):
        return (
            text
            if len(text) <= max_tokens
            else f"{text[: max_tokens // 2]}|{text[-max_tokens // 2 :]}"
        )

    def num_tokens(self, text):
        return len(text)


def test_cut_that_grows_is_cut_further():
    assert fit_prompt(GrowingTokenizer(), "abcdefghij", 10) == "abcdefghij"
    assert fit_prompt(GrowingTokenizer(), "abcdefghij", 8) == "abc|ghij"


def test_limit_is_that_of_the_models():
    assert DEFAULT_MAX_LENGTH == MODELS_MAX_LENGTH


def test_limit_without_room_is_an_error(data_folder, bpe_folder):
    with pytest.raises(UnsupportedError, match="max_length=512 leaves 0 tokens for a prompt"):
        longbench_e(
            name="gov_report", bucket="8k+", tokenizer=bpe_folder, max_length=512, **data_folder
        )


@pytest.mark.parametrize("name", NAMES)
def test_knowing_model_scores_one_and_silent_one_zero(data_folder, bpe_folder, name):
    given = {"tokenizer": bpe_folder, "max_length": 40000, **data_folder}
    task = f"path_longbench_e_{name}_0-4k"
    docs = longbench_e(name=name, bucket="0-4k", **given)["test"]
    answers = {doc["prompt"]: doc["references"][0] for doc in docs}
    results = evaluate(task, AnsweringLM(generate=answers.__getitem__), **given)
    scores = results["results"][task]
    # ROUGE's formula ends just below 1.
    assert scores["score,none"] == pytest.approx(1, abs=1e-8)
    assert scores["empty,none"] == scores["cut,none"] == 0
    assert results["n-samples"][task] == {"original": 2, "effective": 2}
    silent = evaluate(task, AnsweringLM(generate=lambda prompt: ""), **given)["results"][task]
    assert (silent["score,none"], silent["empty,none"]) == (0, 1)
    config = manager(**given).load([task])["tasks"][task].config
    assert config.generation_kwargs["max_gen_toks"] == SETS[name].max_gen_toks
    assert config.generation_kwargs["until"] == []


def test_group_of_a_bucket_is_the_plain_mean_of_thirteen_sets(data_folder, bpe_folder):
    given = {"tokenizer": bpe_folder, "max_length": 40000, **data_folder}
    lm = AnsweringLM(generate=lambda prompt: "12" if "final count" in prompt else "")
    results = evaluate("path_longbench_e_4-8k", lm, **given)
    assert results["groups"]["path_longbench_e_4-8k"]["score,none"] == pytest.approx(1 / 13)
    assert len(results["group_subtasks"]["path_longbench_e_4-8k"]) == 13


def test_groups_of_the_paper_have_eleven_sets_by_tokens(tmp_path, bpe_folder):
    # 4200 and 9000 words would be in other buckets than their few tokens are.
    given = {"tokenizer": bpe_folder, **write_archive(tmp_path, [(4200, 5), (9000, 6)])}
    lm = AnsweringLM(generate=lambda prompt: "")
    results = evaluate("path_longbench_e_paper_0-4k", lm, **given)
    assert set(results["group_subtasks"]["path_longbench_e_paper_0-4k"]) == {
        f"path_longbench_e_{name}_0-4k" for name in NAMES if not name.startswith("passage_")
    }
    assert {counts["original"] for counts in results["n-samples"].values()} == {2}
    docs = [sample["doc"] for samples in results["samples"].values() for sample in samples]
    assert {doc["preset"] for doc in docs} == {"paper"}


def test_only_some_sets_are_messages_to_chat_models(tmp_path, bpe_folder):
    given = {"tokenizer": bpe_folder, **write_archive(tmp_path, [(9000, 5)])}

    tasks = manager(**given).load(["path_longbench_e_8k+"])["tasks"]

    def context(name):
        task = tasks[f"path_longbench_e_{name}_8k+"]
        return task.fewshot_context(
            task.eval_docs[0],
            num_fewshot=0,
            apply_chat_template=True,
            chat_template=lambda history, **options: f"<user>{history[-1]['content']}",
        )

    wrapped = {name for name in NAMES if context(name).startswith("<user>")}
    assert wrapped == set(NAMES) - {"trec", "triviaqa", "samsum", "lcc", "repobench-p"}


def test_missing_archive_is_an_error_with_the_command_that_fetches_it(tmp_path, bpe_folder):
    with pytest.raises(PrerequisiteError, match=r"hf download zai-org/LongBench data\.zip"):
        longbench_e(name="lcc", bucket="8k+", tokenizer=bpe_folder, data_dir=str(tmp_path))


def test_other_archive_is_refused_unless_asked_for(data_folder, bpe_folder):
    with pytest.raises(UnsupportedError, match="its SHA-256 is"):
        longbench_e(
            name="lcc", bucket="8k+", tokenizer=bpe_folder, data_dir=data_folder["data_dir"]
        )


def test_every_name_is_listed():
    names = set(manager().match_tasks(["path_longbench_e_*"]))
    expected = {f"path_longbench_e_{bucket}" for bucket in BUCKETS}
    expected |= {f"path_longbench_e_paper_{bucket}" for bucket in BUCKETS}
    expected |= {f"path_longbench_e_{name}_{bucket}" for name in NAMES for bucket in BUCKETS}
    assert names == expected | {f"path_longbench_e_{name}" for name in NAMES}


def replayed(**fields):
    return list(replay(Case({"all_classes": None, **fields}, Path("golden.jsonl"), 1)))


def test_recorded_scores_are_replayed():
    single = {"kind": "single", "task": "hotpotqa", "prediction": "Rome and Paris"}
    [check] = replayed(**single, references=["Paris"], expected_score=0.5)
    assert check.passed
    [check] = replayed(**single, references=["Paris"], expected_score=1.0)
    assert not check.passed
    several = {
        "task": "passage_count",
        "prediction": ["12", "3", "12 of 20"],
        "references": [["12"]] * 3,
    }
    [check] = replayed(kind="dataset_mean", **several, expected_score=50.0)
    assert check.passed
    buckets = {"0-4k": 100.0, "4-8k": 25.0, "8k+": None}
    [check] = replayed(
        kind="buckets", **several, lengths=[3999, 4000, 7999], expected_score=buckets
    )
    assert check.passed
    [check] = replayed(
        kind="buckets", **several, lengths=[3999, 3999, 7999], expected_score=buckets
    )
    assert not check.passed


def test_recorded_prompts_are_replayed():
    shown = {"kind": "rendered", "task": "lcc", "record": {"context": "x = 1\n", "input": ""}}
    prompt = "Please complete the code given below. \nx = 1\nNext line of code:\n"
    checks = replayed(**shown, prompt=prompt, max_new_tokens=64, chat_wrapper_skipped=True)
    assert [check.passed for check in checks] == [True, True, True]
    checks = replayed(**shown, prompt=prompt[:-1], max_new_tokens=32, chat_wrapper_skipped=False)
    assert [check.passed for check in checks] == [False, False, False]


def test_middle_is_cut_where_the_original_cuts_it():
    # Recorded with THUDM/LongBench at 2e00731 and the tokenizer of Mistral 7B v0.1.
    record = {"context": "a   b\t\tc\n\n\n   d  \n" * 400, "input": "Who is Mr. Bingley?"}
    before, prompt, after = replayed(
        kind="middle_truncation", task="trec", record=record, max_length=512, prompt="",
        tokens_before_with_bos=5228, tokens_after_reencode_with_bos=511,
    )  # fmt: skip
    assert before.passed
    assert after.passed
    assert hashlib.sha256(prompt.got.encode()).hexdigest()[:16] == "d64cfed0ecf32549"
