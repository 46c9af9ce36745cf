"""fla's config.json files as transformers configs, with the attribute names that vLLM looks for."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from patheval.checkpoint.config import (
    PROJECT_FOX_MODEL_TYPE,
    PROJECT_ROPE_MODEL_TYPE,
    ModelConfig,
)

DEFAULT_ROPE_POSITIONS = 2048  # fla's TransformerConfig, where config.json states none


class FlaConfig(PretrainedConfig):
    """A checked config.json of flash-linear-attention.

    Subclasses name `__init__` again, since transformers writes one for every class that does not.

    Attributes:
        fla_config: The file's own keys, from which `model_config` reads.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Keep the raw keys and add vLLM's names for them.

        Raises:
            CheckpointError: A value is missing, of the wrong type or inconsistent.
            UnsupportedError: The config asks for something that patheval does not compute.
        """
        raw = kwargs.pop("fla_config", None) or {
            key: value if key != "dtype" else str(value) for key, value in kwargs.items()
        }
        super().__init__(**kwargs)
        self.fla_config = raw
        if not raw:  # transformers compares every config with one made of defaults
            return
        config = self.model_config
        is_rope = config.attention == "rope"
        self.architectures = [
            "PathEvalForCausalLM" if config.is_paged else "PathEvalRopeForCausalLM"
        ]
        self.num_attention_heads = config.num_heads
        self.num_key_value_heads = self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.intermediate_size = config.intermediate_size
        self.rms_norm_eps = config.norm_eps
        self.tie_word_embeddings = config.tie_word_embeddings
        self.qkv_bias = config.qkv_bias
        self.hidden_act = "silu"
        # PaTH and FoX know no positions; vLLM would take what the file states as a limit.
        self.max_position_embeddings = None
        if is_rope:
            self.rope_parameters = {"rope_type": "default", "rope_theta": config.rope_theta}
            self.max_position_embeddings = config.max_position_embeddings or DEFAULT_ROPE_POSITIONS

    @property
    def model_config(self) -> ModelConfig:
        """The architecture as patheval reads it."""
        return ModelConfig.from_dict(
            {"model_type": self.model_type, **self.fla_config}, "config.json"
        )


class PathAttnConfig(FlaConfig):
    """PaTH and PaTH-FoX."""

    model_type = "path_attn"
    __init__ = FlaConfig.__init__


class ForgettingTransformerConfig(FlaConfig):
    """FoX."""

    model_type = "forgetting_transformer"
    __init__ = FlaConfig.__init__


class ProjectFoxConfig(FlaConfig):
    """FoX, or RoPE with the same layers, as the authors of FoX save it."""

    model_type = PROJECT_FOX_MODEL_TYPE
    __init__ = FlaConfig.__init__


class ProjectRopeConfig(FlaConfig):
    """Plain RoPE as the authors of FoX save it."""

    model_type = PROJECT_ROPE_MODEL_TYPE
    __init__ = FlaConfig.__init__


class TransformerConfig(FlaConfig):
    """RoPE."""

    model_type = "transformer"
    __init__ = FlaConfig.__init__


CONFIG_CLASSES = (
    PathAttnConfig,
    ForgettingTransformerConfig,
    ProjectFoxConfig,
    ProjectRopeConfig,
    TransformerConfig,
)
