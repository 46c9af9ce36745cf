"""BABILong: released samples from a small folder of our own, and samples of any size."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from answering_lm import AnsweringLM, evaluate, manager
from datasets import Dataset
from own_sources import QUESTIONS as ASKED
from own_sources import write_sources

from patheval.errors import PrerequisiteError, UnsupportedError
from patheval.golden.case import Case
from patheval.tasks.babilong import stories
from patheval.tasks.babilong.generate import any_length, offline, released
from patheval.tasks.babilong.golden import replay
from patheval.tasks.babilong.prompts import QUESTIONS, render_prompt
from patheval.tasks.babilong.scoring import process_results
from patheval.tasks.generation import SampleRng
from patheval.tasks.tokenization import load_tokenizer

SIZES = ["0k", "1k", "2k", "4k", "8k", "16k", "32k", "64k"]
OFFLINE = ["qa1", "qa2", "qa3", "qa4", "qa5"]
ROWS = [
    ("Daniel went to the office. John went to the hall.", "Where is Daniel? ", "office"),
    ("Mary moved to the garden. Daniel moved to the kitchen.", "Where is Daniel? ", "kitchen"),
    ("Sandra went to the bedroom. Mary went to the bathroom.", "Where is Mary? ", "bathroom"),
]


@pytest.fixture
def data_folder(tmp_path):
    """A data folder with three samples of each task and length, and one small book."""
    rows = [{"input": text, "question": q, "target": target} for text, q, target in ROWS]
    for task in range(1, 11):
        for size in ("0k", "4k"):
            path = tmp_path / f"RMT-team/babilong/data/qa{task}/{size}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(rows))
    books = tmp_path / "emozilla/pg19-test/data"
    books.mkdir(parents=True)
    sentences = [f"Sentence number {n} of this little book says nothing." for n in range(400)]
    Dataset.from_dict({"text": [" ".join(sentences)]}).to_parquet(books / "test.parquet")
    return str(tmp_path)


def answer_from(docs):
    """A model that knows the answer to every prompt."""
    answers = {doc["prompt"]: doc["references"][0] for doc in docs}
    return AnsweringLM(generate=lambda prompt: f" {answers[prompt]}. <example>")


def silence():
    return AnsweringLM(generate=lambda prompt: "")


def load(task, **metadata):
    return manager(**metadata).load([task])["tasks"][task].eval_docs


def metrics(results, name):
    scores = results["results"][name]
    return [scores[f"{metric},none"] for metric in ("acc", "acc_lenient", "empty")]


def test_recorded_prompts_of_the_original_are_rendered_byte_for_byte():
    # Start of the SHA-256 of what booydar/babilong at 7a6efee writes for this text and question.
    recorded = {
        "qa1": "f4237cae8b26a47d",
        "qa2": "a7d7544bf461efe3",
        "qa3": "446fa1fdcd43da6d",
        "qa4": "8fcf57ca56810991",
        "qa5": "506fec2c38cc565c",
        "qa6": "d483f82805a11b4f",
        "qa9": "a573df64eb15e606",
        "qa10": "7f722051506cf2b0",
        "qa17": "72db83d6fe180c42",
        "qa20": "7bb290b20c8cbeb2",
    }
    for task, digest in recorded.items():
        prompt = render_prompt(task, " C. ", "Where is Mary? ")
        assert hashlib.sha256(prompt.encode()).hexdigest()[:16] == digest, task


def test_switches_leave_parts_out_as_the_original_does():
    assert render_prompt(
        "qa1", " A. B. ", "Where is Mary? ", use_instruction=False, use_examples=False,
        use_post_prompt=False,
    ) == "<context>\nA. B.\n</context>\n\nQuestion: Where is Mary?"  # fmt: skip
    without_examples = render_prompt("qa5", "A.", "Who?", use_examples=False)
    assert "from the facts.\n\n\n\nYour answer should" in without_examples


# Scores of compare_answers of booydar/babilong at 7a6efee, strict and by its older rule.
@pytest.mark.parametrize(
    ("task", "question", "target", "answer", "acc", "lenient"),
    [
        ("qa1", "Where is Mary? ", "kitchen", "KITCHEN", 1, 1),
        ("qa1", "Where is Mary? ", "kitchen", "kitchen, garden", 0, 1),
        ("qa1", "Where is Mary? ", "kitchen", "kitchen\n\nQuestion: Where is John", 1, 1),
        ("qa1", "Where is Mary? ", "kitchen", "kitchen Question: Where is the garden?", 0, 1),
        ("qa1", "Where is Mary? ", "kitchen", "kitchen <context> garden", 1, 1),
        ("qa1", "Where is Mary? ", "kitchen", "kitchen <example> garden", 1, 1),
        ("qa1", "Where is Mary? ", "kitchen", "Dr. Mary is in the kitchen", 0, 0),
        ("qa1", "Where is Mary? ", "kitchen", "1. kitchen", 0, 0),
        ("qa1", "Where is Mary? ", "kitchen", "kit chen", 0, 0),
        ("qa4", "What is the garden west of? ", "hallway", "Hallway, garden", 1, 1),
        ("qa5", "Who gave the apple to Bill? ", "Mary", "Maryland", 1, 1),
        ("qa5", "What did Fred give to Bill? ", "football", "Fred gave Jeff the football", 0, 1),
        ("qa7", "How many objects is Mary carrying? ", "none", "none", 0, 1),
        ("qa7", "How many objects is Mary carrying? ", "one", "One.", 1, 1),
        ("qa8", "What is Daniel carrying? ", "apple,milk", "milk, apple", 1, 0),
        ("qa8", "What is Daniel carrying? ", "apple,milk", "apple,milk,football", 0, 1),
        ("qa8", "What is Daniel carrying? ", "apple,milk", "apple. milk", 0, 0),
        ("qa10", "Is Bill in the park? ", "maybe", "I do not know, maybe", 0, 1),
    ],
)
def test_scores_agree_with_the_original(task, question, target, answer, acc, lenient):
    doc = {"task": task, "question": question, "references": [target]}
    scores = {"acc": acc, "acc_lenient": lenient, "empty": 0}
    assert process_results(doc, [answer]) == scores
    assert process_results(doc, [" \n"]) == {"acc": 0, "acc_lenient": 0, "empty": 1}


@pytest.mark.parametrize("size", ["0k", "4k"])
def test_released_samples_are_read_asked_and_scored(data_folder, bpe_folder, size):
    given = {"data_dir": data_folder, "tokenizer": bpe_folder}
    for task in ("qa1", "qa10"):
        docs = released(qa=task, size=size, **given)["test"]
        for doc, (text, question, target) in zip(docs, ROWS, strict=True):
            assert doc["prompt"] == render_prompt(task, text, question)
            assert doc["references"] == [target]
            assert doc["num_tokens"] == load_tokenizer(given).num_tokens(doc["prompt"])
            assert len(doc["source_sha256"]) == 64
    name = f"path_babilong_qa1_{size}"
    docs = released(qa="qa1", size=size, **given)["test"]
    assert metrics(evaluate(name, answer_from(docs), **given), name) == [1, 1, 0]
    results = evaluate(name, silence(), **given)
    assert metrics(results, name) == [0, 0, 1]
    assert results["n-samples"][name] == {"original": 3, "effective": 3}


@pytest.mark.parametrize("task", ASKED)
def test_knowing_model_scores_one_and_silent_one_zero(tmp_path, bpe_folder, task):
    write_sources(tmp_path)
    given = {"data_dir": str(tmp_path), "own_data": True, "tokenizer": bpe_folder, "length": 2000}
    for name in (f"path_babilong_{task}_1k", f"path_babilong_{task}_any"):
        knowing = AnsweringLM(generate=lambda prompt: f" {ASKED[task][1]}.")
        assert metrics(evaluate(name, knowing, **given), name) == [1, 1, 0]
        assert metrics(evaluate(name, silence(), **given), name) == [0, 0, 1]


def test_first_samples_can_be_asked_for(data_folder, bpe_folder):
    given = {"data_dir": data_folder, "tokenizer": bpe_folder}
    for wanted, got in ((2, 2), (9, len(ROWS))):
        assert len(released(qa="qa1", size="0k", num_samples=wanted, **given)["test"]) == got


def test_group_of_a_length_is_the_plain_mean_of_five_tasks(data_folder, bpe_folder):
    given = {"data_dir": data_folder, "tokenizer": bpe_folder}
    docs = [d for task in OFFLINE for d in released(qa=task, size="4k", **given)["test"]]
    only_qa1 = answer_from([doc for doc in docs if doc["task"] == "qa1"])
    known = only_qa1._generate
    first_qa1 = QUESTIONS["qa1"].instruction
    only_qa1._generate = lambda prompt: known(prompt) if first_qa1 in prompt else "?"
    results = evaluate("path_babilong_4k", only_qa1, **given)
    assert results["groups"]["path_babilong_4k"]["acc,none"] == pytest.approx(0.2)
    assert set(results["group_subtasks"]["path_babilong_4k"]) == {
        f"path_babilong_{task}_4k" for task in OFFLINE
    }


def test_missing_data_set_is_an_error_with_the_command_that_fetches_it(tmp_path, bpe_folder):
    with pytest.raises(
        PrerequisiteError, match=r"hf download .*RMT-team/babilong .*--revision ee0"
    ):
        released(qa="qa2", size="8k", data_dir=str(tmp_path), tokenizer=bpe_folder)


def check_size(doc, tokenizer, length):
    assert doc["num_tokens"] == tokenizer.num_tokens(doc["prompt"])
    assert 0.97 * length <= doc["num_tokens"] + 20 <= length
    context = re.search(r"<context>\n(.*)\n</context>\n\nQuestion", doc["prompt"], re.DOTALL)[1]
    place = 0
    for fact in doc["facts"]:
        place = context.index(fact, place) + len(fact)
    before = doc["prompt"].partition(doc["facts"][0])[0]
    assert doc["depth_tokens"] == tokenizer.num_tokens(before)


@pytest.mark.parametrize("length", [1500, 3000])
def test_any_length_is_filled_with_released_facts_in_books(data_folder, bpe_folder, length):
    given = {"data_dir": data_folder, "tokenizer": bpe_folder, "length": length}
    docs = any_length(qa="qa1", num_samples=6, **given)["test"]
    for doc in docs:
        check_size(doc, load_tokenizer(given), length)
        text, question, target = ROWS[doc["index"] % 3]
        assert " ".join(doc["facts"]) == text
        assert (doc["question"], doc["references"]) == (question, [target])
    assert metrics(
        evaluate("path_babilong_qa1_any", answer_from(docs), **given), "path_babilong_qa1_any"
    ) == [1, 1, 0]


def test_books_without_sentences_are_an_error(data_folder, bpe_folder):
    books = Path(data_folder) / "emozilla/pg19-test/data/test.parquet"
    Dataset.from_dict({"text": ["All. Is. Short. " * 500]}).to_parquet(books)
    docs = any_length(qa="qa1", length=900, data_dir=data_folder, tokenizer=bpe_folder)["test"]
    with pytest.raises(UnsupportedError, match=r"none of the 1 texts .* sentence of 8 words"):
        docs[0]


@pytest.mark.parametrize("task", OFFLINE)
def test_offline_samples_are_filled_and_scored(english_folder, task):
    given = {"tokenizer": english_folder}
    docs = offline(qa=task, target_length=2048, num_samples=6, **given)["test"]
    for doc in docs:
        check_size(doc, load_tokenizer(given), 2048)
    name = f"path_babilong_{task}_2k_offline"
    assert metrics(evaluate(name, answer_from(docs), **given), name) == [1, 1, 0]
    assert metrics(evaluate(name, silence(), **given), name) == [0, 0, 1]


def test_facts_are_spread_over_the_whole_text(english_folder):
    docs = offline(qa="qa4", target_length=2048, num_samples=100, tokenizer=english_folder)["test"]
    texts = [doc["prompt"].partition("<context>\n")[2].partition("\n</context>")[0] for doc in docs]
    depths = sorted(
        text.index(doc["facts"][0]) / len(text) for doc, text in zip(docs, texts, strict=True)
    )
    # Quantiles of the smaller of two uniform numbers; four standard errors.
    for share in (0.25, 0.5, 0.75):
        assert depths[int(100 * share)] == pytest.approx(1 - (1 - share) ** 0.5, abs=0.16)


def test_length_too_small_for_the_facts_is_an_error(english_folder):
    docs = offline(qa="qa1", length=200, tokenizer=english_folder)["test"]
    with pytest.raises(UnsupportedError, match="babilong_offline_qa1 cannot fit 200 tokens"):
        docs[0]


def test_offline_documents_depend_on_nothing_but_their_key(english_folder, run_python):
    def build(**metadata):
        return offline(qa="qa2", target_length=1024, tokenizer=english_folder, **metadata)["test"]

    docs = [build()[index] for index in (2, 1, 0)][::-1]
    assert len({doc["prompt"] for doc in docs} | {build(data_seed=1)[0]["prompt"]}) == 4
    code = (
        "from patheval.tasks.babilong.generate import offline\n"
        f"docs = offline(qa='qa2', target_length=1024, tokenizer={english_folder!r})['test']\n"
        "print([docs[0], docs[1], docs[2]])"
    )
    assert run_python(code, PYTHONHASHSEED="1", PATHEVAL_CACHE="off").strip() == str(docs)


def solve(task, facts, question):
    """Answers by following the facts, independently of how stories are made."""
    if task == "qa4":
        direction = re.search("north|south|east|west", question)[0]
        opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}[direction]
        pairs = set()
        for fact in facts:
            left, way, right = re.fullmatch(r"[Tt]he (\w+) is (\w+) of the (\w+)\.", fact).groups()
            pairs |= {(left, right)} if way == direction else set()
            pairs |= {(right, left)} if way == opposite else set()
        if subject := re.search(r"What is the (\w+) ", question):
            return next(right for left, right in pairs if left == subject[1])
        room = re.search(r"of the (\w+)\?", question)[1]
        return next(left for left, right in pairs if right == room)
    if task == "qa5":
        giver, thing, receiver = re.search(
            r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.",
            next(fact for fact in reversed(facts) if re.search("gave|handed|passed", fact)),
        ).groups()
        if question.startswith("What"):
            return thing
        return receiver if "received" in question or question.endswith("to?") else giver
    room, owner, been = {}, {}, {}
    for fact in facts:
        words = fact.removesuffix(".").split()
        person = words[0]
        if "to" in words:
            room[person] = words[-1]
            for thing in [t for t, p in owner.items() if p == person]:
                been[thing].append(words[-1])
        elif words[-1] == "there":
            owner[words[-2]] = person
            been.setdefault(words[-2], [room[person]])
        else:
            del owner[words[-1]]
    if task == "qa1":
        return room[re.search(r"Where is (\w+)\?", question)[1]]
    if task == "qa2":
        return been[re.search(r"the (\w+)\?", question)[1]][-1]
    thing, after = re.search(r"the (\w+) before the (\w+)\?", question).groups()
    assert been[thing][-1] == after
    return been[thing][-2]


@pytest.mark.parametrize("task", OFFLINE)
def test_answers_of_stories_follow_from_their_facts(task):
    targets = set()
    for number in range(300):
        story = stories.tell(task, SampleRng(task, number))
        assert solve(task, story.facts, story.question) == story.target
        targets.add(story.target)
    # qa5 answers with people and things, the others with rooms: every label occurs.
    assert targets == set(QUESTIONS[task].labels)


def test_every_name_is_listed():
    names = set(manager().match_tasks(["path_babilong_*"]))
    expected = {f"path_babilong_{size}" for size in SIZES}
    expected |= {f"path_babilong_qa{n}_{size}" for n in range(1, 11) for size in [*SIZES, "any"]}
    expected |= {f"path_babilong_{size}_offline" for size in SIZES[1:]}
    expected |= {
        f"path_babilong_{qa}_{size}_offline" for qa in OFFLINE for size in [*SIZES[1:], "any"]
    }
    tags = {f"path_babilong_qa{n}" for n in range(1, 11)}
    tags |= {f"path_babilong_{qa}_offline" for qa in OFFLINE}
    assert names == expected | tags


def test_recorded_cases_are_replayed():
    def passes(**fields):
        return [check.passed for check in replay(Case(fields, Path("golden.jsonl"), 1))]

    answer = {"kind": "single", "prediction": "milk, apple", "references": ["apple,milk"],
              "question": "What is Mary carrying? ", "labels": QUESTIONS["qa8"].labels}  # fmt: skip
    assert passes(**answer, expected_score=1.0, expected_score_loose=0.0) == [True, True]
    assert passes(**answer, expected_score=0.0, expected_score_loose=0.0) == [False, True]
    prompt = "<context>\nA.\n</context>\n\nQuestion: Who?"
    bare = dict.fromkeys(("use_instruction", "use_examples", "use_post_prompt"), False)
    shown = {"kind": "rendered", "task": "qa5", "context": " A. ", "question": "Who?", **bare}
    assert passes(**shown, prompt=prompt) == [True]
    assert passes(**shown, prompt=f"{prompt} ") == [False]
    hidden = {"kind": "noise_injection", "facts": ["F one.", "F two."]}
    for text in ("F one. F two.", "N a. F one. N b.\nN c. F two.", "F one. N a. F two. N b."):
        assert passes(**hidden, input=text) == [True]
    assert passes(**hidden, input="N a. F one.  F two.") == [False]
