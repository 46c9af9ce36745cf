"""Small checkpoints with random weights, in any layout that the reader knows."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from patheval.checkpoint.config import ModelConfig
from patheval.checkpoint.layout import expected_shapes

DEFAULTS: dict[str, Any] = {
    "hidden_size": 64,
    "num_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}


def save_random_checkpoint(
    folder: Path, *, fused_mlp: bool = False, num_shards: int = 1, seed: int = 0, **config: Any
) -> Path:
    """Saves a model whose attention is far from uniform; `config` goes into config.json."""
    values = DEFAULTS | config
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(ModelConfig.from_dict(values, "config.json")).items():
        scale = 1.0 if len(shape) == 1 else 2 * shape[-1] ** -0.5
        tensor = scale * torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            tensor = 1 + 0.1 * tensor
        if name.endswith((".f_proj.bias", ".g_proj.bias")):
            tensor = tensor + 3  # gates near 1, so that far tokens count
        tensors[name] = tensor
    if fused_mlp:
        for name in [n for n in tensors if n.endswith("mlp.gate_proj.weight")]:
            up = tensors.pop(name.replace("gate_proj", "up_proj"))
            tensors[name] = torch.cat([tensors[name], up])
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values))
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for index in range(num_shards):
        file = f"model-{index + 1:05}-of-{num_shards:05}.safetensors"
        part = dict(list(tensors.items())[index::num_shards])
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
