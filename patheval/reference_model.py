"""A checkpoint's forward pass in plain PyTorch: the parity oracle, and the way without vLLM.

The order of operations and the roundings are those of flash-linear-attention 0.6.0. Attention,
norms and gates are computed in at least float32, whatever the model's dtype.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from patheval.checkpoint.config import ModelConfig
from patheval.checkpoint.layout import EMBEDDINGS, LM_HEAD, fgate_name
from patheval.checkpoint.reader import Checkpoint

_CHUNK_SIZE = 64
_L2_EPS = 1e-6


@dataclass
class LayerCache:
    """What one layer keeps of the tokens seen; a decode step replaces every field.

    Attributes:
        keys: [seq_len, num_kv_heads, head_dim], at least float32; under PaTH carried to the last
            token seen, k~_j = H_t ... H_{j+1} k_j; under RoPE rotated.
        values: [seq_len, num_kv_heads, head_dim], at least float32.
        decay: [seq_len, num_heads], float64, running sum of the log forget gates; None without.
        conv_tail: [conv_size - 1, num_kv_heads * head_dim], last inputs of the convolution of w;
            None without.
        shift_tail: [2, num_kv_heads, head_dim], key and value of the last token before they were
            shifted; None without token shift.
    """

    keys: torch.Tensor
    values: torch.Tensor
    decay: torch.Tensor | None
    conv_tail: torch.Tensor | None
    shift_tail: torch.Tensor | None = None


Cache = list[LayerCache]


@dataclass(frozen=True)
class _AttentionInputs:
    """What a layer computes of a run of tokens; None for what its attention kind lacks."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    w: torch.Tensor | None
    beta: torch.Tensor | None
    log_fgate: torch.Tensor | None
    conv_tail: torch.Tensor | None
    shift_tail: torch.Tensor | None = None


class ReferenceModel:
    """A language model in flash-linear-attention's format, one sequence at a time.

    Args:
        checkpoint: An opened checkpoint.
        device: Where to compute.
        dtype: Of weights and activations: bfloat16, float16, float32 or float64.

    Raises:
        CheckpointError: The weights do not fit the config.
        UnsupportedError: The checkpoint is a stock one.
    """

    config: ModelConfig

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = checkpoint.require_model_config(
            "patheval's reference model reads flash-linear-attention's format only, so use lm-eval "
            "with --model hf instead"
        )
        self.device = torch.device(device)
        self.dtype = dtype
        self._wide_dtype = torch.promote_types(dtype, torch.float32)
        self._sm_scale = self.config.head_dim**-0.5
        self._gate_scale = self._sm_scale if self.config.attention == "path-fox" else 1.0
        self._weights = {
            name: tensor.to(device=self.device, dtype=dtype)
            for name, tensor in checkpoint.tensors()
        }
        if self.config.tie_word_embeddings:
            self._weights[LM_HEAD] = self._weights[EMBEDDINGS]

    @torch.inference_mode()
    def prefill(self, token_ids: Sequence[int]) -> tuple[torch.Tensor, Cache]:
        """Runs a whole prompt.

        Args:
            token_ids: At least one id, each in [0, vocab_size).

        Returns:
            The final-norm output, [seq_len, hidden_size] in the model's dtype, and the cache that
            `decode` continues from.
        """
        return self._forward(torch.tensor(token_ids, device=self.device), None)

    @torch.inference_mode()
    def decode(self, token_id: int, cache: Cache) -> torch.Tensor:
        """Runs one more token.

        Args:
            token_id: In [0, vocab_size).
            cache: From `prefill`; extended in place by this token.

        Returns:
            The final-norm output, [1, hidden_size] in the model's dtype.
        """
        hidden, cache[:] = self._forward(torch.tensor([token_id], device=self.device), cache)
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Applies the output matrix.

        Args:
            hidden: [num_tokens, hidden_size], from `prefill` or `decode`.

        Returns:
            [num_tokens, vocab_size], float32, or float64 for a float64 model.
        """
        return F.linear(hidden, self._weights[LM_HEAD]).to(self._wide_dtype)

    def _forward(self, token_ids: torch.Tensor, cache: Cache | None) -> tuple[torch.Tensor, Cache]:
        residual = F.embedding(token_ids, self._weights[EMBEDDINGS])
        new_cache: Cache = []
        for layer_idx in range(self.config.num_layers):
            prefix = f"model.layers.{layer_idx}"
            normed = self._rms_norm(residual, f"{prefix}.attn_norm", self.config.norm_eps)
            attended, layer_cache = self._attention(
                normed, f"{prefix}.attn", None if cache is None else cache[layer_idx]
            )
            new_cache.append(layer_cache)
            # The norm sees the sum before it is rounded to the residual stream's dtype.
            total = residual.to(self._wide_dtype) + attended.to(self._wide_dtype)
            residual = total.to(self.dtype)
            normed = self._rms_norm(total, f"{prefix}.mlp_norm", self.config.norm_eps)
            residual = residual + self._mlp(normed, f"{prefix}.mlp")
        return self._rms_norm(residual, "model.norm", self.config.norm_eps), new_cache

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _rms_norm(self, x: torch.Tensor, name: str, eps: float) -> torch.Tensor:
        """Normalises over the last dimension; the weight may be one for all heads or per head."""
        weight = self._weights[f"{name}.weight"].to(self._wide_dtype)
        x = x.to(self._wide_dtype)
        x = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
        return (x * weight.view(-1, x.shape[-1])).to(self.dtype)

    def _mlp(self, x: torch.Tensor, name: str) -> torch.Tensor:
        gate = self._linear(x, f"{name}.gate_proj").to(self._wide_dtype)
        up = self._linear(x, f"{name}.up_proj").to(self._wide_dtype)
        return self._linear((F.silu(gate) * up).to(self.dtype), f"{name}.down_proj")

    def _attention(
        self, x: torch.Tensor, name: str, cache: LayerCache | None
    ) -> tuple[torch.Tensor, LayerCache]:
        inputs = self._project(x, name, cache)
        if cache is None:
            out, new_cache = _attend_prompt(inputs, self._sm_scale, self._gate_scale)
        else:
            out, new_cache = _attend_token(inputs, cache, self._sm_scale, self._gate_scale)
        out = out.to(self.dtype)
        if self.config.use_output_norm:
            out = self._rms_norm(out, f"{name}.output_norm", self.config.norm_eps)
        out = out.flatten(1)
        if self.config.use_output_gate:
            gate = torch.sigmoid(self._linear(x, f"{name}.g_proj").to(self._wide_dtype))
            out = (out.to(self._wide_dtype) * gate).to(self.dtype)
        return self._linear(out, f"{name}.o_proj"), new_cache

    def _project(self, x: torch.Tensor, name: str, cache: LayerCache | None) -> _AttentionInputs:
        config, wide = self.config, self._wide_dtype

        def heads(flat: torch.Tensor) -> torch.Tensor:
            return flat.view(len(x), -1, config.head_dim)

        q, k, v = (heads(self._linear(x, f"{name}.{part}_proj")) for part in "qkv")
        shift_tail = None
        if config.has_token_shift:
            past = k.new_zeros(2, *k.shape[1:])
            if cache is not None and cache.shift_tail is not None:
                past = cache.shift_tail
            shift_tail = torch.stack([k[-1], v[-1]])
            k, v = self._shift(x, k, past[0], name, "k"), self._shift(x, v, past[1], name, "v")
        if config.qk_norm != "none":
            q = self._rms_norm(q, f"{name}.q_norm", config.qk_norm_eps)
            k = self._rms_norm(k, f"{name}.k_norm", config.qk_norm_eps)
        if config.rope_theta is not None:
            first_position = 0 if cache is None else len(cache.keys)
            q, k = self._rotate(q, first_position), self._rotate(k, first_position)

        w = beta = log_fgate = conv_tail = None
        if config.attention in ("path", "path-fox"):
            raw_w = self._raw_w(x, name)
            if config.use_w_shortconv:
                past = raw_w.new_zeros(config.conv_size - 1, raw_w.shape[1])
                if cache is not None and cache.conv_tail is not None:
                    past = cache.conv_tail
                padded = torch.cat([past, raw_w])
                conv_tail = padded[len(raw_w) :]
                raw_w = self._convolve(padded, name)
            w = heads(raw_w).to(wide)
            w = w * torch.rsqrt(w.square().sum(dim=-1, keepdim=True) + _L2_EPS)
            beta = 2 * torch.sigmoid(self._linear(x, f"{name}.bt_proj").to(wide))
        if config.attention in ("path-fox", "fox"):
            log_fgate = F.logsigmoid(self._linear(x, f"{name}.{fgate_name(config)}").to(wide))
        return _AttentionInputs(
            q.to(wide), k.to(wide), v.to(wide), w, beta, log_fgate, conv_tail, shift_tail
        )

    def _shift(
        self, x: torch.Tensor, own: torch.Tensor, past: torch.Tensor, name: str, part: str
    ) -> torch.Tensor:
        """Mixes keys or values, [seq_len, heads, head_dim], with those of the token before."""
        shift = f"{name}.{part}_shift_proj"
        if f"{shift}.weight" not in self._weights:
            return own
        share = torch.sigmoid(self._linear(x, shift).to(self._wide_dtype)).unsqueeze(-1)
        before = torch.cat([past.unsqueeze(0), own[:-1]]).to(self._wide_dtype)
        return (share * before + (1 - share) * own.to(self._wide_dtype)).to(self.dtype)

    def _raw_w(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if not self.config.use_low_rank_w:
            return self._linear(x, f"{name}.w_proj")
        return self._linear(self._linear(x, f"{name}.w_proj.0"), f"{name}.w_proj.1")

    def _convolve(self, padded: torch.Tensor, name: str) -> torch.Tensor:
        """Depthwise causal convolution, then SiLU; the last tap meets the current token."""
        taps = self._weights[f"{name}.w_conv1d.weight"].to(self._wide_dtype).squeeze(1)
        windows = padded.to(self._wide_dtype).unfold(0, self.config.conv_size, 1)
        return F.silu((windows * taps).sum(dim=-1)).to(self.dtype)

    def _rotate(self, x: torch.Tensor, first_position: int) -> torch.Tensor:
        """Rotary embedding of the half-split layout: dimension d pairs with d + head_dim / 2."""
        assert self.config.rope_theta is not None
        wide = self._wide_dtype
        steps = torch.arange(0, self.config.head_dim, 2, device=self.device, dtype=wide)
        inverse_freqs = self.config.rope_theta ** -(steps / self.config.head_dim)
        positions = torch.arange(len(x), device=self.device, dtype=wide) + first_position
        angles = torch.outer(positions, inverse_freqs).unsqueeze(1)
        cos, sin = angles.cos().to(self.dtype).to(wide), angles.sin().to(self.dtype).to(wide)
        first, second = x.to(wide).chunk(2, dim=-1)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return rotated.to(self.dtype)


def _attend_token(
    inputs: _AttentionInputs, cache: LayerCache, sm_scale: float, gate_scale: float
) -> tuple[torch.Tensor, LayerCache]:
    """One token against the cache: carries the keys past it, appends it, attends."""
    keys = cache.keys
    if inputs.w is not None and inputs.beta is not None:
        along_w = (keys * inputs.w).sum(dim=-1, keepdim=True)
        keys = keys - inputs.beta.unsqueeze(-1) * along_w * inputs.w
    keys = torch.cat([keys, inputs.k])
    values = torch.cat([cache.values, inputs.v])

    group_size = inputs.q.shape[1] // keys.shape[1]
    logits = sm_scale * torch.einsum(
        "hd,jhd->jh", inputs.q[0], keys.repeat_interleave(group_size, dim=1)
    )
    decay = cache.decay
    if decay is not None and inputs.log_fgate is not None:
        decay = torch.cat([decay, decay[-1:] + inputs.log_fgate])
        logits = logits + gate_scale * (decay[-1] - decay).to(logits.dtype)
    weights = torch.softmax(logits, dim=0)
    out = torch.einsum("jh,jhd->hd", weights, values.repeat_interleave(group_size, dim=1))
    return out.unsqueeze(0), LayerCache(keys, values, decay, inputs.conv_tail, inputs.shift_tail)


def _attend_prompt(
    inputs: _AttentionInputs, sm_scale: float, gate_scale: float
) -> tuple[torch.Tensor, LayerCache]:
    """A whole prompt, in chunks.

    With the rows of W the w of one chunk and M = (I + strict_lower(diag(beta) W W^T))^-1 diag(beta)
    the product H_n ... H_1 over the chunk is I - W^T M W. Inside a chunk, keys are carried to its
    end and queries to its start; then the queries of all later chunks visit the chunks from right
    to left and are moved past each one, with a running softmax.
    """
    seq_len, num_heads, _ = inputs.q.shape
    num_chunks = math.ceil(seq_len / _CHUNK_SIZE)

    def chunked(x: torch.Tensor) -> torch.Tensor:
        """[seq_len, heads, width] to [num_heads, num_chunks, _CHUNK_SIZE, width], zero padded."""
        padded: torch.Tensor = F.pad(x, (0, 0, 0, 0, 0, num_chunks * _CHUNK_SIZE - seq_len))
        padded = padded.repeat_interleave(num_heads // x.shape[1], dim=1)
        return padded.transpose(0, 1).reshape(num_heads, num_chunks, _CHUNK_SIZE, -1)

    q, k, v = chunked(sm_scale * inputs.q), chunked(inputs.k), chunked(inputs.v)
    logits = q @ k.mT
    w = moved_w = None
    if inputs.w is not None and inputs.beta is not None:
        w, beta = chunked(inputs.w), chunked(inputs.beta.unsqueeze(-1))
        identity = torch.eye(_CHUNK_SIZE, dtype=w.dtype, device=w.device)
        mixing = torch.linalg.solve_triangular(
            identity + (beta * (w @ w.mT)).tril(-1), beta * identity, upper=False
        )
        moved_w = mixing @ w
        q_along_w, k_along_w = (q @ w.mT).tril(), mixing @ (w @ k.mT).tril(-1)
        logits -= q_along_w @ k_along_w
        q -= q_along_w @ moved_w
        k -= k_along_w.mT @ w

    decay = chunk_decay = None
    if inputs.log_fgate is not None:
        decay = inputs.log_fgate.to(torch.float64).cumsum(dim=0)
        chunk_decay = chunked(gate_scale * decay.unsqueeze(-1))
        logits += (chunk_decay - chunk_decay.mT).to(logits.dtype)
    future = torch.ones(_CHUNK_SIZE, _CHUNK_SIZE, dtype=torch.bool, device=q.device).triu(1)
    logits.masked_fill_(future, -torch.inf)
    highest = logits.amax(dim=-1, keepdim=True)
    weights = torch.exp(logits - highest)
    total, out = weights.sum(dim=-1, keepdim=True), weights @ v

    for chunk_idx in range(num_chunks - 2, -1, -1):
        here, later = slice(chunk_idx, chunk_idx + 1), slice(chunk_idx + 1, None)
        logits = q[:, later] @ k[:, here].mT
        if chunk_decay is not None:
            logits += (chunk_decay[:, later] - chunk_decay[:, here].mT).to(logits.dtype)
        new_highest = torch.maximum(highest[:, later], logits.amax(dim=-1, keepdim=True))
        shrink = torch.exp(highest[:, later] - new_highest)
        weights = logits.sub_(new_highest).exp_()
        highest[:, later] = new_highest
        total[:, later] = total[:, later] * shrink + weights.sum(dim=-1, keepdim=True)
        out[:, later] = out[:, later] * shrink + weights @ v[:, here]
        if w is not None and moved_w is not None:
            q[:, later] -= (q[:, later] @ w[:, here].mT) @ moved_w[:, here]
    if w is not None and moved_w is not None:
        for chunk_idx in range(1, num_chunks):
            here = slice(chunk_idx, chunk_idx + 1)
            k[:, :chunk_idx] -= (k[:, :chunk_idx] @ moved_w[:, here].mT) @ w[:, here]

    def sequential(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1, 2)[:, :seq_len].transpose(0, 1)

    keys = sequential(k[:: num_heads // inputs.k.shape[1]]).contiguous()
    return sequential(out / total), LayerCache(
        keys, inputs.v, decay, inputs.conv_tail, inputs.shift_tail
    )
