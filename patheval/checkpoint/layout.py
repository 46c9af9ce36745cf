"""Tensor names and shapes of flash-linear-attention's state dicts, and the older spellings of them.

Canonical names are those of flash-linear-attention 0.6.0; `k_shift_proj`, `v_shift_proj` and
`output_norm`, which it has not, are patheval's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from patheval.checkpoint.config import DTYPES, ModelConfig
from patheval.errors import CheckpointError

EMBEDDINGS = "model.embeddings.weight"
LM_HEAD = "lm_head.weight"

_MAX_NAMES_IN_MESSAGE = 5
# Of zhixuan-lin/forgetting-transformer.
_PROJECT_FOX_NAMES = {
    "fgate_proj": "f_proj",
    "ogate_proj": "g_proj",
    "k_proj.linear": "k_proj",
    "k_proj.shift_proj": "k_shift_proj",
    "v_proj.linear": "v_proj",
    "v_proj.shift_proj": "v_shift_proj",
}


@dataclass(frozen=True)
class Part:
    """A canonical tensor inside a stored one.

    Attributes:
        name: Canonical name.
        shape: Canonical shape.
        rows: First and last-plus-one row of the stored tensor; None for all of it.
    """

    name: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Lists every canonical tensor of a checkpoint with its shape, in the order of the forward."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDINGS: (config.vocab_size, hidden)}
    for layer_idx in range(config.num_layers):
        prefix = f"model.layers.{layer_idx}."
        shapes[f"{prefix}attn_norm.weight"] = (hidden,)
        for name, shape in _attention_shapes(config):
            shapes[f"{prefix}attn.{name}"] = shape
        shapes[f"{prefix}mlp_norm.weight"] = (hidden,)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (config.intermediate_size, hidden)
        shapes[f"{prefix}mlp.up_proj.weight"] = (config.intermediate_size, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, config.intermediate_size)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, hidden)
    return shapes


def _attention_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, num_heads = config.hidden_size, config.num_heads
    kv_dim = config.num_kv_heads * config.head_dim
    for name, width in (("q_proj", hidden), ("k_proj", kv_dim), ("v_proj", kv_dim)):
        yield f"{name}.weight", (width, hidden)
        if config.qkv_bias:
            yield f"{name}.bias", (width,)
    if config.attention in ("path", "path-fox"):
        if config.use_low_rank_w:
            yield "w_proj.0.weight", (config.low_rank_w_rank, hidden)
            yield "w_proj.1.weight", (kv_dim, config.low_rank_w_rank)
        else:
            yield "w_proj.weight", (kv_dim, hidden)
        if config.use_w_shortconv:
            yield "w_conv1d.weight", (kv_dim, 1, config.conv_size)
        yield "bt_proj.weight", (config.num_kv_heads, hidden)
        yield "bt_proj.bias", (config.num_kv_heads,)
    if config.attention in ("path-fox", "fox"):
        gate = fgate_name(config)
        yield f"{gate}.weight", (num_heads, hidden)
        yield f"{gate}.bias", (num_heads,)
    if config.use_k_shift:
        yield "k_shift_proj.weight", (config.num_kv_heads, hidden)
    if config.use_v_shift:
        yield "v_shift_proj.weight", (config.num_kv_heads, hidden)
    if config.use_output_norm:
        yield "output_norm.weight", (hidden,)
    if config.use_output_gate:
        yield "g_proj.weight", (hidden, hidden)
    if config.qk_norm != "none":
        per_channel = config.qk_norm == "per_channel"
        yield "q_norm.weight", (hidden if per_channel else config.head_dim,)
        yield "k_norm.weight", (kv_dim if per_channel else config.head_dim,)
    yield "o_proj.weight", (hidden, hidden)


def fgate_name(config: ModelConfig) -> str:
    """Names the forget gate's projection: PaTH-FoX and FoX spell it differently."""
    return "g_proj" if config.attention == "path-fox" else "f_proj"


class Ledger:
    """Accounts for the tensors of one checkpoint: each expected one once, in its expected shape.

    Args:
        config: The checkpoint's architecture.
        source: Where the tensors come from, for messages.
    """

    def __init__(self, config: ModelConfig, source: str) -> None:
        self._config = config
        self._source = source
        self._expected = expected_shapes(config)
        self._seen: set[str] = set()

    def claim(self, name: str, shape: tuple[int, ...], dtype: str) -> tuple[Part, ...]:
        """Checks one stored tensor and returns the canonical tensors that it holds.

        A fused `mlp.gate_proj` ([2 * intermediate_size, hidden_size], gate rows first) holds two. A
        tied `lm_head.weight` is returned as a part although `expected_shapes` does not list it.

        Args:
            name: Name in the file.
            shape: Shape in the file.
            dtype: One of `config.DTYPES`.

        Raises:
            CheckpointError: The tensor is unknown, mis-shaped, a duplicate or not floating point.
        """
        if dtype not in DTYPES:
            raise CheckpointError(
                f"{name} in {self._source} has dtype {dtype}; save the weights as "
                f"{', '.join(DTYPES)}"
            )
        parts = self._parts(name, shape)
        for part in parts:
            if part.name in self._seen:
                raise CheckpointError(
                    f"{name} in {self._source} is a second copy of {part.name}; remove one of them"
                )
            self._seen.add(part.name)
        return parts

    def finish(self) -> None:
        """Checks that nothing is missing.

        Raises:
            CheckpointError: At least one expected tensor was never claimed.
        """
        missing = [name for name in self._expected if name not in self._seen]
        if missing:
            raise CheckpointError(
                f"{self._source} lacks {len(missing)} of {len(self._expected)} tensors "
                f"({_shortened(missing)}); use weights and config.json of one and the same model"
            )

    def _parts(self, name: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
        canonical = self._canonical_name(name)
        expected = self._expected.get(canonical)
        if expected is None and canonical == LM_HEAD:
            expected = self._expected[EMBEDDINGS]
        if expected is None:
            raise CheckpointError(
                f"{name} in {self._source} (shape {list(shape)}) is not a tensor of model_type "
                f"'{self._config.model_type}' with this config.json; use weights and config.json "
                "of one and the same model"
            )
        if shape == expected:
            return (Part(canonical, expected),)
        if canonical.endswith("mlp.gate_proj.weight") and shape == (2 * expected[0], expected[1]):
            up_name = canonical.replace("gate_proj", "up_proj")
            return (
                Part(canonical, expected, (0, expected[0])),
                Part(up_name, expected, (expected[0], 2 * expected[0])),
            )
        wrong_vocab = canonical in (EMBEDDINGS, LM_HEAD) and shape[1:] == expected[1:]
        fix = (
            f"set vocab_size to {shape[0]} in config.json"
            if wrong_vocab
            else "use the config.json that was saved with the weights"
        )
        raise CheckpointError(
            f"{name} in {self._source} has shape {list(shape)} but config.json asks for "
            f"{list(expected)}; {fix}"
        )

    def _canonical_name(self, name: str) -> str:
        """Undoes other spellings.

        flash-linear-attention called FoX's forget gate `g_proj` until April 2025, when that name
        went to the output gate.
        """
        if self._config.attention == "fox" and not self._config.use_output_gate:
            name = name.replace(".attn.g_proj.", ".attn.f_proj.")
        for theirs, ours in _PROJECT_FOX_NAMES.items():
            name = name.replace(f".attn.{theirs}.", f".attn.{ours}.")
        return name


def _shortened(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES_IN_MESSAGE])
    hidden = len(names) - _MAX_NAMES_IN_MESSAGE
    return f"{shown} and {hidden} more" if hidden > 0 else shown
