"""How the state-tracking benchmarks ask a model and score its answers."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from patheval.errors import UnsupportedError

from .sequences import SequenceDoc


class SequenceTask(ConfigurableTask):
    """An lm-eval task that asks for every label of a sequence.

    Each label is one log-likelihood request: the sequence up to the labelled symbol, and the label
    behind a space. An answer is right if the label is what greedy decoding gives, over the whole
    vocabulary.

    Args:
        config: The task's YAML file.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config={key: config[key] for key in config if key != "class"})

    def construct_requests(self, doc: SequenceDoc, ctx: str, **kwargs: Any) -> list[Instance]:
        """Makes the requests of a sequence.

        Raises:
            UnsupportedError: A chat template, examples or instructions were added to the sequence.
        """
        if ctx != doc["text"]:
            raise UnsupportedError(
                f"{self.task_name} asks about bare sequences; run it without "
                "--apply_chat_template, --num_fewshot and --system_instruction"
            )
        symbols = doc["text"].split(" ")
        ends = [-1]
        for symbol in symbols:
            ends.append(ends[-1] + len(symbol) + 1)
        return [
            Instance(
                request_type="loglikelihood",
                doc=cast(dict[str, Any], doc),
                arguments=(doc["text"][: ends[position + 1]], f" {target}"),
                idx=number,
                metadata=kwargs["metadata"],
            )
            for number, (position, target) in enumerate(
                zip(doc["positions"], doc["targets"], strict=True)
            )
        ]


def process_results(doc: SequenceDoc, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Scores the answers of a sequence.

    Args:
        doc: The document with the labels.
        results: For each label its log-probability, and whether greedy decoding gives it.

    Returns:
        `acc`: share of the labels that were named; `error`: share of those that were not;
        `sequence_acc`: 1 if all were named, else 0.
    """
    share = sum(is_greedy for _, is_greedy in results) / len(results)
    return {"acc": share, "error": 1 - share, "sequence_acc": float(share == 1)}


def process_counts(
    doc: SequenceDoc, results: Sequence[tuple[float, bool]]
) -> dict[str, float | tuple[int, int]]:
    """Scores the answers of a sequence, for shares of all labels instead of each sequence's.

    Args:
        doc: The document with the labels.
        results: For each label its log-probability, and whether greedy decoding gives it.

    Returns:
        `acc` and `error`: the labels that were, and were not, named, each with the number of all
        labels; `sequence_acc`: 1 if all were named, else 0.
    """
    num_right, num_labels = sum(is_greedy for _, is_greedy in results), len(results)
    return {
        "acc": (num_right, num_labels),
        "error": (num_labels - num_right, num_labels),
        "sequence_acc": float(num_right == num_labels),
    }


def share_of_labels(counts: Sequence[tuple[int, int]]) -> float:
    """Divides the labels counted in all sequences by all labels there are."""
    return sum(part for part, _ in counts) / sum(whole for _, whole in counts)
