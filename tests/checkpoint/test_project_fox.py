"""The checkpoints of zhixuan-lin/forgetting-transformer, in exactly their layouts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from project_fox import CONFIGS, next_logprobs, save_project_fox
from safetensors.torch import load_file, save_file

from patheval.checkpoint.config import ModelConfig
from patheval.checkpoint.reader import open_checkpoint
from patheval.errors import CheckpointError, UnsupportedError
from patheval.reference_model import ReferenceModel

# Angles in float64 here and there, so that nothing but the order of summation differs.
_ATOL = 1e-9
_IDS = torch.randint(0, 512, (150,), generator=torch.Generator().manual_seed(5)).tolist()
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    **{kind: (kind, {}) for kind in CONFIGS},
    "fox-pro-shift-of-keys-alone": ("fox-pro", {"use_v_shift": False}),
    "fox-pro-norm-of-each-channel": ("fox-pro", {"qk_norm_share_param_across_head": False}),
    "fox-gate-without-norm": ("fox-llama", {"use_output_gate": True}),
    "transformer-with-output-norm": ("transformer-pro", {"use_k_shift": False, "qk_norm": False}),
    "fox-pro-of-others": ("fox-pro", {"model_type": "forgetting_transformer"}),
}


def _chosen(model: ReferenceModel, hidden: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(model.logits(hidden), dim=-1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_and_decoding_are_the_definitions(variant: str, tmp_path: Path) -> None:
    kind, changes = VARIANTS[variant]
    folder = save_project_fox(tmp_path / kind, kind, **changes)
    expected = next_logprobs(folder, _IDS)
    model = ReferenceModel(open_checkpoint(folder), dtype=torch.float64)
    hidden, _ = model.prefill(_IDS)
    torch.testing.assert_close(_chosen(model, hidden), expected, rtol=0, atol=_ATOL)
    for num_prefilled in (1, 65):
        _, cache = model.prefill(_IDS[:num_prefilled])
        steps = [model.decode(i, cache) for i in _IDS[num_prefilled : num_prefilled + 30]]
        torch.testing.assert_close(
            _chosen(model, torch.cat(steps)),
            expected[num_prefilled : num_prefilled + 30],
            rtol=0,
            atol=_ATOL,
        )


@pytest.mark.parametrize(
    ("kind", "attention", "head_dim", "intermediate_size", "is_paged"),
    [
        ("fox-pro", "fox", 64, 3584, True),
        ("fox-llama", "fox", 64, 4096, True),
        ("transformer-pro", "rope", 128, 3584, True),
        ("transformer-llama", "rope", 128, 4096, False),
    ],
)
def test_sizes_of_the_released_models(
    kind: str, attention: str, head_dim: int, intermediate_size: int, is_paged: bool
) -> None:
    heads = {"fox": 24, "rope": 12}[attention]
    values = CONFIGS[kind] | {"hidden_size": 1536, "num_heads": heads, "vocab_size": 50257}
    config = ModelConfig.from_dict(values, "config.json")
    assert (config.attention, config.head_dim) == (attention, head_dim)
    assert (config.intermediate_size, config.is_paged) == (intermediate_size, is_paged)
    assert config.rope_theta == (500000.0 if attention == "rope" else None)
    assert (config.norm_eps, config.qk_norm_eps) == (1e-6, 1e-5)
    assert config.max_position_embeddings is None


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("fox-pro", {"fgate_type": "bias_only"}, "fgate_type .*'bias_only' with use_rope False"),
        ("fox-pro", {"fgate_type": "none"}, "fgate_type .*'none' with use_rope False"),
        ("fox-pro", {"use_rope": True}, "fgate_type .*'full' with use_rope True"),
        ("fox-pro", {"ogate_act": "silu"}, "ogate_act .*'silu'"),
        ("fox-pro", {"num_kv_heads": 2}, "num_kv_heads .*2; .* as many kv heads as heads"),
        ("fox-pro", {"window_size": 512}, "window_size .*512"),
        ("transformer-llama", {"use_rope": False}, "use_rope .*False"),
        ("transformer-llama", {"use_k_shift": True}, "use_k_shift .*True"),
    ],
)
def test_what_is_not_served_is_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        ModelConfig.from_dict(CONFIGS[kind] | changes, "config.json")


@pytest.mark.parametrize(
    "name", ["k_proj.shift_proj", "v_proj.linear", "output_norm", "ogate_proj", "fgate_proj"]
)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    folder = save_project_fox(tmp_path / "fox", "fox-pro")
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"model.layers.1.attn.{name}.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks 1 of \d+ tensors \(model\.layers\.1\.attn"):
        open_checkpoint(folder)


@pytest.mark.parametrize("part", ["k", "v"])
def test_unshifted_names_are_refused_where_the_config_shifts(part: str, tmp_path: Path) -> None:
    folder = save_project_fox(tmp_path / "fox", "fox-llama")
    (folder / "config.json").write_text(
        (folder / "config.json")
        .read_text()
        .replace(f'"use_{part}_shift": false', f'"use_{part}_shift": true')
    )
    with pytest.raises(CheckpointError, match=f"{part}_shift_proj"):
        open_checkpoint(folder)


@pytest.mark.parametrize("sequence", ["a", "b", "long"])
def test_the_authors_own_code_gives_the_same(sequence: str) -> None:
    folder = Path(__file__).parents[1] / "checkpoints" / "project-fox-llama-d64"
    golden = json.loads((folder / "golden.json").read_text())[sequence]
    model = ReferenceModel(open_checkpoint(folder), dtype=torch.float64)
    token_ids = torch.tensor(golden["input_ids"])
    logprobs = _chosen(model, model.prefill(golden["input_ids"])[0])[:-1]
    got = logprobs.gather(1, token_ids[1:, None])[:, 0]
    expected = torch.tensor(golden["fp64_next_logprob"], dtype=torch.float64)
    # Six decimals are recorded.
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
