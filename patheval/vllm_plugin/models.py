"""Model classes: vLLM's Llama with the checkpoint's kind of attention and fla's tensor names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper
from vllm.sequence import IntermediateTensors

from patheval.checkpoint.config import ModelConfig
from patheval.checkpoint.weights import map_weights
from patheval.vllm_plugin.attention import PagedAttention


class KVHeads:
    """This rank's share of the kv heads; with fewer heads than ranks, heads are replicated."""

    def __init__(self, num_kv_heads: int) -> None:
        """Split `num_kv_heads` over the tensor-parallel ranks."""
        tp_size = get_tensor_model_parallel_world_size()
        self.num = max(1, num_kv_heads // tp_size)
        self.first = get_tensor_model_parallel_rank() * num_kv_heads // tp_size

    def parameter(self, width: int, *shape: int) -> nn.Parameter:
        """Make an empty parameter [num * width, *shape] that loads the rows of its own heads."""
        parameter = nn.Parameter(torch.empty(self.num * width, *shape), requires_grad=False)
        start = self.first * width

        def load(target: torch.Tensor, stored: torch.Tensor) -> None:
            target.data.copy_(stored[start : start + len(target)])

        parameter.weight_loader = load  # type: ignore[attr-defined]
        return parameter


class KVHeadLinear(nn.Module):
    """Linear map whose outputs belong to kv heads, `width` to each."""

    def __init__(self, in_features: int, heads: KVHeads, width: int, *, bias: bool = False) -> None:
        """Hold the rows of this rank's heads."""
        super().__init__()
        self.weight = heads.parameter(width, in_features)
        self.bias = heads.parameter(width) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., heads.num * width]."""
        return F.linear(x, self.weight, self.bias)


class LowRankW(nn.Module):
    """w through a few dimensions; the submodules are named as in fla's state dicts."""

    def __init__(self, config: ModelConfig, heads: KVHeads) -> None:
        """Replicate the first matrix and split the second by kv heads."""
        super().__init__()
        rank = config.low_rank_w_rank
        down = ReplicatedLinear(config.hidden_size, rank, bias=False, return_bias=False)
        self.add_module("0", down)
        self.add_module("1", KVHeadLinear(rank, heads, config.head_dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] -> [..., heads.num * head_dim]."""
        return self.get_submodule("1")(self.get_submodule("0")(x))


class ShortConvWeight(nn.Module):
    """Taps of the depthwise convolution on w, [heads.num * head_dim, 1, conv_size] as stored."""

    def __init__(self, config: ModelConfig, heads: KVHeads) -> None:
        """Hold the taps of this rank's heads."""
        super().__init__()
        self.weight = heads.parameter(config.head_dim, 1, config.conv_size)


class HeadNorm(nn.Module):
    """RMS norm over each head; computed in fp32."""

    def __init__(self, weight: nn.Parameter, head_dim: int, eps: float) -> None:
        """Normalise with `weight`, [heads * head_dim], or [head_dim] for all heads alike."""
        super().__init__()
        self.weight = weight
        self._head_dim, self._eps = head_dim, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape and dtype as x, [..., heads * head_dim]."""
        heads = x.float().unflatten(-1, (-1, self._head_dim))
        scaled = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + self._eps)
        weight = self.weight.float().view(-1, self._head_dim)
        return (scaled * weight).flatten(-2).to(x.dtype)


class SelfAttention(nn.Module):
    """Attention over pages; submodules are named as in fla's state dicts.

    That is PaTH, PaTH-FoX, FoX, and RoPE with the Pro layers of zhixuan-lin/forgetting-transformer.
    """

    def __init__(self, *, config: Any, prefix: str, **_: Any) -> None:
        """Build this rank's projections; what else vLLM's Llama passes follows from config."""
        super().__init__()
        fla = self._fla = config.model_config
        hidden, head_dim = fla.hidden_size, fla.head_dim
        has_transport = fla.attention in ("path", "path-fox")
        heads = KVHeads(fla.num_kv_heads)
        num_heads = fla.num_heads // get_tensor_model_parallel_world_size()
        self.qkv_proj = QKVParallelLinear(
            hidden,
            head_dim,
            fla.num_heads,
            fla.num_kv_heads,
            bias=fla.qkv_bias,
            return_bias=False,
            prefix=f"{prefix}.qkv_proj",
        )
        self._qkv_sizes = [num_heads * head_dim, heads.num * head_dim, heads.num * head_dim]
        if fla.has_token_shift:
            self.k_shift_proj = KVHeadLinear(hidden, heads, 1) if fla.use_k_shift else None
            self.v_shift_proj = KVHeadLinear(hidden, heads, 1) if fla.use_v_shift else None
        if fla.qk_norm != "none":
            is_shared = fla.qk_norm == "per_head"
            for name, own in (("q_norm", KVHeads(fla.num_heads)), ("k_norm", heads)):
                weight = nn.Parameter(torch.empty(head_dim), requires_grad=False)
                weight = weight if is_shared else own.parameter(head_dim)
                self.add_module(name, HeadNorm(weight, head_dim, fla.qk_norm_eps))
        if fla.rope_theta is not None:
            self.rotary_emb = get_rope(
                head_dim,
                max_position=config.max_position_embeddings,
                rope_parameters=config.rope_parameters,
            )
        if has_transport:
            self.w_proj = (
                LowRankW(fla, heads)
                if fla.use_low_rank_w
                else KVHeadLinear(hidden, heads, head_dim)
            )
            self.w_conv1d = ShortConvWeight(fla, heads) if fla.use_w_shortconv else None
            self.bt_proj = KVHeadLinear(hidden, heads, 1, bias=True)
        if fla.attention == "path-fox":
            self.g_proj = self._column_parallel(fla.num_heads, bias=True)
        if fla.attention == "fox":
            self.f_proj = self._column_parallel(fla.num_heads, bias=True)
        if fla.use_output_norm:
            self.output_norm = HeadNorm(
                KVHeads(fla.num_heads).parameter(head_dim), head_dim, fla.norm_eps
            )
        if fla.use_output_gate:
            self.g_proj = self._column_parallel(hidden, bias=False)
        self.o_proj = RowParallelLinear(
            hidden, hidden, bias=False, return_bias=False, prefix=f"{prefix}.o_proj"
        )
        self.attn = PagedAttention(
            f"{prefix}.attn",
            num_heads=num_heads,
            num_kv_heads=heads.num,
            head_dim=head_dim,
            has_transport=has_transport,
            has_gate=fla.attention in ("path-fox", "fox"),
            conv_size=fla.conv_size if has_transport and fla.use_w_shortconv else 0,
            has_token_shift=fla.has_token_shift,
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] -> [rows, hidden_size]; positions are for RoPE alone."""
        fla, x = self._fla, hidden_states
        q, k, v = self.qkv_proj(x).split(self._qkv_sizes, dim=-1)
        w = conv_weight = beta = log_fgate = None
        if fla.has_token_shift:
            past_k, past_v = self.attn.previous(torch.cat([k, v], dim=-1)).chunk(2, dim=-1)
            k = self._shifted(x, k, past_k, self.k_shift_proj)
            v = self._shifted(x, v, past_v, self.v_shift_proj)
        if fla.qk_norm != "none":
            q, k = self.get_submodule("q_norm")(q), self.get_submodule("k_norm")(k)
        if fla.rope_theta is not None:
            q, k = self.rotary_emb(positions, q.contiguous(), k.contiguous())
        if fla.attention in ("path", "path-fox"):
            w = self.w_proj(x)
            conv_weight = None if self.w_conv1d is None else self.w_conv1d.weight[:, 0]
            beta = 2 * torch.sigmoid(self.bt_proj(x).float())
        if fla.attention == "path-fox":
            log_fgate = F.logsigmoid(self.g_proj(x).float())
        if fla.attention == "fox":
            log_fgate = F.logsigmoid(self.f_proj(x).float())
        out = self.attn(q, k, v, w, conv_weight, beta, log_fgate)
        if fla.use_output_norm:
            out = self.output_norm(out)
        if fla.use_output_gate:
            out = out * torch.sigmoid(self.g_proj(x))
        return self.o_proj(out)

    def _shifted(
        self, x: torch.Tensor, own: torch.Tensor, past: torch.Tensor, shift: nn.Module | None
    ) -> torch.Tensor:
        """Mix [rows, kv heads * head_dim] with the token before, in fp32, rounded once."""
        if shift is None:
            return own
        share = torch.sigmoid(shift(x).float()).repeat_interleave(self._fla.head_dim, dim=-1)
        return (share * past.float() + (1 - share) * own.float()).to(own.dtype)

    def _column_parallel(self, out_features: int, *, bias: bool) -> ColumnParallelLinear:
        return ColumnParallelLinear(
            self._fla.hidden_size, out_features, bias=bias, return_bias=False
        )


class RopeAttention(LlamaAttention):
    """vLLM's Llama attention, with fla's optional norm of query and key heads before rotation."""

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        """Build vLLM's layer and the norms."""
        super().__init__(config=config, **kwargs)
        fla = config.model_config
        self._has_qk_norm = fla.qk_norm == "per_head"
        if self._has_qk_norm:
            self.q_norm = RMSNorm(fla.head_dim, eps=fla.qk_norm_eps)
            self.k_norm = RMSNorm(fla.head_dim, eps=fla.qk_norm_eps)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] -> [rows, hidden_size]."""
        if not self._has_qk_norm:
            return super().forward(positions, hidden_states)
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q = self.q_norm(q.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        k = self.k_norm(k.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        q, k = self.rotary_emb(positions, q, k)
        return self.o_proj(self.attn(q, k, v))[0]


class ExactLogits(UnquantizedEmbeddingMethod):
    """Logits of 16-bit weights that are not rounded to 16 bits.

    In bf16 a logit between 8 and 16 is rounded by up to 0.03.
    """

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[rows, hidden_size] -> [rows, vocabulary], fp32 on a GPU."""
        if not x.is_cuda or x.dtype == torch.float32:
            return super().apply(layer, x, bias)
        logits = torch.mm(x, layer.get_parameter("weight").t(), out_dtype=torch.float32)
        return logits if bias is None else logits + bias


class ResidualNorm(RMSNorm):
    """RMS norm of a residual stream that is kept in fp32.

    Rounded to bf16 after each block, it has nearly as large a share in the error of a small model
    as the norms' outputs have.
    """

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """[rows, hidden_size] in the model's dtype, alone or with the new residual in fp32."""
        if residual is None or x.dtype == torch.float32:
            return super().forward(x, residual)
        total = x.float() + residual.float()
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return (total * scale * self.weight.float()).to(x.dtype), total


class DecoderLayer(LlamaDecoderLayer):
    """vLLM's Llama block around the attention of the checkpoint's kind."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "", config: Any = None) -> None:
        """Choose the attention by the config."""
        config = config or vllm_config.model_config.hf_config
        is_paged = config.model_config.is_paged
        super().__init__(vllm_config, prefix, config, SelfAttention if is_paged else RopeAttention)
        self.input_layernorm = ResidualNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = ResidualNorm(config.hidden_size, eps=config.rms_norm_eps)


class PathEvalForCausalLM(LlamaForCausalLM):
    """A checkpoint in flash-linear-attention's format, of any attention kind."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        """Build vLLM's Llama with our blocks."""
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=DecoderLayer)
        if isinstance(self.lm_head, VocabParallelEmbedding):  # not on every pipeline rank
            self.lm_head.quant_method = ExactLogits()
        if isinstance(self.model.norm, RMSNorm):
            config = self.config
            self.model.norm = ResidualNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.make_empty_intermediate_tensors = self._empty_intermediate_tensors

    def _empty_intermediate_tensors(
        self, batch_size: int, dtype: torch.dtype, device: torch.device
    ) -> IntermediateTensors:
        """What one pipeline rank hands to the next."""
        dtypes = {"hidden_states": dtype, "residual": torch.float32}
        size = batch_size, self.config.hidden_size
        return IntermediateTensors(
            {name: torch.zeros(size, dtype=own, device=device) for name, own in dtypes.items()}
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load fla's tensors, each exactly once.

        Raises:
            CheckpointError: A tensor is missing, unknown, mis-shaped, stored twice or not finite.
        """
        # map_weights yields before it has seen all, so a bad checkpoint fails here, never silently.
        checked = map_weights(self.config.model_config, weights)
        return AutoWeightsLoader(self).load_weights(checked, mapper=_FLA_TO_LLAMA)


class PathEvalRopeForCausalLM(PathEvalForCausalLM):
    """The same for plain RoPE; settings of paged attention do not apply to its name."""


_FLA_TO_LLAMA = WeightsMapper(
    orig_to_new_substr={
        "model.embeddings.": "model.embed_tokens.",
        ".attn.": ".self_attn.",
        ".attn_norm.": ".input_layernorm.",
        ".mlp_norm.": ".post_attention_layernorm.",
    }
)
