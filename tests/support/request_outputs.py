"""What the engine core handed out, from what vLLM's front end made of it."""

from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors


def prompt_logprobs_of(output: Any) -> LogprobsTensors:
    """The prompt log-probabilities of a `vllm.RequestOutput` with `flat_logprobs`."""
    flat = output.prompt_logprobs
    return LogprobsTensors(
        torch.tensor(flat.token_ids)[:, None],
        torch.tensor(flat.logprobs)[:, None],
        torch.tensor(flat.ranks),
    )
