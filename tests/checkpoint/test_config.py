"""What config.json may say, and what it may not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from patheval.checkpoint.config import (
    SUPPORTED_MODEL_TYPES,
    ModelConfig,
    StockConfig,
    attention_kind,
    read_config,
)
from patheval.errors import CheckpointError, UnsupportedError

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
SOURCE = "some/config.json"
REMOVED = object()

PROJECT_FOX_LLAMA = {
    "model_type": "forgetting_transformer-project_fox",
    "fgate_type": "full",
    "use_rope": False,
    "rope_base": 500000,
    "use_k_shift": False,
    "use_v_shift": False,
    "qk_norm": False,
    "qk_norm_share_param_across_head": False,
    "use_output_gate": False,
    "use_output_norm": False,
    "ogate_act": "sigmoid",
    "attention_bias": False,
    "log_pruning_tolerance": None,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "num_kv_heads": None,
    "vocab_size": 512,
    "torch_dtype": "float32",
}


def config_of(name: str, **changes: object) -> dict[str, object]:
    config = json.loads((CHECKPOINTS / name / "config.json").read_text())
    return {key: value for key, value in (config | changes).items() if value is not REMOVED}


def read(name: str, **changes: object) -> ModelConfig:
    return ModelConfig.from_dict(config_of(name, **changes), SOURCE)


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("path-d64", "path"),
        ("path-fox-d64-gqa", "path-fox"),
        ("fox-d64", "fox"),
        ("rope-d64", "rope"),
    ],
)
def test_attention_kind_of_each_checkpoint(name: str, attention: str) -> None:
    assert attention_kind(config_of(name), SOURCE) == attention
    assert read(name).attention == attention


def test_every_field_of_a_path_config() -> None:
    assert read("path-fox-d64-gqa") == ModelConfig(
        attention="path-fox",
        model_type="path_attn",
        hidden_size=256,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=768,
        vocab_size=512,
        norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        use_low_rank_w=True,
        low_rank_w_rank=32,
        use_w_shortconv=True,
        conv_size=3,
        qkv_bias=False,
        qk_norm="none",
        qk_norm_eps=1e-5,
        use_output_gate=False,
        use_output_norm=False,
        use_k_shift=False,
        use_v_shift=False,
        rope_theta=None,
        max_position_embeddings=None,
        dtype="bfloat16",
    )


@pytest.mark.parametrize(
    ("hidden_size", "ratio", "expected"),
    [(128, 4, 512), (1024, 4, 2816), (2048, 4, 5632), (1536, 4, 4096), (1536, 3.5, 3584)],
)
def test_intermediate_size_where_it_is_null(hidden_size: int, ratio: float, expected: int) -> None:
    config = read(
        "path-d64", hidden_size=hidden_size, num_heads=hidden_size // 64, hidden_ratio=ratio
    )
    assert config.intermediate_size == expected
    assert read("path-d64", intermediate_size=300).intermediate_size == 300


def test_fields_of_the_baselines() -> None:
    rope = read("rope-d64", qk_norm=True, qkv_bias=True)
    assert (rope.rope_theta, rope.max_position_embeddings) == (10000.0, 4096)
    assert (rope.qk_norm, rope.qkv_bias) == ("per_head", True)
    fox = read("fox-d64", qk_norm=True, use_output_gate=True)
    assert (fox.rope_theta, fox.qk_norm, fox.use_output_gate) == (None, "per_channel", True)


def test_settings_that_the_path_layer_never_reads_are_ignored() -> None:
    assert read("path-d64", use_qk_norm=True, conv_size=7, conv_bias=True) == read("path-d64")


def test_harmless_unknown_keys_are_ignored() -> None:
    changes = {"architectures": ["X"], "transformers_version": "5", "my_note": 3, "use_moe": False}
    assert read("path-d64", **changes) == read("path-d64")


def test_dtype_spellings() -> None:
    assert read("path-d64", dtype=REMOVED, torch_dtype="float16").dtype == "float16"
    assert read("path-d64", dtype="torch.bfloat16").dtype == "bfloat16"
    assert read("path-d64", dtype=REMOVED).dtype == "float32"


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_stock_rope_decoders_are_recognised(model_type: str) -> None:
    config = {"model_type": model_type, "vocab_size": 32000, "torch_dtype": "bfloat16"}
    expected = StockConfig(
        "rope",
        model_type,
        vocab_size=32000,
        dtype="bfloat16",
        max_position_embeddings=None,
        rope_type="default",
    )
    assert read_config(config, SOURCE) == expected
    for rope in ({"rope_scaling": {"type": "yarn"}}, {"rope_parameters": {"rope_type": "yarn"}}):
        scaled = read_config(config | rope | {"max_position_embeddings": 4096}, SOURCE)
        assert scaled == replace(expected, rope_type="yarn", max_position_embeddings=4096)
    assert attention_kind(config, SOURCE) == "rope"
    with pytest.raises(UnsupportedError, match=f"'{model_type}'"):
        ModelConfig.from_dict(config, SOURCE)


def test_fox_llama_layout_is_read_under_both_of_its_names() -> None:
    own = ModelConfig.from_dict(PROJECT_FOX_LLAMA, SOURCE)
    assert (own.attention, own.rope_theta, own.dtype) == ("fox", None, "float32")
    shared = {**PROJECT_FOX_LLAMA, "model_type": "forgetting_transformer"}
    assert ModelConfig.from_dict(shared, SOURCE).attention == "fox"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fgate_type", "none"),
        ("fgate_type", "bias_only"),
        ("fgate_type", None),
        ("use_rope", True),
    ],
)
def test_other_members_of_the_project_fox_family_are_refused(key: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match=f"{key}.*{value!r}"):
        ModelConfig.from_dict({**PROJECT_FOX_LLAMA, key: value}, SOURCE)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "128", [128], REMOVED])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_heads", "vocab_size"])
def test_sizes_must_be_integers_above_zero(key: str, value: object) -> None:
    shown = "missing" if value is REMOVED else repr(value).replace("[", r"\[")
    with pytest.raises(CheckpointError, match=f"{key} .*{shown}.*; set it to an integer above 0"):
        read("path-d64", **{key: value})


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("path-d64", "num_kv_heads", 0),
        ("path-d64", "num_kv_heads", False),
        ("path-d64", "intermediate_size", -512),
        ("path-d64", "hidden_ratio", 0),
        ("path-d64", "hidden_ratio", "4"),
        ("path-d64", "norm_eps", 0),
        ("path-d64", "norm_eps", float("inf")),
        ("path-d64", "norm_eps", True),
        ("path-d64", "use_forget_gate", 1),
        ("path-d64", "use_low_rank_w", "true"),
        ("path-d64", "tie_word_embeddings", "no"),
        ("path-d64", "bos_token_id", 512),
        ("path-d64", "eos_token_id", -1),
        ("path-d64", "dtype", "int8"),
        ("path-d64", "model_type", 3),
        ("rope-d64", "rope_theta", -10000.0),
        ("rope-d64", "max_position_embeddings", 0),
        ("fox-d64", "qkv_bias", 0),
    ],
)
def test_other_values_are_checked_too(name: str, key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=f"{key} .*{value!r}"):
        read(name, **{key: value})


def test_head_counts_must_divide() -> None:
    with pytest.raises(CheckpointError, match=r"hidden_size 256 .*num_heads 3"):
        read("path-fox-d64-gqa", num_heads=3)
    with pytest.raises(CheckpointError, match=r"num_heads 4 .*num_kv_heads 3"):
        read("path-fox-d64-gqa", num_kv_heads=3)
    with pytest.raises(CheckpointError, match=r"head_dim .*32.*64"):
        read("path-d64", head_dim=32)


@pytest.mark.parametrize(
    ("name", "num_heads", "head_dim"),
    [("path-fox-d64-gqa", 32, 8), ("path-fox-d64-gqa", 1, 256), ("rope-d64", 16, 8)],
)
def test_head_dims_outside_the_served_range(name: str, num_heads: int, head_dim: int) -> None:
    with pytest.raises(UnsupportedError, match=f"head_dim {head_dim};"):
        read(name, num_heads=num_heads, num_kv_heads=None)


@pytest.mark.parametrize("name", ["path-d64", "fox-d64", "rope-d64"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attnres_block_size", 4),
        ("window_size", 2048),
        ("hidden_act", "powlu"),
        ("elementwise_affine", False),
        ("attn", {"layers": [1]}),
        ("use_gated_mlp", True),
        ("moe_num_experts", 8),
        ("rope_scaling", {"rope_type": "yarn"}),
        ("sliding_window", 4096),
    ],
)
def test_settings_that_change_the_model_are_refused(name: str, key: str, value: object) -> None:
    with pytest.raises(UnsupportedError) as error:
        read(name, **{key: value})
    assert key in str(error.value)
    assert repr(value) in str(error.value)


def test_unknown_model_type_lists_the_supported_ones() -> None:
    with pytest.raises(UnsupportedError) as error:
        read("path-d64", model_type="mamba2")
    assert "'mamba2'" in str(error.value)
    assert all(model_type in str(error.value) for model_type in SUPPORTED_MODEL_TYPES)
    with pytest.raises(CheckpointError, match="model_type is missing"):
        read("path-d64", model_type=REMOVED)


def test_reading_a_config_needs_no_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    code = "import sys, patheval.checkpoint.layout; print('torch' in sys.modules)"
    assert run_python(code) == "False"
