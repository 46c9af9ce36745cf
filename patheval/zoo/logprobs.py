"""Log-probabilities that every shipped checkpoint must reproduce when it is loaded again."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from patheval.checkpoint.reader import open_checkpoint
from patheval.reference_model import ReferenceModel
from patheval.zoo.tokenizer import TOKENIZER_NAME

LOGPROBS_NAME = "logprobs.json"
NUM_LOGPROBS = 200

# About anything: the numbers identify the weights, the text need not be one of the training's.
_TEXT = "".join(f"Entry {i}: the value of {i * 7919 % 1000} is {i * i}.\n" for i in range(100))


def record(folder: Path, text: str = _TEXT) -> None:
    """Writes `logprobs.json`: token ids and the float64 log-probability of each one's successor.

    Args:
        folder: A checkpoint with its tokenizer.
        text: At least `NUM_LOGPROBS` tokens besides BOS.
    """
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_NAME))
    input_ids = tokenizer.encode(text).ids[: NUM_LOGPROBS + 1]
    content = {
        "input_ids": input_ids,
        "next_logprobs": [round(x, 9) for x in _next_logprobs(folder, input_ids, torch.float64)],
    }
    (folder / LOGPROBS_NAME).write_text(json.dumps(content) + "\n")


def largest_difference(folder: Path) -> float:
    """Loads a checkpoint in float32 and compares it with its `logprobs.json`.

    Args:
        folder: A shipped checkpoint.

    Returns:
        Largest absolute difference of a log-probability, in nats.
    """
    content = json.loads((folder / LOGPROBS_NAME).read_text())
    got = _next_logprobs(folder, content["input_ids"], torch.float32)
    return max(abs(a - b) for a, b in zip(got, content["next_logprobs"], strict=True))


def _next_logprobs(folder: Path, input_ids: list[int], dtype: torch.dtype) -> list[float]:
    model = ReferenceModel(open_checkpoint(folder), device="cpu", dtype=dtype)
    hidden, _ = model.prefill(input_ids[:-1])
    logprobs = torch.log_softmax(model.logits(hidden).double(), dim=-1)
    targets = torch.tensor(input_ids[1:])
    return [float(x) for x in logprobs.gather(1, targets[:, None])[:, 0]]
