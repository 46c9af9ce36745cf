"""`patheval bench replicas`: generation by one engine and by several, one a GPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from patheval.bench.scoring import Model, TextMaker, Workload, make_checkpoint
from patheval.errors import PrerequisiteError

PROMPT_TOKENS = 512
NEW_TOKENS = 64
_NUM_RUNS = 3


def bench_replicas(counts: Sequence[int], num_requests: int, kind: str) -> Iterator[dict[str, Any]]:
    """Rows of the same requests with each number of engines; the first one is the baseline.

    Args:
        counts: numbers of engines.
        num_requests: prompts of `PROMPT_TOKENS`, each continued by `NEW_TOKENS`.
        kind: of the random model: "path", "path-fox", "fox" or "rope".

    Raises:
        PrerequisiteError: A run ended with an error.
    """
    baseline: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = make_checkpoint(Path(scratch) / kind, kind, Model())
        for count in counts:
            order = {"checkpoint": str(checkpoint), "count": count, "num_requests": num_requests}
            answer = Path(scratch) / f"{count}.json"
            process = subprocess.run(
                [sys.executable, "-m", __name__, json.dumps(order), str(answer)],
                env=os.environ | {"PATHEVAL_RESUME": "off"},
            )
            if process.returncode or not answer.exists():
                raise PrerequisiteError(
                    f"the run with {count} engines ended with exit status {process.returncode}; "
                    "its own error is above"
                )
            found = json.loads(answer.read_text())
            baseline = baseline or found
            pairs = zip(found["texts"], baseline["texts"], strict=True)
            yield {
                "bench": "replicas",
                "name": f"{num_requests}x{PROMPT_TOKENS}+{NEW_TOKENS}",
                "shape": {"num_requests": num_requests, "kind": kind}
                | {"prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS},
                "impl": _name(count),
                "median_ms": found["seconds"] * 1e3,
                "share_equal": fmean(own == one for own, one in pairs),
                "ratio_to": {_name(counts[0]): found["seconds"] / baseline["seconds"]},
            }


def _name(count: int) -> str:
    return f"{count} engine{'s' * (count != 1)}"


def _measure(order: dict[str, Any]) -> dict[str, Any]:
    """Generates once to compile and warm up, then `_NUM_RUNS` times, other prompts each time."""
    from lm_eval.api.instance import Instance

    adapter = importlib.import_module("patheval.model_adapters.path_vllm").PathLM
    arguments = {
        "pretrained": order["checkpoint"],
        "dtype": "bfloat16",
        "max_length": PROMPT_TOKENS + NEW_TOKENS + 1,
        "data_parallel_size": order["count"],
    }
    lm = adapter.create_from_arg_obj(arguments, {"batch_size": "auto"})
    make_texts = TextMaker(lm.tokenizer)

    def make_requests(num_requests: int, seed: int) -> list[Instance]:
        workload = Workload(num_requests, 1, PROMPT_TOKENS, 1)
        options = {"until": [], "max_gen_toks": NEW_TOKENS, "ignore_eos": True}
        return [
            Instance(
                request_type="generate_until", doc={}, arguments=(text, dict(options)), idx=index
            )
            for index, (text, _) in enumerate(make_texts.pairs(workload, num_requests, seed))
        ]

    lm.generate_until(make_requests(max(1, order["num_requests"] // 10), -1), disable_tqdm=True)
    seconds, texts = [], []
    for seed in range(_NUM_RUNS):
        requests = make_requests(order["num_requests"], seed)
        start = time.perf_counter()
        texts += lm.generate_until(requests, disable_tqdm=True)
        seconds.append(time.perf_counter() - start)
    lm.close()
    return {"seconds": median(seconds), "texts": texts}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(_measure(json.loads(sys.argv[1]))))
