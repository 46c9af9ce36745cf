"""LongBench-E's thirteen sets: what is asked, how much may be answered, how it is scored."""

from collections.abc import Mapping
from dataclasses import dataclass

_ARTICLE = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question "
    'cannot be answered based on the information in the article, write "unanswerable". If the '
    'question is a yes/no question, answer "yes", "no", or "unanswerable". Do not provide any '
    "explanation."
)
_PASSAGES = (
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words."
)
_SEVERAL_HOPS = (
    f"{_PASSAGES}\n\nThe following are given passages.\n{{context}}\n\n{_PASSAGES}\n\n"
    "Question: {input}\nAnswer:"
)
_CODE = "Please complete the code given below. \n{context}%sNext line of code:\n"


@dataclass(frozen=True)
class EvalSet:
    """One of the sets.

    Attributes:
        template: Prompt with the fields `context` and `input` of a record.
        max_gen_toks: Generation budget, in tokens.
        metric: Name of the score, a key of `scoring.METRICS`.
        first_line_only: Whether all but the first line of an answer is dropped.
        chat: Whether chat models get the prompt as a message.
    """

    template: str
    max_gen_toks: int
    metric: str
    first_line_only: bool = False
    chat: bool = True

    def render_prompt(self, record: Mapping[str, object]) -> str:
        """Writes the prompt of a record."""
        return self.template.format(context=record["context"], input=record["input"])


SETS = {
    "qasper": EvalSet(
        "You are given a scientific article and a question. Answer the question "
        f"{_ARTICLE}\n\nArticle: {{context}}\n\n Answer the question based on the above article "
        f"{_ARTICLE}\n\nQuestion: {{input}}\n\nAnswer:",
        128,
        "qa_f1",
    ),
    "multifieldqa_en": EvalSet(
        "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following "
        "question based on the above text, only give me the answer and do not output any other "
        "words.\n\nQuestion: {input}\nAnswer:",
        64,
        "qa_f1",
    ),
    "hotpotqa": EvalSet(_SEVERAL_HOPS, 32, "qa_f1"),
    "2wikimqa": EvalSet(_SEVERAL_HOPS, 32, "qa_f1"),
    "gov_report": EvalSet(
        "You are given a report by a government agency. Write a one-page summary of the report."
        "\n\nReport:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
        512,
        "rouge_l",
    ),
    "multi_news": EvalSet(
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n"
        "{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:",
        512,
        "rouge_l",
    ),
    "trec": EvalSet(
        "Please determine the type of the question below. Here are some examples of questions."
        "\n\n{context}\n{input}",
        64,
        "classification",
        first_line_only=True,
        chat=False,
    ),
    "triviaqa": EvalSet(
        "Answer the question based on the given passage. Only give me the answer and do not output "
        "any other words. The following are some examples.\n\n{context}\n\n{input}",
        32,
        "qa_f1",
        first_line_only=True,
        chat=False,
    ),
    "samsum": EvalSet(
        "Summarize the dialogue into a few short sentences. The following are some examples."
        "\n\n{context}\n\n{input}",
        128,
        "rouge_l",
        first_line_only=True,
        chat=False,
    ),
    "passage_count": EvalSet(
        "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. "
        "Please carefully read these paragraphs and determine how many unique paragraphs there are "
        "after removing duplicates. In other words, how many non-repeating paragraphs are there in "
        "total?\n\n{context}\n\nPlease enter the final count of unique paragraphs after removing "
        "duplicates. The output format should only contain the number, such as 1, 2, 3, and so on."
        "\n\nThe final answer is: ",
        32,
        "count",
    ),
    "passage_retrieval_en": EvalSet(
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which "
        "paragraph the abstract is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}"
        "\n\nPlease enter the number of the paragraph that the abstract is from. The answer format "
        'must be like "Paragraph 1", "Paragraph 2", etc.\n\nThe answer is: ',
        32,
        "retrieval",
    ),
    "lcc": EvalSet(_CODE % "", 64, "code_sim", chat=False),
    "repobench-p": EvalSet(_CODE % "{input}", 64, "code_sim", chat=False),
}
