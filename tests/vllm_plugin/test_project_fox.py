"""The four kinds of zhixuan-lin/forgetting-transformer in a real engine, against the definition."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from json_gpt2 import save_tokenizer
from lm_eval.api.instance import Instance
from project_fox import CONFIGS, next_logprobs, save_project_fox

from patheval.model_adapters.path_ref import PathRefLM
from patheval.model_adapters.path_vllm import PathLM
from patheval.tokenization import load_tokenizer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", CONFIGS)
def test_logprobs_and_decoding_equal_the_definition(
    kind: str,
    tmp_path: Path,
    start_engine: Callable[..., Any],
    make_prompt: Callable[..., list[int]],
) -> None:
    folder = save_project_fox(tmp_path / kind, kind)
    engine = start_engine(
        folder,
        max_model_len=1024,
        num_gpu_blocks_override=40,
        hf_overrides={"max_position_embeddings": 1024},
    )
    # Steps hold 64 tokens, so that prompts are cut into chunks; the last two share a page.
    prompts = [make_prompt(n, seed=n) for n in (1, 5, 300)]
    prompts.append(prompts[-1][:256] + make_prompt(40, seed=1))
    decoded = engine.greedy(prompts, 20)
    sequences = [p + out.tokens for p, out in zip(prompts, decoded, strict=True)]
    scored = engine.next_logprobs(sequences)
    for prompt, out, sequence, got in zip(prompts, decoded, sequences, scored, strict=True):
        logprobs = next_logprobs(folder, sequence)
        expected = logprobs[:-1].gather(1, torch.tensor(sequence[1:])[:, None])[:, 0]
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-3)
        decoding = expected[len(prompt) - 1 :]
        torch.testing.assert_close(out.logprobs, decoding, rtol=0, atol=2e-3)


def test_json_tokenizer_scores_and_stops_as_in_the_reference(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "tokenizer")
    vocab_size = len(load_tokenizer(folder))
    save_project_fox(tmp_path / "fox", "fox-pro", vocab_size=vocab_size)
    save_tokenizer(tmp_path / "fox")
    arguments = {"pretrained": str(tmp_path / "fox"), "dtype": "float32", "max_length": 512}
    prompt = 'One "line"\nand a second \u2014 '
    pairs = [(prompt, " \u00eb\n"), ("", "said \U0001f600")]
    reference = PathRefLM.create_from_arg_obj(dict(arguments), {"device": "cpu"})
    whole = reference.generate_until(_requests("generate_until", [(prompt, _settings(["\t\t"]))]))[
        0
    ]
    # What the model writes is noise; stop at one of its own characters.
    stop = next(character for character in whole[len(whole) // 2 :] if character.isascii())
    asked = _requests("generate_until", [(prompt, _settings([stop])), (prompt, _settings(["\n"]))])
    scored = _requests("loglikelihood", pairs)
    expected = reference.generate_until(asked), reference.loglikelihood(scored)
    assert expected[0][0] == whole[: whole.index(stop)]
    lm = PathLM.create_from_arg_obj(dict(arguments))
    try:
        got = lm.generate_until(asked), lm.loglikelihood(scored)
    finally:
        lm.close()
    assert got[0] == expected[0]
    for (logprob, is_greedy), (wanted, wanted_greedy) in zip(got[1], expected[1], strict=True):
        assert logprob == pytest.approx(wanted, abs=2e-2)
        assert is_greedy == wanted_greedy


def _settings(until: list[str]) -> dict[str, Any]:
    return {"until": until, "max_gen_toks": 60}


def _requests(kind: Any, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=own, idx=i) for i, own in enumerate(arguments)
    ]
