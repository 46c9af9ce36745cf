"""A checkpoint's config.json as one typed, validated record.

Three kinds of file are understood: flash-linear-attention's (`path_attn`, `forgetting_transformer`,
`transformer`), those of zhixuan-lin/forgetting-transformer (FoX and RoPE, with or without its Pro
layers), and stock RoPE decoders, which vLLM serves by itself and of which only the common facts are
read.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from patheval.errors import CheckpointError, UnsupportedError

AttentionKind = Literal["path", "path-fox", "fox", "rope"]
QKNorm = Literal["none", "per_head", "per_channel"]

FLA_MODEL_TYPES = ("path_attn", "forgetting_transformer", "transformer")
PROJECT_FOX_MODEL_TYPE = "forgetting_transformer-project_fox"
PROJECT_ROPE_MODEL_TYPE = "transformer-project_fox"
FOX_MODEL_TYPES = ("forgetting_transformer", PROJECT_FOX_MODEL_TYPE)
STOCK_MODEL_TYPES = (
    "gpt_neox",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
)
SUPPORTED_MODEL_TYPES = (
    *FLA_MODEL_TYPES,
    PROJECT_FOX_MODEL_TYPE,
    PROJECT_ROPE_MODEL_TYPE,
    *STOCK_MODEL_TYPES,
)

DTYPES = ("bfloat16", "float16", "float32")
PATH_HEAD_DIMS = (16, 32, 64, 128)
OTHER_HEAD_DIMS = range(16, 257, 8)

# Hard-coded in flash-linear-attention's PaTH layer, whatever the config says.
LOW_RANK_W_RANK = 32
CONV_SIZE = 3
QK_NORM_EPS = 1e-5
# Of every released checkpoint of zhixuan-lin/forgetting-transformer.
_PROJECT_ROPE_BASE = 500_000.0

_INTERMEDIATE_MULTIPLE = 256
_MAX_INTERMEDIATE_SIZE = 2**31

_logger = logging.getLogger(__name__)

_COMMON_KEYS = frozenset(
    {
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "hidden_ratio",
        "intermediate_size",
        "hidden_act",
        "elementwise_affine",
        "norm_eps",
        "vocab_size",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "dtype",
        "torch_dtype",
        "max_position_embeddings",
        "attnres_block_size",
        "window_size",
    }
)
_KEYS_BY_MODEL_TYPE: Mapping[str, frozenset[str]] = {
    "path_attn": frozenset({"use_forget_gate", "use_w_shortconv", "use_low_rank_w"}),
    "forgetting_transformer": frozenset({"qkv_bias", "qk_norm", "use_output_gate"}),
    "transformer": frozenset({"qkv_bias", "qk_norm", "rope_theta"}),
    PROJECT_FOX_MODEL_TYPE: frozenset(),
    PROJECT_ROPE_MODEL_TYPE: frozenset({"use_rope", "rope_base"}),
}
# Training, fusion and caching settings; keys that the layers never read; values that only
# initialise weights; and keys that say nothing once the switch that they belong to is off.
_IRRELEVANT_KEYS = frozenset(
    {
        "use_cache",
        "use_l2warp",
        "use_return_dict",
        "use_qk_norm",
        "conv_size",
        "conv_bias",
        "attention_bias",
        "attention_dropout",
        "attn_implementation",
        "fgate_bias_init",
        "log_pruning_tolerance",
        "rope_base",
    }
)
_PROJECT_FOX_KEYS = frozenset(
    {
        "fgate_type",
        "ogate_act",
        "qk_norm",
        "qk_norm_share_param_across_head",
        "use_k_shift",
        "use_output_gate",
        "use_output_norm",
        "use_rope",
        "use_v_shift",
    }
)
_SWITCH_PREFIXES = (
    "attn",
    "attention_",
    "conv_",
    "expert",
    "fgate",
    "gate_",
    "layer_types",
    "mixer",
    "mlp_",
    "moe_",
    "norm_",
    "num_experts",
    "ogate",
    "qk_",
    "rope",
    "sliding_",
    "use_",
    "window",
)


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of a checkpoint in flash-linear-attention's format.

    Attributes:
        attention: Attention kind, the same in every layer.
        model_type: `model_type` of config.json.
        hidden_size: Width of the residual stream.
        num_layers: Number of blocks.
        num_heads: Number of query heads; forget gates are per query head.
        num_kv_heads: Number of key and value heads; w and beta are per kv head.
        head_dim: `hidden_size / num_heads`.
        intermediate_size: Width of the gated MLP, computed where config.json leaves it null.
        vocab_size: Rows of the embedding matrix.
        norm_eps: Epsilon of the block and final RMS norms.
        tie_word_embeddings: The output matrix is the embedding matrix.
        bos_token_id: In [0, vocab_size), or None.
        eos_token_id: In [0, vocab_size), or None.
        use_low_rank_w: w is projected through `low_rank_w_rank` dimensions.
        low_rank_w_rank: Rank of that projection.
        use_w_shortconv: w passes a causal depthwise convolution, then SiLU.
        conv_size: Taps of that convolution, the current token included.
        qkv_bias: The q, k and v projections have biases.
        qk_norm: RMS norm of q and k over each head; its weight is shared by the heads, [head_dim]
            (`per_head`), or separate, [num_heads * head_dim] (`per_channel`).
        qk_norm_eps: Epsilon of that norm.
        use_output_gate: The attention output is multiplied by a sigmoid gate.
        use_output_norm: Before that, each head of it passes an RMS norm with `norm_eps` and a
            weight [num_heads * head_dim].
        use_k_shift: Each key is mixed with the one before it, by a sigmoid gate for each kv head,
            before norm and rotation.
        use_v_shift: The same for values.
        rope_theta: Base of the rotary angles; None without rotary embedding.
        max_position_embeddings: Positions trained on, where stated.
        dtype: `bfloat16`, `float16` or `float32`; `float32` where config.json states none.
    """

    attention: AttentionKind
    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | None
    use_low_rank_w: bool
    low_rank_w_rank: int
    use_w_shortconv: bool
    conv_size: int
    qkv_bias: bool
    qk_norm: QKNorm
    qk_norm_eps: float
    use_output_gate: bool
    use_output_norm: bool
    use_k_shift: bool
    use_v_shift: bool
    rope_theta: float | None
    max_position_embeddings: int | None
    dtype: str

    @classmethod
    def from_dict(cls, config: Mapping[str, object], source: str) -> "ModelConfig":
        """Reads and checks a config.json of flash-linear-attention's format.

        Unknown keys are ignored with a log line, except that a non-default value under a name that
        begins like an architecture switch (`use_...`, `attn...`, `moe_...`) is refused.

        Args:
            config: Parsed config.json.
            source: Where it came from, for messages.

        Raises:
            CheckpointError: A value is missing, of the wrong type or inconsistent.
            UnsupportedError: The config asks for something that patheval does not compute.
        """
        kind = attention_kind(config, source)
        fields = _Fields(config, source)
        model_type = fields.text("model_type")
        if model_type in STOCK_MODEL_TYPES:
            raise UnsupportedError(
                f"model_type in {source} is '{model_type}', which vLLM serves with its own model; "
                "read it with StockConfig.from_dict"
            )
        _refuse_unsupported(fields, model_type)

        hidden_size = fields.size("hidden_size")
        num_heads = fields.size("num_heads")
        num_kv_heads = fields.size("num_kv_heads", default=num_heads)
        vocab_size = fields.size("vocab_size")
        is_path = kind in ("path", "path-fox")
        is_project_fox = _is_project_fox(config)
        return cls(
            attention=kind,
            model_type=model_type,
            hidden_size=hidden_size,
            num_layers=fields.size("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=_head_dim(fields, kind, hidden_size, num_heads, num_kv_heads),
            intermediate_size=_intermediate_size(fields, hidden_size),
            vocab_size=vocab_size,
            norm_eps=fields.positive("norm_eps", default=1e-6),
            tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
            bos_token_id=fields.token_id("bos_token_id", vocab_size),
            eos_token_id=fields.token_id("eos_token_id", vocab_size),
            use_low_rank_w=is_path and fields.flag("use_low_rank_w", default=True),
            low_rank_w_rank=LOW_RANK_W_RANK,
            use_w_shortconv=is_path and fields.flag("use_w_shortconv", default=True),
            conv_size=CONV_SIZE,
            qkv_bias=not is_path and fields.flag("qkv_bias", default=False),
            qk_norm=_qk_norm(fields, kind),
            qk_norm_eps=QK_NORM_EPS,
            use_output_gate=(kind == "fox" or is_project_fox)
            and fields.flag("use_output_gate", default=False),
            use_output_norm=is_project_fox and fields.flag("use_output_norm", default=False),
            use_k_shift=is_project_fox and fields.flag("use_k_shift", default=False),
            use_v_shift=is_project_fox and fields.flag("use_v_shift", default=False),
            rope_theta=_rope_theta(fields, model_type) if kind == "rope" else None,
            max_position_embeddings=fields.optional_size("max_position_embeddings"),
            dtype=fields.dtype(),
        )

    @property
    def has_token_shift(self) -> bool:
        """Whether keys or values are mixed with those of the token before."""
        return self.use_k_shift or self.use_v_shift

    @property
    def is_paged(self) -> bool:
        """Whether patheval's own attention serves it, and not vLLM's: all but plain RoPE."""
        return (
            self.attention != "rope"
            or self.has_token_shift
            or self.use_output_gate
            or self.use_output_norm
            or self.qk_norm == "per_channel"
        )


@dataclass(frozen=True)
class StockConfig:
    """What patheval needs to know of a RoPE decoder that vLLM serves with its own model.

    Attributes:
        attention: Always `rope`.
        model_type: One of `STOCK_MODEL_TYPES`.
        vocab_size: Rows of the embedding matrix.
        dtype: `bfloat16`, `float16` or `float32`; `float32` where config.json states none.
        max_position_embeddings: Positions trained on, where stated.
        rope_type: How the angles are scaled; `default` for not at all.
    """

    attention: Literal["rope"]
    model_type: str
    vocab_size: int
    dtype: str
    max_position_embeddings: int | None
    rope_type: str

    @classmethod
    def from_dict(cls, config: Mapping[str, object], source: str) -> "StockConfig":
        """Reads the common facts of a stock config.json.

        Args:
            config: Parsed config.json.
            source: Where it came from, for messages.

        Raises:
            CheckpointError: A value is missing or of the wrong type.
        """
        fields = _Fields(config, source)
        # `rope_scaling` is the key's name before transformers 5, `type` before 4.45.
        rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise fields.invalid("rope_parameters", "an object, as the trainer wrote it")
        return cls(
            attention="rope",
            model_type=fields.text("model_type"),
            vocab_size=fields.size("vocab_size"),
            dtype=fields.dtype(),
            max_position_embeddings=fields.optional_size("max_position_embeddings"),
            rope_type=str(rope.get("rope_type") or rope.get("type") or "default"),
        )


def read_config(config: Mapping[str, object], source: str) -> ModelConfig | StockConfig:
    """Reads a config.json of any supported model type.

    Args:
        config: Parsed config.json.
        source: Where it came from, for messages.

    Raises:
        CheckpointError: A value is missing, of the wrong type or inconsistent.
        UnsupportedError: The model type or one of its settings is not supported.
    """
    if config.get("model_type") in STOCK_MODEL_TYPES:
        return StockConfig.from_dict(config, source)
    return ModelConfig.from_dict(config, source)


def attention_kind(config: Mapping[str, object], source: str) -> AttentionKind:
    """Names the attention of a config.json: `path`, `path-fox`, `fox` or `rope`.

    Args:
        config: Parsed config.json.
        source: Where it came from, for messages.

    Raises:
        CheckpointError: `model_type` is missing or `use_forget_gate` is not a boolean.
        UnsupportedError: The model type is not one of `SUPPORTED_MODEL_TYPES`.
    """
    fields = _Fields(config, source)
    model_type = fields.text("model_type")
    if model_type == "path_attn":
        return "path-fox" if fields.flag("use_forget_gate", default=False) else "path"
    if model_type in FOX_MODEL_TYPES:
        return "rope" if _is_project_fox(config) and config.get("use_rope") is True else "fox"
    if model_type in ("transformer", PROJECT_ROPE_MODEL_TYPE, *STOCK_MODEL_TYPES):
        return "rope"
    raise UnsupportedError(
        f"model_type in {source} is '{model_type}'; patheval serves "
        f"{', '.join(SUPPORTED_MODEL_TYPES)}"
    )


@dataclass(frozen=True)
class _Fields:
    """Typed access to the values of one config.json."""

    config: Mapping[str, object]
    source: str

    def get(self, key: str) -> object:
        """Returns the value of `key`; None where it is absent or null."""
        return self.config.get(key)

    def invalid(self, key: str, expected: str) -> CheckpointError:
        """Returns the error for a value of the wrong type or range."""
        if self.get(key) is None:
            return CheckpointError(f"{key} is missing from {self.source}; set it to {expected}")
        return CheckpointError(f"{key} in {self.source} is {self.get(key)!r}; set it to {expected}")

    def text(self, key: str) -> str:
        """Returns a string that must be present."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.invalid(key, "a string, as the trainer wrote it")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """Returns an integer above 0; `default` stands in for an absent or null value."""
        value = default if self.get(key) is None else self.get(key)
        if type(value) is not int or value < 1:
            raise self.invalid(key, "an integer above 0")
        return value

    def optional_size(self, key: str) -> int | None:
        """Returns an integer above 0, or None where the value is absent or null."""
        return None if self.get(key) is None else self.size(key)

    def positive(self, key: str, default: float) -> float:
        """Returns a finite number above 0."""
        value = default if self.get(key) is None else self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(key, "a number above 0")
        if not 0 < value < math.inf:
            raise self.invalid(key, "a number above 0")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Returns a boolean."""
        value = default if self.get(key) is None else self.get(key)
        if not isinstance(value, bool):
            raise self.invalid(key, "true or false")
        return value

    def token_id(self, key: str, vocab_size: int) -> int | None:
        """Returns a token id below `vocab_size`, or None where the value is absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < vocab_size:
            raise self.invalid(key, f"null or one integer from 0 to {vocab_size - 1}")
        return value

    def dtype(self) -> str:
        """Returns the dtype's name; `torch_dtype` is the key's name before transformers 4.56."""
        key = "torch_dtype" if self.get("dtype") is None else "dtype"
        value = "float32" if self.get(key) is None else str(self.get(key)).removeprefix("torch.")
        if value not in DTYPES:
            raise self.invalid(key, f"one of {', '.join(DTYPES)}")
        return value


def _refuse_unsupported(fields: _Fields, model_type: str) -> None:
    """Raises `UnsupportedError` for the settings that change the computed function."""
    if fields.get("attnres_block_size") is not None:
        raise UnsupportedError(
            f"attnres_block_size in {fields.source} is {fields.get('attnres_block_size')!r}; "
            "patheval serves checkpoints trained without attention residuals (null)"
        )
    if fields.get("window_size") is not None:
        raise UnsupportedError(
            f"window_size in {fields.source} is {fields.get('window_size')!r}, so the weights were "
            "configured for sliding-window attention; patheval serves full attention (null) only"
        )
    if fields.get("hidden_act") not in (None, "swish", "silu"):
        raise UnsupportedError(
            f"hidden_act in {fields.source} is {fields.get('hidden_act')!r}; patheval serves "
            "'swish' (also called 'silu') only"
        )
    if not fields.flag("elementwise_affine", default=True):
        raise UnsupportedError(
            f"elementwise_affine in {fields.source} is False; patheval serves norms with weights "
            "(true) only"
        )
    if _is_project_fox(fields.config):
        _refuse_project_fox_switches(fields)
    if model_type == PROJECT_ROPE_MODEL_TYPE and not fields.flag("use_rope", default=True):
        raise UnsupportedError(
            f"use_rope in {fields.source} is False; patheval serves {PROJECT_ROPE_MODEL_TYPE} "
            "with rotary embedding (true) only"
        )
    _refuse_unknown_switches(fields, model_type)


def _is_project_fox(config: Mapping[str, object]) -> bool:
    """Whether the layers are zhixuan-lin's: `forgetting_transformer` may name both layouts."""
    return config.get("model_type") == PROJECT_FOX_MODEL_TYPE or (
        config.get("model_type") == "forgetting_transformer" and "fgate_type" in config
    )


def _refuse_project_fox_switches(fields: _Fields) -> None:
    """Accepts FoX with full gates and RoPE without any, each with or without the Pro layers."""
    gates = {False: "full", True: "none"}
    use_rope = fields.flag("use_rope", default=False)
    if fields.get("fgate_type") != gates[use_rope]:
        raise UnsupportedError(
            f"fgate_type in {fields.source} is {fields.get('fgate_type')!r} with use_rope "
            f"{use_rope}; patheval serves 'full' with false (FoX) and 'none' with true (RoPE)"
        )
    if fields.get("num_kv_heads") not in (None, fields.get("num_heads")):
        raise UnsupportedError(
            f"num_kv_heads in {fields.source} is {fields.get('num_kv_heads')!r}; the layers of "
            "zhixuan-lin/forgetting-transformer have as many kv heads as heads (null)"
        )
    if fields.get("ogate_act") not in (None, "sigmoid") and fields.get("use_output_gate"):
        raise UnsupportedError(
            f"ogate_act in {fields.source} is {fields.get('ogate_act')!r}; patheval serves "
            "'sigmoid' only"
        )


def _rope_theta(fields: _Fields, model_type: str) -> float:
    if model_type == "transformer":
        return fields.positive("rope_theta", default=10000.0)
    return fields.positive("rope_base", default=_PROJECT_ROPE_BASE)


def _refuse_unknown_switches(fields: _Fields, model_type: str) -> None:
    known = _COMMON_KEYS | _KEYS_BY_MODEL_TYPE[model_type] | _IRRELEVANT_KEYS
    if _is_project_fox(fields.config):
        known |= _PROJECT_FOX_KEYS
    for key, value in fields.config.items():
        if key in known or value is None or value is False:
            continue
        if key.startswith(_SWITCH_PREFIXES):
            raise UnsupportedError(
                f"{key} in {fields.source} is {value!r}, a setting that patheval does not know for "
                f"model_type '{model_type}'; remove the key if it does not change the model"
            )
        _logger.debug("%s: ignoring the key %s = %r", fields.source, key, value)


def _head_dim(
    fields: _Fields, kind: AttentionKind, hidden_size: int, num_heads: int, num_kv_heads: int
) -> int:
    if hidden_size % num_heads:
        raise CheckpointError(
            f"hidden_size {hidden_size} in {fields.source} is not a multiple of num_heads "
            f"{num_heads}; use the config.json that was saved with the weights"
        )
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_heads {num_heads} in {fields.source} is not a multiple of num_kv_heads "
            f"{num_kv_heads}; use the config.json that was saved with the weights"
        )
    head_dim = hidden_size // num_heads
    if fields.get("head_dim") not in (None, head_dim):
        raise CheckpointError(
            f"head_dim in {fields.source} is {fields.get('head_dim')!r} but hidden_size / "
            f"num_heads is {head_dim}; remove head_dim or correct the sizes"
        )
    if kind in ("path", "path-fox") and head_dim not in PATH_HEAD_DIMS:
        raise UnsupportedError(
            f"hidden_size / num_heads in {fields.source} gives head_dim {head_dim}; PaTH attention "
            f"is served for head_dim {', '.join(map(str, PATH_HEAD_DIMS))}"
        )
    if head_dim not in OTHER_HEAD_DIMS:
        raise UnsupportedError(
            f"hidden_size / num_heads in {fields.source} gives head_dim {head_dim}; patheval "
            "serves multiples of 8 from 16 to 256"
        )
    return head_dim


def _intermediate_size(fields: _Fields, hidden_size: int) -> int:
    """Applies flash-linear-attention's rule where `intermediate_size` is null."""
    if fields.get("intermediate_size") is not None:
        return fields.size("intermediate_size")
    width = hidden_size * fields.positive("hidden_ratio", default=4) * 2 / 3
    if not width < _MAX_INTERMEDIATE_SIZE:
        raise fields.invalid("hidden_ratio", "the ratio that the model was trained with")
    return math.ceil(int(width) / _INTERMEDIATE_MULTIPLE) * _INTERMEDIATE_MULTIPLE


def _qk_norm(fields: _Fields, kind: AttentionKind) -> QKNorm:
    if kind in ("path", "path-fox") or not fields.flag("qk_norm", default=False):
        return "none"
    if _is_project_fox(fields.config):
        shared = fields.flag("qk_norm_share_param_across_head", default=False)
        return "per_head" if shared else "per_channel"
    return "per_channel" if kind == "fox" else "per_head"
