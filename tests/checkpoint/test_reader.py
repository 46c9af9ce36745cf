"""Whole, old-fashioned and damaged checkpoint folders."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from patheval.checkpoint.layout import expected_shapes
from patheval.checkpoint.reader import INDEX_NAME, WEIGHTS_NAME, open_checkpoint
from patheval.checkpoint.tokenizer import check_tokenizer
from patheval.checkpoint.weights import map_weights
from patheval.errors import CheckpointError, PrerequisiteError, UnsupportedError
from patheval.model_adapters.path_ref import PathRefLM
from patheval.model_adapters.path_vllm import PathLM

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
NAMES = ("path-d64", "path-fox-d64-gqa", "fox-d64", "rope-d64")
Q_PROJ = "model.layers.0.attn.q_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of path-d64 that a test may damage."""
    return copy_of("path-d64", tmp_path / "path-d64")


def copy_of(name: str, target: Path) -> Path:
    shutil.copytree(CHECKPOINTS / name, target, ignore=shutil.ignore_patterns("golden.json"))
    return target


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, edit: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / WEIGHTS_NAME)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS_NAME)


def edit_header(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / WEIGHTS_NAME
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


def shard(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Splits the weights into two files with an index; returns the index and the file names."""
    tensors = load_file(folder / WEIGHTS_NAME)
    (folder / WEIGHTS_NAME).unlink()
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {name: files[i % 2] for i, name in enumerate(sorted(tensors))}
    for file in files:
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        save_file(part, folder / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index))
    return index, files


def error_of(folder: Path, kind: type[Exception] = CheckpointError, read: bool = False) -> str:
    with pytest.raises(kind) as error:
        checkpoint = open_checkpoint(folder)
        if read:
            checkpoint.fingerprint()
    # No adapter gives a score either, and each says the same.
    for adapter in (PathLM, PathRefLM):
        with pytest.raises(kind, match=re.escape(str(error.value))):
            adapter(str(folder))
    return str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_yields_every_expected_tensor_once(name: str) -> None:
    checkpoint = open_checkpoint(CHECKPOINTS / name)
    stored = load_file(CHECKPOINTS / name / WEIGHTS_NAME)
    tensors = list(checkpoint.tensors())
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors}
    assert len(tensors) == len(shapes)
    assert shapes == expected_shapes(checkpoint.config)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in tensors)
    assert not checkpoint.stock


def test_fingerprint_depends_on_the_weights_and_not_on_the_files(folder: Path) -> None:
    fingerprint = open_checkpoint(folder).fingerprint()
    assert len(fingerprint) == 64
    shard(folder)
    assert open_checkpoint(folder).fingerprint() == fingerprint
    for file in folder.glob("model*"):
        file.unlink()
    shutil.copy(CHECKPOINTS / "path-d64" / WEIGHTS_NAME, folder)
    edit_tensors(folder, lambda tensors: tensors[Q_PROJ][0, 0].add_(1))
    assert open_checkpoint(folder).fingerprint() != fingerprint


def test_files_of_different_dtypes(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({name: t[name].half() for name in list(t)[::2]}))
    edit_tensors(folder, lambda t: t.update({Q_PROJ: t[Q_PROJ].float()}))
    open_checkpoint(folder).fingerprint()


def test_fused_mlp_is_split_gate_first(folder: Path) -> None:
    original = dict(open_checkpoint(folder).tensors())

    def fuse(tensors: Tensors) -> None:
        for i in range(2):
            gate, up = (f"model.layers.{i}.mlp.{part}_proj.weight" for part in ("gate", "up"))
            tensors[gate] = torch.cat([tensors[gate], tensors.pop(up)])

    edit_tensors(folder, fuse)
    fused = dict(open_checkpoint(folder).tensors())
    assert fused.keys() == original.keys()
    assert all(torch.equal(fused[name], original[name]) for name in original)


@pytest.mark.parametrize("old_name", ["fgate_proj", "g_proj"])
def test_older_names_of_the_forget_gate(old_name: str, tmp_path: Path) -> None:
    folder = copy_of("fox-d64", tmp_path / "fox")
    original = open_checkpoint(folder).fingerprint()

    def rename(tensors: Tensors) -> None:
        for name in [name for name in tensors if "f_proj" in name]:
            tensors[name.replace("f_proj", old_name)] = tensors.pop(name)

    edit_tensors(folder, rename)
    assert open_checkpoint(folder).fingerprint() == original


def test_tied_output_matrix_may_be_absent_or_equal(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=True)
    edit_tensors(folder, lambda t: t.pop("lm_head.weight"))
    absent = open_checkpoint(folder).fingerprint()
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embeddings.weight"] + 0}))
    assert open_checkpoint(folder).fingerprint() == absent
    edit_tensors(folder, lambda t: t["lm_head.weight"].mul_(2))
    message = error_of(folder, read=True)
    assert "tie_word_embeddings is true but lm_head.weight" in message


def test_stock_checkpoint_is_checked_for_damage_alone(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
    save_file({"model.embed_tokens.weight": torch.ones(8, 4)}, folder / WEIGHTS_NAME)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.stock
    assert [name for name, _ in checkpoint.tensors()] == ["model.embed_tokens.weight"]
    path = folder / WEIGHTS_NAME
    path.write_bytes(path.read_bytes()[:-1])
    assert "holds 127 bytes of weights but its header lists 128" in error_of(folder)


def test_map_weights_checks_a_stream_of_tensors() -> None:
    checkpoint = open_checkpoint(CHECKPOINTS / "path-d64")
    stored = list(load_file(CHECKPOINTS / "path-d64" / WEIGHTS_NAME).items())
    assert len(list(map_weights(checkpoint.config, stored))) == len(stored)
    with pytest.raises(CheckpointError, match=rf"lacks 1 of 31 tensors \({stored[3][0]}\)"):
        list(map_weights(checkpoint.config, stored[:3] + stored[4:]))
    with pytest.raises(CheckpointError, match="second copy of " + stored[0][0]):
        list(map_weights(checkpoint.config, [*stored, stored[0]]))


# Damage to the weight file: how it is done, and what the message must name.
DAMAGED_TENSORS: dict[str, tuple[Callable[[Tensors], object], tuple[str, ...]]] = {
    "missing": (lambda t: t.pop(Q_PROJ), ("lacks 1 of 31 tensors", Q_PROJ)),
    "unknown": (lambda t: t.update(extra=torch.zeros(3)), ("extra", "[3]", "path_attn")),
    "qk-norm": (
        lambda t: t.update({"model.layers.0.attn.maybe_q_norm.weight": torch.ones(64)}),
        ("maybe_q_norm", "[64]"),
    ),
    "transposed": (
        lambda t: t.update({"model.layers.1.attn.w_proj.0.weight": torch.ones(128, 32)}),
        ("model.layers.1.attn.w_proj.0.weight", "[128, 32]", "[32, 128]"),
    ),
    "conv-taps": (
        lambda t: t.update({"model.layers.0.attn.w_conv1d.weight": torch.ones(128, 1, 4)}),
        ("w_conv1d", "[128, 1, 4]", "[128, 1, 3]"),
    ),
    "vocab": (
        lambda t: t.update({"model.embeddings.weight": torch.ones(500, 128)}),
        ("model.embeddings.weight", "[500, 128]", "[512, 128]", "set vocab_size to 500"),
    ),
    "integers": (lambda t: t.update({Q_PROJ: t[Q_PROJ].long()}), (Q_PROJ, "I64")),
    "fused-and-split": (
        lambda t: t.update({"model.layers.0.mlp.gate_proj.weight": torch.ones(1024, 128)}),
        ("second copy of model.layers.0.mlp.up_proj.weight",),
    ),
}


@pytest.mark.parametrize("damage", DAMAGED_TENSORS)
def test_tensors_that_do_not_fit_the_config(damage: str, folder: Path) -> None:
    edit, fragments = DAMAGED_TENSORS[damage]
    edit_tensors(folder, edit)
    message = error_of(folder)
    assert all(fragment in message for fragment in fragments), message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(value: float, folder: Path) -> None:
    edit_tensors(folder, lambda t: t[Q_PROJ][5, 3:6].fill_(value))
    message = error_of(folder, read=True)
    assert f"{Q_PROJ} in" in message
    assert "holds 3 NaN or infinite values of 16384" in message


DAMAGED_HEADERS: dict[str, tuple[Callable[[dict[str, Any]], object], tuple[str, ...]]] = {
    "shape-string": (lambda h: h[Q_PROJ].update(shape="128"), (Q_PROJ, "'128'")),
    "shape-negative": (lambda h: h[Q_PROJ].update(shape=[-128, 128]), (Q_PROJ, "[-128, 128]")),
    "shape-too-small": (lambda h: h[Q_PROJ].update(shape=[64, 128]), (Q_PROJ, "16384 bytes")),
    "unknown-dtype": (lambda h: h[Q_PROJ].update(dtype="BF61"), (Q_PROJ, "'BF61'")),
    "offsets": (lambda h: h[Q_PROJ].update(data_offsets=[0]), (Q_PROJ, "[0]")),
    "overlap": (
        lambda h: h[Q_PROJ].update(data_offsets=h["lm_head.weight"]["data_offsets"]),
        (Q_PROJ, "data_offsets"),
    ),
    "overlap-same-size": (
        lambda h: h[Q_PROJ].update(
            data_offsets=h["model.layers.1.attn.q_proj.weight"]["data_offsets"]
        ),
        ("gap", "model.layers.0.attn"),
    ),
    "no-dtype": (lambda h: h[Q_PROJ].pop("dtype"), (Q_PROJ, "shape")),
    "entry": (lambda h: h.update({Q_PROJ: 7}), (Q_PROJ, "7")),
    "dropped-entry": (lambda h: h.pop(Q_PROJ), ("gap",)),
}


@pytest.mark.parametrize("damage", DAMAGED_HEADERS)
def test_headers_that_contradict_themselves(damage: str, folder: Path) -> None:
    edit, fragments = DAMAGED_HEADERS[damage]
    edit_header(folder, edit)
    message = error_of(folder)
    assert "truncated or damaged" in message
    assert all(fragment in message for fragment in fragments), message


def test_no_flipped_header_bit_goes_unnoticed(folder: Path) -> None:
    path = folder / WEIGHTS_NAME
    intact = path.read_bytes()
    header_end = 8 + struct.unpack("<Q", intact[:8])[0]
    # The free text of __metadata__ says nothing about the weights.
    start = intact.index(b"}") + 1 if intact[8:24] == b'{"__metadata__":' else 0
    unnoticed = []
    for position in [*range(8), *range(start, header_end, 7)]:
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            open_checkpoint(folder)
        except CheckpointError:
            continue
        # JSON does not mind which kind of white space pads the header.
        if damaged[position : position + 1].strip() or intact[position : position + 1].strip():
            unnoticed.append(position)
    assert unnoticed == []


@pytest.mark.parametrize(
    ("num_bytes", "fragment"),
    [
        (0, "has 0 bytes"),
        (5, "has 5 bytes"),
        (8, "claims a header of"),
        (100, "claims a header of"),
        (-1, "bytes of weights but its header lists"),
        (-4096, "bytes of weights but its header lists"),
    ],
)
def test_truncated_files(num_bytes: int, fragment: str, folder: Path) -> None:
    path = folder / WEIGHTS_NAME
    path.write_bytes(path.read_bytes()[:num_bytes])
    message = error_of(folder)
    assert str(path) in message
    assert fragment in message


def test_file_with_bytes_at_its_end(folder: Path) -> None:
    path = folder / WEIGHTS_NAME
    path.write_bytes(path.read_bytes() + b"\0")
    assert "bytes of weights but its header lists" in error_of(folder)


def test_header_that_repeats_a_tensor(folder: Path) -> None:
    path = folder / WEIGHTS_NAME
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = raw[8 : 8 + size].replace(b"layers.1.attn.q_proj", b"layers.0.attn.q_proj")
    path.write_bytes(raw[:8] + header + raw[8 + size :])
    assert f"'{Q_PROJ}' twice" in error_of(folder)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "not valid JSON"),
        ("{'model_type': 'path_attn'}", "not valid JSON"),
        ("[1, 2]", "a JSON list"),
        ('{"num_heads": 2, "num_heads": 4}', "'num_heads' twice"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_config_that_is_not_one_json_object(text: str, fragment: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    message = error_of(folder)
    assert "config.json" in message
    assert fragment in message


def test_config_that_is_not_text(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe{}")
    assert "config.json is not UTF-8" in error_of(folder)


@pytest.mark.parametrize(
    ("changes", "kind", "fragments"),
    [
        ({"num_heads": 4}, CheckpointError, ("bt_proj.bias", "[2]", "[4]")),
        ({"num_kv_heads": 1}, CheckpointError, ("bt_proj.bias", "[2]", "[1]")),
        ({"num_hidden_layers": 1}, CheckpointError, ("model.layers.1.",)),
        ({"num_hidden_layers": 3}, CheckpointError, ("lacks 14 of 45 tensors", "layers.2.")),
        ({"vocab_size": 1000}, CheckpointError, ("[1000, 128]", "set vocab_size to 512")),
        (
            {"intermediate_size": 256},
            CheckpointError,
            ("mlp.down_proj", "[128, 512]", "[128, 256]"),
        ),
        ({"use_forget_gate": True}, CheckpointError, ("g_proj.weight", "lacks 4 of 35")),
        ({"use_low_rank_w": False}, CheckpointError, ("w_proj.0.weight", "[32, 128]")),
        ({"use_w_shortconv": False}, CheckpointError, ("w_conv1d.weight",)),
        ({"model_type": "transformer"}, UnsupportedError, ("'transformer'", "use_low_rank_w")),
        ({"model_type": "mamba"}, UnsupportedError, ("'mamba'", "path_attn")),
        ({"attnres_block_size": 4}, UnsupportedError, ("attnres_block_size", "4")),
    ],
)
def test_config_of_another_model(
    changes: dict[str, object],
    kind: type[Exception],
    fragments: tuple[str, ...],
    folder: Path,
) -> None:
    edit_config(folder, **changes)
    message = error_of(folder, kind)
    assert all(fragment in message for fragment in fragments), message


def test_sharded_checkpoint_without_one_of_its_files(folder: Path) -> None:
    _, files = shard(folder)
    (folder / files[1]).unlink()
    message = error_of(folder)
    assert INDEX_NAME in message
    assert files[1] in message


def test_tensor_in_two_shards(folder: Path) -> None:
    _, files = shard(folder)
    for file in files:
        save_file({**load_file(folder / file), Q_PROJ: torch.ones(128, 128)}, folder / file)
    assert all(part in error_of(folder) for part in (Q_PROJ, *files))


def test_tensor_that_is_not_in_the_shard_that_the_index_names(folder: Path) -> None:
    index, files = shard(folder)
    index["weight_map"]["model.ghost"] = files[0]
    (folder / INDEX_NAME).write_text(json.dumps(index))
    assert all(part in error_of(folder) for part in ("model.ghost", files[0], "does not hold"))


def test_tensor_that_the_index_does_not_list(folder: Path) -> None:
    index, _ = shard(folder)
    del index["weight_map"][Q_PROJ]
    (folder / INDEX_NAME).write_text(json.dumps(index))
    assert all(part in error_of(folder) for part in (Q_PROJ, "does not list"))


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 3}, {"a": "../model.safetensors"}])
def test_damaged_index(weight_map: object, folder: Path) -> None:
    shard(folder)
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    message = error_of(folder)
    assert "weight_map" in message


def test_weights_beside_the_model(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS_NAME, folder / "ema.safetensors")
    assert "ema.safetensors" in error_of(folder)


def test_two_sets_of_weights(folder: Path) -> None:
    shard(folder)
    shutil.copy(CHECKPOINTS / "path-d64" / WEIGHTS_NAME, folder)
    assert all(part in error_of(folder) for part in (WEIGHTS_NAME, INDEX_NAME, "both"))


def test_pickled_weights_come_with_a_command_that_converts_them(
    folder: Path, run_python: Callable[..., str]
) -> None:
    fingerprint = open_checkpoint(folder).fingerprint()
    torch.save(load_file(folder / WEIGHTS_NAME), folder / "pytorch_model.bin")
    (folder / WEIGHTS_NAME).unlink()
    message = error_of(folder)
    code = message.split('python -c "')[1].split('" ')[0]
    run_python(f"import sys; sys.argv[1:] = [{str(folder)!r}]; exec({code!r})")
    assert open_checkpoint(folder).fingerprint() == fingerprint


def test_folder_without_weights_or_config(folder: Path) -> None:
    (folder / WEIGHTS_NAME).unlink()
    assert f"neither {WEIGHTS_NAME} nor {INDEX_NAME}" in error_of(folder)
    (folder / "config.json").unlink()
    assert "no config.json" in error_of(folder)


def test_paths_that_are_no_folder(folder: Path) -> None:
    assert "is a file" in error_of(folder / WEIGHTS_NAME)
    assert "does not exist" in error_of(folder / "nowhere")
    misspelt = folder.with_name(f"{folder.name}x")
    assert f"did you mean {folder}?" in error_of(misspelt)
    with pytest.raises(PrerequisiteError, match="hf download nobody-here/nothing"):
        open_checkpoint("nobody-here/nothing")


class FakeTokenizer:
    def __init__(self, *token_ids: int) -> None:
        self._token_ids = token_ids

    def get_vocab(self) -> dict[str, int]:
        return {f"token{token_id}": token_id for token_id in self._token_ids}


def test_tokenizer_larger_than_the_vocabulary() -> None:
    check_tokenizer(FakeTokenizer(0, 511), 512, "here")
    check_tokenizer(FakeTokenizer(), 512, "here")
    with pytest.raises(CheckpointError, match=r"'token512' with id 512 but vocab_size .* is 512"):
        check_tokenizer(FakeTokenizer(0, 512), 512, "here")
