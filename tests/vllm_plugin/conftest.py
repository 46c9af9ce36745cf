"""Engines shared by the tests of a module, and the numbers that they must reproduce."""

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


class Engine:
    """A vLLM engine that takes token ids and gives log-probabilities."""

    def __init__(self, checkpoint: Path, **arguments: Any) -> None:
        from vllm import LLM

        defaults = dict(
            dtype="float32",
            skip_tokenizer_init=True,
            max_model_len=4096,
            max_num_seqs=8,
            block_size=256,
            enforce_eager=True,
            max_num_batched_tokens=64,
        )
        if torch.cuda.is_available():
            defaults["gpu_memory_utilization"] = 0.1
        self.llm = LLM(model=str(checkpoint), **(defaults | arguments))

    def next_logprobs(self, prompts: list[list[int]]) -> list[torch.Tensor]:
        """Log-probability of token i + 1 after tokens 0..i, for all prompts together."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, prompt_logprobs=0, max_tokens=1, detokenize=False)
        outputs = self._run(prompts, params)
        return [
            torch.tensor(
                [
                    row[token].logprob
                    for row, token in zip(out.prompt_logprobs[1:], prompt[1:], strict=True)
                ],
                dtype=torch.float64,
            )
            for out, prompt in zip(outputs, prompts, strict=True)
        ]

    def greedy(
        self, prompts: list[list[int]], max_tokens: int, *, use_prefix_cache: bool = True
    ) -> list["Greedy"]:
        """Greedy continuations of all prompts together."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0,
            logprobs=1,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            skip_reading_prefix_cache=not use_prefix_cache,
        )
        return [Greedy(out) for out in self._run(prompts, params)]

    def install_scoring(self) -> str:
        """Let the workers score; returns the kind of model runner."""
        from patheval.vllm_plugin.scoring_client import ScoringClient

        core = self.llm.llm_engine.engine_core
        if not isinstance(core, ScoringClient):
            self.llm.llm_engine.engine_core = ScoringClient(core)
        return str(self.llm.collective_rpc("patheval_install_scoring")[0])

    def score(
        self,
        prompts: list[list[int]],
        rows: list[Any],
        *,
        read_prefix_cache: bool = False,
        beside: Callable[[], None] = lambda: None,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Scores of the next token behind each row, 5 behind the last one.

        Args:
            prompts: Token ids.
            rows: Numbers of tokens, of each prompt.
            read_prefix_cache: See `ScoringClient.add_scored`.
            beside: Called once the prompts wait.
        """
        client = self.llm.llm_engine.engine_core
        for i, (prompt, own) in enumerate(zip(prompts, rows, strict=True)):
            client.add_scored(
                str(i),
                prompt,
                np.array(own),
                np.array([*prompt, 5])[np.array(own) + 1],
                read_prefix_cache=read_prefix_cache,
            )
        beside()
        scores: dict[str, Any] = dict(client.take_scored())
        while len(scores) < len(prompts):
            self.llm.llm_engine.step()
            scores |= dict(client.take_scored())
        return [scores[str(i)] for i in range(len(prompts))]

    def _run(self, prompts: list[list[int]], params: Any) -> list[Any]:
        return self.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)


class Greedy:
    """One continuation: token ids, their log-probabilities, and how much of the prompt was
    cached.
    """

    def __init__(self, output: Any) -> None:
        completion = output.outputs[0]
        self.tokens = list(completion.token_ids)
        self.logprobs = torch.tensor(
            [
                row[token].logprob
                for row, token in zip(completion.logprobs, self.tokens, strict=True)
            ],
            dtype=torch.float64,
        )
        self.num_cached_tokens = output.num_cached_tokens


@pytest.fixture(scope="module")
def start_engine() -> Iterator[Callable[..., Engine]]:
    """Start engines one at a time: starting the next shuts the last one down."""
    running: list[Engine] = []

    def stop() -> None:
        if running:
            running.pop().llm.llm_engine.engine_core.shutdown()
        gc.collect()

    def start(checkpoint: Path, **arguments: Any) -> Engine:
        stop()
        running.append(Engine(checkpoint, **arguments))
        return running[-1]

    yield start
    stop()


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, dict[str, list[float]]]]:
    """Prompts of a checkpoint with the log-probabilities of a float64 forward by direct
    products.
    """

    def read(name: str) -> dict[str, dict[str, list[float]]]:
        data: dict[str, dict[str, list[float]]] = json.loads(
            (CHECKPOINTS / name / "golden.json").read_text()
        )
        return data

    return read


@pytest.fixture(scope="session")
def checkpoints() -> Path:
    """Folder of the checkpoints that the tests bring along."""
    return CHECKPOINTS


def prompt_of(length: int, *, seed: int = 0, vocab_size: int = 512) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab_size, (length,), generator=generator).tolist()


@pytest.fixture(scope="session")
def make_prompt() -> Callable[..., list[int]]:
    """Random token ids of a given length and seed."""
    return prompt_of
