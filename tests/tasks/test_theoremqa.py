"""TheoremQA: reading of answers, prompts, and a run on questions of our own."""

import math

import pytest
from answering_lm import AnsweringLM, evaluate, manager
from datasets import Dataset

from patheval.errors import PrerequisiteError
from patheval.tasks.theoremqa.arithmetic import read_number, without_units
from patheval.tasks.theoremqa.examples import list_examples
from patheval.tasks.theoremqa.generate import theoremqa
from patheval.tasks.theoremqa.scoring import extract_answer, process_results

ROWS = [
    ("What is 6 x 7?", "42", "integer"),
    ("What is one third?", "0.3333", "float"),
    ("Is every finite group of prime order cyclic?", "True", "bool"),
    ("Which one is a prime? (a) 4 (b) 5 (c) 6", "(b)", "option"),
    ("What are the roots of x^2 = 4?", "[-2, 2]", "list of integer"),
]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("-3.50", -3.5),
        ("1,234,567", 1234567),
        ("2e-3", 0.002),
        ("3*(2+4)", 18),
        ("2^10", 1024),
        (r"\frac{1}{4}", 0.25),
        (r"\dfrac{3}{2}\pi", 1.5 * math.pi),
        (r"\frac{\sqrt{3}}{2}", math.sqrt(3) / 2),
        (r"\sqrt[3]{27}", 3),
        (r"2\sqrt{2}", 2 * math.sqrt(2)),
        (r"e^{-2}", math.exp(-2)),
        (r"\left( 1 + 2 \right) \cdot 3", 9),
        (r"6.02 \times 10^{23}", 6.02e23),
        (r"\boxed{7}", 7),
        ("3π", 3 * math.pi),
        ("ln(2)", math.log(2)),
        (r"\ln(2)", math.log(2)),
        ("factorial(5)", 120),
        ("50/100", 0.5),
        ("", None),
        ("x + 1", None),
        ("[1, 2]", None),
        ("1/0", None),
        ("9**9**9**9", None),
        ("__import__('os')", None),
        ("(1).real", None),
    ],
)
def test_numbers_are_read(text, number):
    got = read_number(text)
    assert got is None if number is None else got == pytest.approx(number)
    assert isinstance(got, int) == (got is not None and float(number).is_integer())


def test_units_are_dropped():
    assert without_units("$25%") == "25/100"
    assert without_units("20 °C") == "20 "


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("We add.\nThe answer is 42.", "42"),
        ("The answer is: 42", "42"),
        ("so x = 5. the answer is x = 5.", "5"),
        (r"The answer is \frac{1}{2}.", "0.5"),
        ("The answer is 12 cm.", "12"),
        ("The answer is True.", "True"),
        ("The answer is yes, it holds.", "True"),
        ("The answer is not known.", "False"),
        ("The answer is (b).", "(b)"),
        ("The answer is 1.\n\nProblem:\nx\n\nThe answer is 2.", "1"),
        ("We get 3, then 17", "17"),
        ("We get nothing", "False"),
        ("We are silent", ""),
        ("", ""),
    ],
)
def test_final_answer_is_taken(text, answer):
    assert extract_answer(text) == answer


# The first score is that of OpenCompass, the second compares lists by their numbers.
@pytest.mark.parametrize(
    ("text", "truth", "kind", "acc", "acc_lists"),
    [
        ("The answer is 41.6.", "42", "integer", 1, 1),
        ("The answer is 41.4.", "42", "integer", 0, 0),
        ("The answer is 0.32.", "0.3333", "float", 1, 1),
        ("The answer is 0.31.", "0.3333", "float", 0, 0),
        (r"The answer is \frac{1}{3}.", "0.3333", "float", 1, 1),
        ("The answer is 33%.", "0.3333", "float", 1, 1),
        ("The answer is no.", "True", "bool", 0, 0),
        ("The answer is 1.", "True", "bool", 1, 1),
        ("The answer is (B).", "(b)", "option", 1, 1),
        ("The answer is (c).", "(b)", "option", 0, 0),
        ("The answer is [-2, 2].", "[-2, 2]", "list of integer", 1, 1),
        ("The answer is [2, -2].", "[-2, 2]", "list of integer", 0, 1),
        ("The answer is (2, -2).", "[-2, 2]", "list of integer", 0, 1),
        ("The answer is [2].", "[-2, 2]", "list of integer", 0, 0),
        ("The answer is [2, x].", "[-2, 2]", "list of integer", 0, 0),
        ("The answer is 2.", "[-2, 2]", "list of integer", 0, 0),
    ],
)
def test_scores_follow_the_rules(text, truth, kind, acc, acc_lists):
    doc = {"Answer": truth, "Answer_type": kind}
    assert process_results(doc, [text]) == {"acc": acc, "acc_lists": acc_lists, "empty": 0}
    silent = process_results(doc, [" "])
    assert (silent["acc"], silent["acc_lists"], silent["empty"]) == (0, 0, 1)


def test_examples_end_with_an_answer_of_each_kind():
    answers = [extract_answer(example["solution"]) for example in list_examples()]
    assert answers == ["6", "0.1667", "True", "[2, 5]", "(a)"]


@pytest.fixture
def data_folder(tmp_path):
    folder = tmp_path / "TIGER-Lab/TheoremQA/data"
    folder.mkdir(parents=True)
    questions, answers, kinds = zip(*ROWS, strict=True)
    Dataset.from_dict(
        {
            "Question": questions,
            "Answer": answers,
            "Answer_type": kinds,
            "Picture": [{"bytes": b"not read", "path": None}] * len(ROWS),
        }
    ).to_parquet(folder / "test-00000-of-00001.parquet")
    return str(tmp_path)


def test_prompt_has_five_examples(data_folder):
    task = manager(data_dir=data_folder).load(["path_theoremqa"])["tasks"]["path_theoremqa"]
    prompt = task.fewshot_context(task.eval_docs[0], num_fewshot=5)
    assert prompt.startswith(
        "You are supposed to provide a solution to a given problem.\n\nProblem:\n"
    )
    assert prompt.endswith("The answer is (a).\n\nProblem:\nWhat is 6 x 7?\nSolution:")
    assert prompt.count("Problem:\n") == 6
    first = list_examples()[0]
    assert f"Problem:\n{first['Question']}\nSolution: {first['solution']}\n\nProblem:" in prompt


def test_knowing_model_scores_one_and_silent_one_zero(data_folder):
    answers = {question: answer for question, answer, _ in ROWS}

    def knowing(prompt):
        question = prompt.rpartition("Problem:\n")[2].removesuffix("\nSolution:")
        return f" We know it.\nThe answer is {answers[question]}."

    given = {"data_dir": data_folder}
    results = evaluate("path_theoremqa", AnsweringLM(generate=knowing), limit=None, **given)
    scores = results["results"]["path_theoremqa"]
    assert [scores[f"{name},none"] for name in ("acc", "acc_lists", "empty")] == [1, 1, 0]
    assert results["n-samples"]["path_theoremqa"] == {"original": 5, "effective": 5}
    silent = AnsweringLM(generate=lambda prompt: "")
    scores = evaluate("path_theoremqa", silent, limit=None, **given)["results"]["path_theoremqa"]
    assert [scores[f"{name},none"] for name in ("acc", "acc_lists", "empty")] == [0, 0, 1]


def test_missing_data_set_is_an_error_with_the_command_that_fetches_it(tmp_path):
    with pytest.raises(
        PrerequisiteError, match=r"hf download TIGER-Lab/TheoremQA .*--revision a340"
    ):
        theoremqa(data_dir=str(tmp_path))
