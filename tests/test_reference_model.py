"""The reference model against recorded float64 log-probabilities, and decoding against prefill."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from patheval.checkpoint.reader import open_checkpoint
from patheval.errors import UnsupportedError
from patheval.kernels.definition import attention_by_definition
from patheval.reference_model import ReferenceModel, _attend_prompt, _AttentionInputs

CHECKPOINTS = Path(__file__).parent / "checkpoints"
NAMES = ("path-d64", "path-fox-d64-gqa", "fox-d64", "rope-d64")


def golden_errors(name: str, sequence: str, dtype: torch.dtype) -> torch.Tensor:
    golden = json.loads((CHECKPOINTS / name / "golden.json").read_text())[sequence]
    token_ids = torch.tensor(golden["input_ids"])
    model = ReferenceModel(open_checkpoint(CHECKPOINTS / name), dtype=dtype)
    hidden, _ = model.prefill(token_ids.tolist())
    logprobs = torch.log_softmax(model.logits(hidden[:-1]), dim=-1)
    chosen = logprobs.gather(1, token_ids[1:].unsqueeze(1)).squeeze(1)
    return chosen.double() - torch.tensor(golden["fp64_next_logprob"], dtype=torch.float64)


@pytest.mark.parametrize("sequence", ["a", "b", "long"])
@pytest.mark.parametrize("name", NAMES)
def test_float64_gives_the_recorded_digits(name: str, sequence: str) -> None:
    # Six decimals are recorded.
    assert golden_errors(name, sequence, torch.float64).abs().max() < 1e-6


@pytest.mark.parametrize("sequence", ["a", "b", "long"])
@pytest.mark.parametrize("name", NAMES)
def test_float32_is_close_to_float64(name: str, sequence: str) -> None:
    errors = golden_errors(name, sequence, torch.float32)
    assert errors.abs().max() <= 2e-3
    assert errors.square().mean().sqrt() <= 2e-4


@pytest.mark.parametrize("name", ["path-d64", "path-fox-d64-gqa", "fox-d64"])
def test_bfloat16_errs_like_another_bfloat16_implementation(name: str) -> None:
    golden = json.loads((CHECKPOINTS / name / "golden.json").read_text())["b"]
    recorded = torch.tensor(golden["fla_bf16_next_logprob"]) - torch.tensor(
        golden["fp64_next_logprob"]
    )
    errors = golden_errors(name, "b", torch.bfloat16)
    # The same roundings in another order of summation: alike in size, not in value.
    assert errors.square().mean().sqrt() <= 1.2 * recorded.square().mean().sqrt()


@pytest.mark.parametrize("num_prefilled", [1, 2, 63, 64, 65, 129])
@pytest.mark.parametrize("name", NAMES)
def test_decoding_equals_prefill(name: str, num_prefilled: int) -> None:
    golden = json.loads((CHECKPOINTS / name / "golden.json").read_text())["a"]
    token_ids = golden["input_ids"][:140]
    model = ReferenceModel(open_checkpoint(CHECKPOINTS / name), dtype=torch.float64)
    whole, whole_cache = model.prefill(token_ids)
    hidden, cache = model.prefill(token_ids[:num_prefilled])
    steps = [model.decode(token_id, cache) for token_id in token_ids[num_prefilled:]]
    torch.testing.assert_close(torch.cat([hidden, *steps]), whole, rtol=0, atol=1e-10)
    for layer, whole_layer in zip(cache, whole_cache, strict=True):
        torch.testing.assert_close(layer.keys, whole_layer.keys, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seq_len", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_chunked_attention_equals_the_definition(seq_len: int, beta: float) -> None:
    generator = torch.Generator().manual_seed(seq_len)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v, w = (draw(seq_len, heads, 32) for heads in (4, 2, 2, 2))
    w = torch.nn.functional.normalize(w, dim=-1)
    w[seq_len // 2 :] = w[seq_len // 2]
    beta_t = torch.full((seq_len, 2), beta, dtype=torch.float64)
    log_fgate = torch.nn.functional.logsigmoid(draw(seq_len, 4))
    sm_scale = 32**-0.5
    inputs = _AttentionInputs(q, k, v, w, beta_t, log_fgate, conv_tail=None)
    out, _ = _attend_prompt(inputs, sm_scale, gate_scale=sm_scale)
    expected = attention_by_definition(
        q, k, v, w, beta_t, log_fgate, sm_scale=sm_scale, gate_inside_scale=True
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)


def test_tied_embeddings_serve_as_output_matrix(tmp_path: Path) -> None:
    source = CHECKPOINTS / "fox-d64"
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embeddings.weight"].clone()
    for folder, tied in ((tmp_path / "untied", False), (tmp_path / "tied", True)):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
        save_file(tensors, folder / "model.safetensors")
        tensors = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    untied, tied_model = (
        ReferenceModel(open_checkpoint(tmp_path / name)) for name in ("untied", "tied")
    )
    hidden, _ = untied.prefill([3, 1, 4, 1, 5])
    tied_hidden, _ = tied_model.prefill([3, 1, 4, 1, 5])
    assert torch.equal(untied.logits(hidden), tied_model.logits(tied_hidden))


def test_output_gate_of_fox(tmp_path: Path) -> None:
    """A gate of zero logits halves the output, which a doubled output matrix undoes."""
    source = CHECKPOINTS / "fox-d64"
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    for layer_idx in range(2):
        prefix = f"model.layers.{layer_idx}.attn."
        tensors[f"{prefix}g_proj.weight"] = torch.zeros(128, 128)
        tensors[f"{prefix}o_proj.weight"] = 2 * tensors[f"{prefix}o_proj.weight"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "use_output_gate": True}))
    save_file(tensors, tmp_path / "model.safetensors")
    plain, _ = ReferenceModel(open_checkpoint(source), dtype=torch.float64).prefill(range(50))
    gated, _ = ReferenceModel(open_checkpoint(tmp_path), dtype=torch.float64).prefill(range(50))
    torch.testing.assert_close(plain, gated)


@pytest.mark.parametrize(("name", "width"), [("fox-d64", 128), ("rope-d64", 64)])
def test_qk_norm_ignores_the_size_of_q_and_k_of_each_head(
    name: str, width: int, tmp_path: Path
) -> None:
    source = CHECKPOINTS / name
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    for layer_idx in range(2):
        for part in ("q_norm", "k_norm"):
            weight = torch.linspace(0.5, 2, width)
            tensors[f"model.layers.{layer_idx}.attn.{part}.weight"] = weight
    outputs = []
    for factor in (1.0, 64.0):
        folder = tmp_path / str(factor)
        folder.mkdir()
        for layer_idx in range(2):
            tensors[f"model.layers.{layer_idx}.attn.k_proj.weight"][64:] *= factor
        (folder / "config.json").write_text(json.dumps({**config, "qk_norm": True}))
        save_file(tensors, folder / "model.safetensors")
        model = ReferenceModel(open_checkpoint(folder), dtype=torch.float64)
        outputs.append(model.prefill(range(50))[0])
    # Equal but for the epsilon of the norm.
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-2)


def test_stock_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
    save_file({"model.embed_tokens.weight": torch.zeros(8, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"'llama'.*--model hf"):
        ReferenceModel(open_checkpoint(tmp_path))
