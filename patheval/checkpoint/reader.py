"""Opening a checkpoint folder: every check that needs no weights, then the weights on demand."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from patheval.checkpoint.config import ModelConfig, StockConfig, read_config
from patheval.checkpoint.folders import nearest
from patheval.checkpoint.header import TensorEntry, load_json_object, read_header
from patheval.checkpoint.layout import Ledger
from patheval.checkpoint.weights import finite, map_weights
from patheval.errors import CheckpointError, PrerequisiteError, UnsupportedError

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
GENERATION_CONFIG_NAME = "generation_config.json"
_CONFIG_NAMES = (CONFIG_NAME, GENERATION_CONFIG_NAME, INDEX_NAME)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


# Which file it is, its size in bytes and when it was last written in ns; None where there is none.
_FileState = tuple[int, int, int] | None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose config and file headers have been checked.

    Attributes:
        path: The folder.
        config: Its architecture.
        shards: The stored tensors of each weight file.
        _states: What the files were when it was opened.
    """

    path: Path
    config: ModelConfig | StockConfig
    shards: Mapping[Path, Mapping[str, TensorEntry]]
    _states: Mapping[Path, _FileState]

    @property
    def stock(self) -> bool:
        """Whether vLLM serves the checkpoint with its own model; names are then not checked."""
        return isinstance(self.config, StockConfig)

    def require_model_config(self, purpose: str) -> ModelConfig:
        """Returns the config of a checkpoint in flash-linear-attention's format.

        Args:
            purpose: What needs it and what to use instead, to end the message.

        Raises:
            UnsupportedError: The checkpoint is a stock one.
        """
        if isinstance(self.config, StockConfig):
            raise UnsupportedError(
                f"model_type of {self.path} is '{self.config.model_type}'; {purpose}"
            )
        return self.config

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Reads the weights, one tensor at a time, on the CPU in their stored dtype.

        Yields:
            Name and tensor, each name once: canonical names and shapes
            (`layout.expected_shapes`), or for a stock checkpoint those of the files.

        Raises:
            CheckpointError: As `weights.map_weights`.
        """
        if isinstance(self.config, StockConfig):
            return finite(self._stored_tensors(), str(self.path))
        return map_weights(self.config, self._stored_tensors(), str(self.path))

    def fingerprint(self) -> str:
        """Hashes names, shapes, dtypes and values, whatever the sharding or file order.

        Returns:
            SHA-256, 64 hexadecimal digits.

        Raises:
            CheckpointError: As `tensors`.
        """
        digests = sorted(_tensor_digest(name, tensor) for name, tensor in self.tensors())
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def check_unchanged(self) -> None:
        """Checks that the files are still those that were opened.

        What vLLM has loaded from them in between is then what was hashed here.

        Raises:
            CheckpointError: One was written, replaced or removed.
        """
        for file, state in self._states.items():
            if _file_state(file) != state:
                raise CheckpointError(
                    f"{file} was changed while the model was loaded from it; start again once the "
                    "program that writes it has ended, or evaluate a copy"
                )

    def _stored_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path, entries in self.shards.items():
            try:
                with safe_open(path, framework="pt", device="cpu") as file:
                    for name in entries:
                        yield name, file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{path} cannot be read ({error}); copy the file again from its origin"
                ) from error


def open_checkpoint(path: str | Path, revision: str | None = None) -> Checkpoint:
    """Opens a checkpoint folder, or a Hugging Face model id, and checks config and headers.

    Args:
        path: Folder with config.json and safetensors files, or an id such as `owner/name`, which is
            fetched into Hugging Face's cache.
        revision: Branch, tag or commit of a Hugging Face id; ignored for a folder.

    Raises:
        CheckpointError: A file is missing, damaged or disagrees with config.json.
        UnsupportedError: The architecture is not supported.
        PrerequisiteError: A Hugging Face id could not be fetched.
    """
    folder = _resolve(path, revision)
    states = {folder / name: _file_state(folder / name) for name in _CONFIG_NAMES}
    config = read_config(_read_json(folder / CONFIG_NAME), str(folder / CONFIG_NAME))
    files = _weight_files(folder)
    states |= {file: _file_state(file) for file in files}
    shards = {file: read_header(file) for file in files}
    _check_unique(shards)
    _check_index(folder, shards)
    if isinstance(config, ModelConfig):
        ledger = Ledger(config, str(folder))
        for entries in shards.values():
            for name, entry in entries.items():
                ledger.claim(name, entry.shape, entry.dtype)
        ledger.finish()
    return Checkpoint(folder, config, shards, states)


def _file_state(file: Path) -> _FileState:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


def _resolve(path: str | Path, revision: str | None) -> Path:
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / CONFIG_NAME).is_file():
            raise CheckpointError(
                f"{folder} has no {CONFIG_NAME}; pass the folder that the model was saved to"
            )
        return folder
    if folder.exists():
        raise CheckpointError(f"{folder} is a file; pass the folder that holds {CONFIG_NAME}")
    hint = nearest(folder)
    if isinstance(path, str) and _HUB_ID.fullmatch(path):
        return _fetch(path, revision, hint)
    raise CheckpointError(
        f"{path} does not exist{hint}; pass the folder that holds {CONFIG_NAME}, or a Hugging "
        "Face id (owner/name)"
    )


def _fetch(repo_id: str, revision: str | None, hint: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise PrerequisiteError(
            f"{repo_id} is not a folder, and fetching it needs huggingface_hub; run "
            "'pip install huggingface_hub'"
        ) from error
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(_HUB_FILES)))
    except (OSError, ValueError) as error:
        option = f" --revision {revision}" if revision else ""
        reason = str(error).splitlines()[0]
        raise PrerequisiteError(
            f"{repo_id} is not a folder here{hint} and could not be fetched ({reason}); pass an "
            f"existing folder, or run 'hf download {repo_id}{option}' where there is a network"
        ) from error


def _read_json(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path} is not UTF-8 text ({error.reason}); copy the file again from its origin"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); check its permissions"
        ) from error
    return load_json_object(text, str(path))


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / WEIGHTS_NAME, folder / INDEX_NAME
    if single.is_file() and index.is_file():
        raise CheckpointError(
            f"{folder} has both {WEIGHTS_NAME} and {INDEX_NAME}; remove the one that is not the "
            "model"
        )
    if single.is_file():
        others = sorted({file.name for file in folder.glob("*.safetensors")} - {WEIGHTS_NAME})
        if others:
            raise CheckpointError(
                f"{folder} holds {', '.join(others)} beside {WEIGHTS_NAME}, which vLLM would load "
                "as well; move it to another folder"
            )
        return [single]
    if index.is_file():
        return _shards_of(index)
    if (folder / "pytorch_model.bin").is_file() or list(folder.glob("pytorch_model-*.bin")):
        raise CheckpointError(
            f"{folder} holds its weights in pytorch_model*.bin, not {WEIGHTS_NAME}; convert it: "
            'python -c "import sys, glob, torch; from safetensors.torch import save_file; '
            "w = {k: v.clone() for f in glob.glob(sys.argv[1] + '/pytorch_model*.bin') "
            "for k, v in torch.load(f, map_location='cpu', weights_only=True).items()}; "
            f"save_file(w, sys.argv[1] + '/{WEIGHTS_NAME}', {{'format': 'pt'}})\" {folder}"
        )
    raise CheckpointError(
        f"{folder} has neither {WEIGHTS_NAME} nor {INDEX_NAME}; save the model with "
        "save_pretrained(..., safe_serialization=True)"
    )


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"weight_map in {index} is {weight_map!r}; copy the file again from its origin"
        )
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"weight_map in {index} maps {name} to {file!r}; it must be the name of a file in "
                "the same folder"
            )
    return weight_map


def _shards_of(index: Path) -> list[Path]:
    files = [index.parent / name for name in sorted(set(_weight_map(index).values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{index} lists files that are not in the folder ({', '.join(missing)}); copy "
            "them from the checkpoint's origin"
        )
    return files


def _check_unique(shards: Mapping[Path, Mapping[str, TensorEntry]]) -> None:
    owner: dict[str, Path] = {}
    for file, entries in shards.items():
        for name in entries:
            if name in owner:
                raise CheckpointError(
                    f"{name} is in {owner[name].name} and in {file.name} of {file.parent}; save "
                    "the checkpoint again so that each tensor is in one file"
                )
            owner[name] = file


def _check_index(folder: Path, shards: Mapping[Path, Mapping[str, TensorEntry]]) -> None:
    index = folder / INDEX_NAME
    if not index.is_file():
        return
    listed = _weight_map(index)
    for name, file in listed.items():
        if name not in shards[folder / file]:
            raise CheckpointError(
                f"{index} places {name} in {file}, which does not hold it; copy index and files "
                "from one and the same checkpoint"
            )
    for path, entries in shards.items():
        for name in entries:
            if name not in listed:
                raise CheckpointError(
                    f"{path} holds {name}, which {INDEX_NAME} does not list; copy index and files "
                    "from one and the same checkpoint"
                )


def _tensor_digest(name: str, tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{name} {list(tensor.shape)} {tensor.dtype} ".encode())
    digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
