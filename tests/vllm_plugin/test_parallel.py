"""Tensor parallelism over two processes apart from the front end."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_checkpoint import save_random_checkpoint

from patheval.checkpoint.reader import open_checkpoint
from patheval.reference_model import ReferenceModel

RUN = """
import json, os, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, prompts = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(
        folder, dtype="float32", skip_tokenizer_init=True, max_model_len=1024, enforce_eager=True,
        max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks_override=40,
        tensor_parallel_size=2,
    )
    params = SamplingParams(temperature=0, prompt_logprobs=0, max_tokens=1, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    print(json.dumps([
        [row[token].logprob for row, token in zip(out.prompt_logprobs[1:], prompt[1:])]
        for out, prompt in zip(outputs, prompts)
    ]), flush=True)
    llm.llm_engine.engine_core.shutdown()
    # A thread of vLLM's may outlive the interpreter's exit handlers, which then abort the process.
    os._exit(0)
"""

# Two kv heads are split, one is replicated.
VARIANTS: dict[str, dict[str, Any]] = {
    "path-fox-split": {
        "model_type": "path_attn",
        "num_kv_heads": 2,
        "use_forget_gate": True,
        "tie_word_embeddings": True,
    },
    "path-replicated": {"model_type": "path_attn", "num_kv_heads": 1, "use_low_rank_w": False},
    "fox-replicated": {
        "model_type": "forgetting_transformer",
        "num_kv_heads": 1,
        "use_output_gate": True,
        "qk_norm": True,
        "qkv_bias": True,
    },
    "fox-pro-split": {
        "model_type": "forgetting_transformer-project_fox",
        "fgate_type": "full",
        "use_rope": False,
        "use_k_shift": True,
        "use_v_shift": True,
        "qk_norm": True,
        "qk_norm_share_param_across_head": True,
        "use_output_gate": True,
        "use_output_norm": True,
    },
}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="needs two GPUs, or none")
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_equal_the_reference(
    variant: str, tmp_path: Path, make_prompt: Callable[..., list[int]]
) -> None:
    folder = save_random_checkpoint(tmp_path / variant, **VARIANTS[variant])
    script = tmp_path / "run.py"
    script.write_text(RUN)
    prompts = [make_prompt(n, seed=n) for n in (5, 300)]
    env = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder), json.dumps(prompts)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout.splitlines()[-1])
    model = ReferenceModel(open_checkpoint(folder), device="cpu", dtype=torch.float64)
    for prompt, got in zip(prompts, results, strict=True):
        hidden, _ = model.prefill(prompt)
        logprobs = torch.log_softmax(model.logits(hidden), dim=-1)
        expected = logprobs[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].double()
        torch.testing.assert_close(
            torch.tensor(got, dtype=torch.float64), expected, rtol=0, atol=2e-3
        )
