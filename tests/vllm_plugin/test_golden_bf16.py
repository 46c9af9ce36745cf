"""bf16 on a GPU: closer to the fp64 truth than fla's own bf16 kernels, in prefill and in decode.

PATHEVAL_GOLDEN names a folder with further checkpoints of the same form.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
FOLDERS = [CHECKPOINTS, *map(Path, filter(None, [os.environ.get("PATHEVAL_GOLDEN")]))]
NAMES = sorted(
    {
        folder.name
        for parent in FOLDERS
        for folder in parent.iterdir()
        if folder.name.startswith(("path", "fox"))
    }
)

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("way", ["prefill", "decode"])
@pytest.mark.parametrize("name", NAMES)
def test_logprobs_are_closer_to_the_truth_than_flas(
    name: str, way: str, start_engine: Callable[..., Any], record_property: Callable[..., None]
) -> None:
    folder = next(parent / name for parent in FOLDERS if (parent / name).exists())
    cases = json.loads((folder / "golden.json").read_text())
    options: dict[str, Any] = dict(max_num_batched_tokens=4096)
    if way == "decode":
        # One token a step: every position is computed by the kernels of decode.
        options = dict(max_num_batched_tokens=1, max_num_seqs=1)
        cases = {prompt: case for prompt, case in cases.items() if prompt != "long"}
    engine = start_engine(folder, dtype="bfloat16", **options)
    results = engine.next_logprobs([case["input_ids"] for case in cases.values()])

    def error(got: Any, case: Any) -> torch.Tensor:
        truth = torch.tensor(case["fp64_next_logprob"], dtype=torch.float64)
        return torch.as_tensor(got, dtype=torch.float64)[: len(truth)] - truth

    def rms(errors: list[torch.Tensor]) -> float:
        return torch.cat(errors).square().mean().sqrt().item()

    ours = rms([error(got, case) for got, case in zip(results, cases.values(), strict=True)])
    flas = rms([error(case["fla_bf16_next_logprob"], case) for case in cases.values()])
    record_property("rms", ours)
    record_property("rms_of_fla", flas)
    assert ours < flas
