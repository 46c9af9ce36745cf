"""Checkpoints as zhixuan-lin/forgetting-transformer saves them, and what they compute.

Random weights under the names and with the config.json of its four 760M models, smaller; and a
forward pass that reads those names and is written from the definition, without patheval's code.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

_COMMON: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": None,
    "elementwise_affine": True,
    "eos_token_id": None,
    "fuse_cross_entropy": True,
    "fuse_norm": True,
    "hidden_act": "swish",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": None,
    "max_position_embeddings": None,
    "norm_eps": 1e-6,
    "num_hidden_layers": 2,
    "num_kv_heads": None,
    "pad_token_id": None,
    "rope_base": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.44.0",
    "use_cache": True,
    "vocab_size": 512,
    "window_size": None,
}
_FORGETTING: dict[str, Any] = _COMMON | {
    "architectures": ["ForgettingTransformerForCausalLM"],
    "model_type": "forgetting_transformer-project_fox",
    "decay_time_max": None,
    "decay_time_min": None,
    "fgate_bias_init": False,
    "log_pruning_tolerance": None,
    "ogate_act": "sigmoid",
}
_PRO = {
    "hidden_ratio": 3.5,
    "use_k_shift": True,
    "use_v_shift": True,
    "qk_norm": True,
    "qk_norm_share_param_across_head": True,
    "use_output_gate": True,
    "use_output_norm": True,
}
_NOT_PRO = {"hidden_ratio": 4} | dict.fromkeys(list(_PRO)[1:], False)
_FOX = {"fgate_type": "full", "use_rope": False, "num_heads": 4}
_ROPE = {"fgate_type": "none", "use_rope": True, "num_heads": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "fox-pro": _FORGETTING | _FOX | _PRO,
    "fox-llama": _FORGETTING | _FOX | _NOT_PRO,
    "transformer-pro": _FORGETTING | _ROPE | _PRO,
    "transformer-llama": _COMMON
    | {
        "architectures": ["TransformerForCausalLM"],
        "model_type": "transformer-project_fox",
        "hidden_ratio": 4,
        "num_heads": 2,
        "use_rope": True,
    },
}


def save_project_fox(folder: Path, kind: str, *, seed: int = 0, **changes: object) -> Path:
    """Saves one of the four kinds with weights that make every part of the layer matter."""
    config = CONFIGS[kind] | changes
    generator = torch.Generator().manual_seed(seed)
    hidden, heads = config["hidden_size"], config["num_heads"]
    ratio = config["hidden_ratio"]
    inter = -(-int(hidden * ratio * 2 / 3) // 256) * 256

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return scale * columns**-0.5 * torch.randn(rows, columns, generator=generator)

    def norm(width: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(width, generator=generator)

    tensors = {"model.embeddings.weight": matrix(config["vocab_size"], hidden, hidden**0.5)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        own = {"attn_norm.weight": norm(hidden), "mlp_norm.weight": norm(hidden)}
        own["attn.q_proj.weight"] = matrix(hidden, hidden, 2.0)
        for part in "kv":
            if config.get(f"use_{part}_shift"):
                own[f"attn.{part}_proj.linear.weight"] = matrix(hidden, hidden, 2.0)
                own[f"attn.{part}_proj.shift_proj.weight"] = matrix(heads, hidden, 2.0)
            else:
                own[f"attn.{part}_proj.weight"] = matrix(hidden, hidden, 2.0)
        if config.get("fgate_type") == "full":
            own["attn.fgate_proj.weight"] = matrix(heads, hidden)
            own["attn.fgate_proj.bias"] = 2 + torch.randn(heads, generator=generator)
        if config.get("qk_norm"):
            shared = config["qk_norm_share_param_across_head"]
            for part in "qk":
                own[f"attn.{part}_norm.weight"] = 2 * norm(hidden // heads if shared else hidden)
        if config.get("use_output_norm"):
            own["attn.output_norm.weight"] = norm(hidden)
        if config.get("use_output_gate"):
            own["attn.ogate_proj.weight"] = matrix(hidden, hidden, 2.0)
        own["attn.o_proj.weight"] = matrix(hidden, hidden)
        own["mlp.gate_proj.weight"] = matrix(2 * inter, hidden)  # gate and up in one
        own["mlp.down_proj.weight"] = matrix(hidden, inter)
        tensors |= {prefix + name: tensor for name, tensor in own.items()}
    tensors["model.norm.weight"] = norm(hidden)
    tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden, 2.0)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def next_logprobs(folder: Path, token_ids: list[int]) -> torch.Tensor:
    """Float64 log-probabilities of every next token, [seq_len, vocab_size], by the definition."""
    config = json.loads((folder / "config.json").read_text())
    weights = {
        name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()
    }
    heads, eps = config["num_heads"], config["norm_eps"]
    residual = weights["model.embeddings.weight"][token_ids]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        x = _rms(residual, eps) * own["attn_norm.weight"]
        residual = residual + _attention(x, own, config, heads, eps)
        x = _rms(residual, eps) * own["mlp_norm.weight"]
        gate, up = (x @ own["mlp.gate_proj.weight"].T).chunk(2, dim=-1)
        residual = residual + (F.silu(gate) * up) @ own["mlp.down_proj.weight"].T
    x = _rms(residual, eps) * weights["model.norm.weight"]
    return torch.log_softmax(x @ weights["lm_head.weight"].T, dim=-1)


def _rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps)


def _attention(
    x: torch.Tensor, own: dict[str, torch.Tensor], config: dict[str, Any], heads: int, eps: float
) -> torch.Tensor:
    seq_len, hidden = x.shape
    head_dim = hidden // heads
    projected = {"q": (x @ own["attn.q_proj.weight"].T).view(seq_len, heads, head_dim)}
    for part in "kv":
        shifts = config.get(f"use_{part}_shift")
        weight = own[f"attn.{part}_proj.linear.weight" if shifts else f"attn.{part}_proj.weight"]
        value = (x @ weight.T).view(seq_len, heads, head_dim)
        if shifts:
            share = torch.sigmoid(x @ own[f"attn.{part}_proj.shift_proj.weight"].T)[..., None]
            before = torch.zeros_like(value)
            before[1:] = value[:-1]
            value = share * before + (1 - share) * value
        projected[part] = value
    q, k, v = projected["q"], projected["k"], projected["v"]
    if config.get("qk_norm"):
        q = _rms(q, 1e-5) * own["attn.q_norm.weight"].view(-1, head_dim)
        k = _rms(k, 1e-5) * own["attn.k_norm.weight"].view(-1, head_dim)
    if config["use_rope"]:
        half = head_dim // 2
        speeds = config["rope_base"] ** (-torch.arange(half).double() / half)
        angles = torch.arange(seq_len).double()[:, None] * speeds
        turns = torch.polar(torch.ones_like(angles), angles)[:, None]

        def turned(y: torch.Tensor) -> torch.Tensor:
            z = torch.complex(y[..., :half], y[..., half:]) * turns
            return torch.cat([z.real, z.imag], dim=-1)

        q, k = turned(q), turned(k)
    logits = torch.einsum("ihd,jhd->hij", q, k) * head_dim**-0.5
    if config.get("fgate_type") == "full":
        gates = F.logsigmoid(x @ own["attn.fgate_proj.weight"].T + own["attn.fgate_proj.bias"])
        total = gates.cumsum(dim=0).T
        logits = logits + total[:, :, None] - total[:, None, :]
    logits = logits.masked_fill(torch.ones(seq_len, seq_len).triu(1).bool(), -torch.inf)
    out = torch.einsum("hij,jhd->ihd", torch.softmax(logits, dim=-1), v)
    if config.get("use_output_norm"):
        out = _rms(out, eps) * own["attn.output_norm.weight"].view(heads, head_dim)
    out = out.reshape(seq_len, hidden)
    if config.get("use_output_gate"):
        out = out * torch.sigmoid(x @ own["attn.ogate_proj.weight"].T)
    return out @ own["attn.o_proj.weight"].T
