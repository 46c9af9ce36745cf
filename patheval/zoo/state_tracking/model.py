"""Several models of one recipe, as one module: every parameter has a leading dimension for them."""

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from patheval.checkpoint.config import CONV_SIZE, LOW_RANK_W_RANK
from patheval.zoo.models import CONFIG_NAME, WEIGHTS_NAME
from patheval.zoo.state_tracking.attention import attend
from patheval.zoo.state_tracking.recipes import StateRecipe
from patheval.zoo.tokenizer import BOS_ID, EOS_ID

_NORM_EPS = 1e-6
_L2_EPS = 1e-6
_ROPE_THETA = 10_000.0
_INIT_STD = 0.02
_EMBEDDINGS = "model.embeddings.weight"
_ARCHITECTURES = {
    "rope": ("transformer", "TransformerForCausalLM"),
    "fox": ("forgetting_transformer", "ForgettingTransformerForCausalLM"),
    "path": ("path_attn", "PaTHAttentionForCausalLM"),
    "path-fox": ("path_attn", "PaTHAttentionForCausalLM"),
}


class StackedModel(nn.Module):
    """One model for each seed of a recipe, trained side by side and independent of one another.

    The architecture is flash-linear-attention's, and so are the parameters' names.

    Args:
        recipe: What to build.
        vocab_size: Rows of the tied embedding.
    """

    def __init__(self, recipe: StateRecipe, vocab_size: int) -> None:
        super().__init__()
        self.recipe = recipe
        self.vocab_size = vocab_size
        drawn = [_draw(recipe, vocab_size, seed) for seed in recipe.seeds]
        # ParameterDict takes no dots, and these are not modules of their own.
        self._names = {name: name.replace(".", "/") for name in drawn[0]}
        for name, key in self._names.items():
            stacked = torch.stack([weights[name] for weights in drawn])
            self.register_parameter(key, nn.Parameter(stacked))

    def weights(self) -> dict[str, Tensor]:
        """The parameters by their names in flash-linear-attention, [num_models, ...]."""
        return {name: self.get_parameter(key) for name, key in self._names.items()}

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token.

        Args:
            ids: int64 [num_models, batch, seq_len].

        Returns:
            [num_models, batch, seq_len, vocab_size].
        """
        weights = self.weights()
        num_models, batch, seq_len = ids.shape
        embeddings = weights[_EMBEDDINGS]
        # A product with one-hot rows: unlike indexing, its backward pass is deterministic.
        vocabulary = torch.arange(self.vocab_size, device=ids.device)
        one_hot = (ids.unsqueeze(-1) == vocabulary).to(embeddings.dtype)
        hidden = torch.bmm(one_hot.flatten(1, 2), embeddings)
        for layer in range(self.recipe.num_layers):
            prefix = f"model.layers.{layer}."
            own = {
                name.removeprefix(prefix): tensor
                for name, tensor in weights.items()
                if name.startswith(prefix)
            }
            normed = _rms_norm(hidden, own["attn_norm.weight"])
            hidden = hidden + self._attention(normed, own, batch, seq_len)
            normed = _rms_norm(hidden, own["mlp_norm.weight"])
            gate, up = _linear(normed, own, "mlp.gate_proj"), _linear(normed, own, "mlp.up_proj")
            hidden = hidden + _linear(F.silu(gate) * up, own, "mlp.down_proj")
        hidden = _rms_norm(hidden, weights["model.norm.weight"])
        logits = torch.bmm(hidden, embeddings.mT)
        return logits.view(num_models, batch, seq_len, self.vocab_size)

    def _attention(self, x: Tensor, own: dict[str, Tensor], batch: int, seq_len: int) -> Tensor:
        recipe, num_models = self.recipe, len(x)

        def heads(flat: Tensor) -> Tensor:
            """[models, tokens, heads * width] to [models * batch * heads, seq_len, width]."""
            split = flat.view(num_models, batch, seq_len, recipe.num_heads, -1)
            return split.transpose(2, 3).reshape(-1, seq_len, split.shape[-1])

        q, k, v = (heads(_linear(x, own, f"attn.{part}_proj")) for part in "qkv")
        w = beta = log_fgate = None
        if recipe.attention == "rope":
            q, k = _rotate(q), _rotate(k)
        if recipe.attention in ("path", "path-fox"):
            raw_w = _linear(_linear(x, own, "attn.w_proj.0"), own, "attn.w_proj.1")
            raw_w = _convolve(raw_w, own["attn.w_conv1d.weight"], batch, seq_len)
            w = heads(raw_w)
            w = w * torch.rsqrt(w.square().sum(dim=-1, keepdim=True) + _L2_EPS)
            beta = 2 * torch.sigmoid(heads(_linear(x, own, "attn.bt_proj"))).squeeze(-1)
        if recipe.attention in ("fox", "path-fox"):
            gate = "attn.f_proj" if recipe.attention == "fox" else "attn.g_proj"
            log_fgate = F.logsigmoid(heads(_linear(x, own, gate))).squeeze(-1)
        sm_scale = recipe.head_dim**-0.5
        out = attend(
            q,
            k,
            v,
            w,
            beta,
            log_fgate,
            sm_scale=sm_scale,
            gate_scale=1.0 if recipe.attention == "fox" else sm_scale,
        )
        out = out.view(num_models, batch, recipe.num_heads, seq_len, recipe.head_dim)
        return _linear(out.transpose(2, 3).reshape(x.shape), own, "attn.o_proj")

    def round_to_bfloat16(self) -> None:
        """Rounds the weights to what `save` stores."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(parameter.bfloat16())

    def save(self, index: int, folder: Path) -> None:
        """Writes `config.json` and `model.safetensors`, bfloat16, of one of the models.

        Args:
            index: Position of its seed in the recipe.
            folder: Made if it is not there.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: stacked[index].detach().to("cpu", torch.bfloat16).contiguous()
            for name, stacked in self.weights().items()
        }
        save_file(tensors, folder / WEIGHTS_NAME, metadata={"format": "pt"})
        config = _config(self.recipe, self.vocab_size)
        (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _draw(recipe: StateRecipe, vocab_size: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, width = recipe.hidden_size, recipe.intermediate_size

    def matrix(rows: int, columns: int) -> Tensor:
        return _INIT_STD * torch.randn(rows, columns, generator=generator)

    weights = {_EMBEDDINGS: matrix(vocab_size, hidden)}
    for layer in range(recipe.num_layers):
        prefix = f"model.layers.{layer}."
        own = {"attn_norm.weight": torch.ones(hidden), "mlp_norm.weight": torch.ones(hidden)}
        for part in "qkvo":
            own[f"attn.{part}_proj.weight"] = matrix(hidden, hidden)
        if recipe.attention in ("path", "path-fox"):
            own["attn.w_proj.0.weight"] = matrix(LOW_RANK_W_RANK, hidden)
            own["attn.w_proj.1.weight"] = matrix(hidden, LOW_RANK_W_RANK)
            taps = torch.rand(hidden, 1, CONV_SIZE, generator=generator) * 2 - 1
            own["attn.w_conv1d.weight"] = taps / math.sqrt(CONV_SIZE)
            own["attn.bt_proj.weight"] = matrix(recipe.num_heads, hidden)
            own["attn.bt_proj.bias"] = torch.zeros(recipe.num_heads)
        if recipe.attention in ("fox", "path-fox"):
            gate = "attn.f_proj" if recipe.attention == "fox" else "attn.g_proj"
            own[f"{gate}.weight"] = matrix(recipe.num_heads, hidden)
            own[f"{gate}.bias"] = torch.zeros(recipe.num_heads)
        own["mlp.gate_proj.weight"] = matrix(width, hidden)
        own["mlp.up_proj.weight"] = matrix(width, hidden)
        own["mlp.down_proj.weight"] = matrix(hidden, width)
        weights |= {f"{prefix}{name}": tensor for name, tensor in own.items()}
    weights["model.norm.weight"] = torch.ones(hidden)
    return weights


def _config(recipe: StateRecipe, vocab_size: int) -> dict[str, Any]:
    model_type, architecture = _ARCHITECTURES[recipe.attention]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "bos_token_id": BOS_ID,
        "dtype": "bfloat16",
        "eos_token_id": EOS_ID,
        "hidden_act": "swish",
        "hidden_size": recipe.hidden_size,
        "intermediate_size": recipe.intermediate_size,
        "model_type": model_type,
        "norm_eps": _NORM_EPS,
        "num_heads": recipe.num_heads,
        "num_hidden_layers": recipe.num_layers,
        "tie_word_embeddings": True,
        "vocab_size": vocab_size,
    }
    if recipe.attention == "rope":
        config["rope_theta"] = _ROPE_THETA
    elif model_type == "path_attn":
        config |= {
            "use_forget_gate": recipe.attention == "path-fox",
            "use_low_rank_w": True,
            "use_w_shortconv": True,
        }
    return config


def _linear(x: Tensor, own: dict[str, Tensor], name: str) -> Tensor:
    weight, bias = own[f"{name}.weight"], own.get(f"{name}.bias")
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + _NORM_EPS)
    return x * scale * weight.unsqueeze(1)


def _convolve(x: Tensor, taps: Tensor, batch: int, seq_len: int) -> Tensor:
    """Depthwise causal convolution, then SiLU; the last tap meets the current token."""
    split = F.pad(x.view(len(x), batch, seq_len, -1), (0, 0, CONV_SIZE - 1, 0))
    mixed = sum(
        split[:, :, lag : lag + seq_len] * taps[:, None, None, :, 0, lag]
        for lag in range(CONV_SIZE)
    )
    assert isinstance(mixed, Tensor)
    return F.silu(mixed).view(x.shape)


def _rotate(x: Tensor) -> Tensor:
    """Rotary embedding of the half-split layout: dimension d pairs with d + head_dim / 2."""
    _, seq_len, head_dim = x.shape
    steps = torch.arange(0, head_dim, 2, device=x.device, dtype=x.dtype)
    positions = torch.arange(seq_len, device=x.device, dtype=x.dtype)
    angles = torch.outer(positions, _ROPE_THETA ** -(steps / head_dim))
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
