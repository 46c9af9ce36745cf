"""`patheval bench engine`: vLLM's time a decode step, PaTH against vLLM's own Llama.

Each kind has an engine of its own in a process of its own, with random weights. The time of a step
is that of 128 more tokens, whole process, divided by 128.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from patheval.bench.scoring import Model, make_checkpoint

ENGINE_SHAPES = {"1x64k": (1, 65000), "16x16k": (16, 16384), "32x2k": (32, 2048)}
_NUM_STEPS = 128
_MAX_LENGTH = 66000


def bench_engine(
    names: Sequence[str], kinds: Sequence[str], page_size: int | None
) -> Iterator[dict[str, Any]]:
    """Rows of each kind and shape; `rope` is vLLM's Llama, to which the ratios are.

    Args:
        names: from `ENGINE_SHAPES`.
        kinds: of "path", "path-fox", "fox", "rope".
        page_size: tokens in a page of the paged kinds; None for the default.
    """
    times: dict[tuple[str, str], dict[str, float]] = {}
    for kind in sorted(kinds, key=lambda kind: kind != "rope"):
        order = {"names": list(names), "kind": kind, "page_size": page_size}
        with tempfile.TemporaryDirectory() as folder:
            order["checkpoint"] = str(make_checkpoint(Path(folder) / kind, kind, Model()))
            # Its standard output also has what the engine's processes print.
            answer = Path(folder) / "times.json"
            subprocess.run(
                [sys.executable, "-m", "patheval.bench.engine", json.dumps(order), str(answer)],
                check=True,
            )
            measured = json.loads(answer.read_text())
        for name, found in measured.items():
            times[kind, name] = found
            base = times.get(("rope", name))
            yield {
                "bench": "engine",
                "name": name,
                "shape": dict(zip(("batch", "seq_len"), ENGINE_SHAPES[name], strict=True))
                | {"hidden_size": 1024, "num_layers": 8, "num_heads": 16, "head_dim": 64},
                "impl": kind,
                "median_ms": found["step_ms"],
                "prefill_s": found["prefill_s"],
                "ratio_to": {"rope": found["step_ms"] / base["step_ms"]} if base else {},
            }


def _measure(order: dict[str, Any]) -> dict[str, dict[str, float]]:
    import vllm

    from patheval.vllm_plugin import register

    register()
    is_paged = order["kind"] != "rope"
    options: dict[str, Any] = {}
    if not is_paged:
        options["hf_overrides"] = {"max_position_embeddings": _MAX_LENGTH}
    elif order["page_size"]:
        options["block_size"] = order["page_size"]
    llm = vllm.LLM(
        order["checkpoint"],
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=_MAX_LENGTH,
        gpu_memory_utilization=0.6,
        enable_prefix_caching=False,
        max_num_batched_tokens=16384,
        **options,
    )
    rng = random.Random(0)
    found = {}
    for name in order["names"]:
        batch, seq_len = ENGINE_SHAPES[name]
        prompts = [
            {"prompt_token_ids": [rng.randrange(5, 31000) for _ in range(seq_len)]}
            for _ in range(batch)
        ]

        def seconds(num_tokens: int, prompts: list[dict[str, list[int]]] = prompts) -> float:
            sampling = vllm.SamplingParams(
                max_tokens=num_tokens, ignore_eos=True, temperature=0, detokenize=False
            )
            start = time.perf_counter()
            llm.generate(prompts, sampling, use_tqdm=False)
            return time.perf_counter() - start

        seconds(2)
        prefill = min(seconds(1) for _ in range(2))
        whole = min(seconds(1 + _NUM_STEPS) for _ in range(2))
        found[name] = {"prefill_s": prefill, "step_ms": (whole - prefill) / _NUM_STEPS * 1e3}
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(_measure(json.loads(sys.argv[1]))))
