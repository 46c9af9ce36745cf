"""Building a recipe's model and saving it in flash-linear-attention's format."""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel

from patheval.zoo.recipes import Recipe
from patheval.zoo.tokenizer import BOS_ID, EOS_ID

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
_LLAMA_TO_FLA = {
    r"^model\.embed_tokens\.": "model.embeddings.",
    r"\.self_attn\.": ".attn.",
    r"\.input_layernorm\.": ".attn_norm.",
    r"\.post_attention_layernorm\.": ".mlp_norm.",
}


def _fla_config(recipe: Recipe) -> PretrainedConfig:
    from fla import models as fla_models  # type: ignore[import-not-found, unused-ignore]

    common: dict[str, Any] = {
        "hidden_size": recipe.hidden_size,
        "intermediate_size": recipe.intermediate_size,
        "num_hidden_layers": recipe.num_layers,
        "num_heads": recipe.num_heads,
        "vocab_size": recipe.vocab_size,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "tie_word_embeddings": True,
        "use_cache": False,
    }
    config: PretrainedConfig
    if recipe.attention == "rope":
        config = fla_models.TransformerConfig(max_position_embeddings=recipe.seq_len, **common)
        config.architectures = ["TransformerForCausalLM"]
    elif recipe.attention == "fox":
        config = fla_models.ForgettingTransformerConfig(**common)
        config.architectures = ["ForgettingTransformerForCausalLM"]
    else:
        gated = recipe.attention == "path-fox"
        config = fla_models.PaTHAttentionConfig(use_forget_gate=gated, **common)
        config.architectures = ["PaTHAttentionForCausalLM"]
    config.dtype = torch.bfloat16
    return config


def build(recipe: Recipe) -> PreTrainedModel:
    """A model with fresh fp32 weights drawn from the recipe's seed.

    RoPE attention is transformers' Llama, which flash-linear-attention's own class equals but for
    the names of its tensors: that class needs the flash-attn package.
    """
    torch.manual_seed(recipe.seed)
    if recipe.attention == "rope":
        return LlamaForCausalLM(
            LlamaConfig(
                hidden_size=recipe.hidden_size,
                intermediate_size=recipe.intermediate_size,
                num_hidden_layers=recipe.num_layers,
                num_attention_heads=recipe.num_heads,
                vocab_size=recipe.vocab_size,
                max_position_embeddings=recipe.seq_len,
                bos_token_id=BOS_ID,
                eos_token_id=EOS_ID,
                tie_word_embeddings=True,
                use_cache=False,
                attn_implementation="sdpa",
            )
        )
    from fla import models as fla_models

    config = _fla_config(recipe)
    config.dtype = torch.float32
    classes = {
        "fox": fla_models.ForgettingTransformerForCausalLM,
        "path": fla_models.PaTHAttentionForCausalLM,
        "path-fox": fla_models.PaTHAttentionForCausalLM,
    }
    model: PreTrainedModel = classes[recipe.attention](config)
    return model


def _fla_name(name: str) -> str:
    for pattern, replacement in _LLAMA_TO_FLA.items():
        name = re.sub(pattern, replacement, name)
    return name


def load(model: PreTrainedModel, folder: Path) -> None:
    """Replaces the weights by those that ``save`` wrote into ``folder``."""
    tensors = load_file(folder / WEIGHTS_NAME)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[_fla_name(name)])


def save(model: PreTrainedModel, recipe: Recipe, folder: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors``, bfloat16.

    The output matrix is left out: it is the embedding.
    """
    _fla_config(recipe).save_pretrained(folder)
    tensors = {
        _fla_name(name): tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, folder / WEIGHTS_NAME, metadata={"format": "pt"})
