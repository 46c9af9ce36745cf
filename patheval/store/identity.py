"""What an answer depends on: the key that it is stored under, and the place of the store."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

# Sources whose change can change a number, without a new version.
_NUMERIC_SOURCES = ("checkpoint", "kernels", "vllm_plugin", "reference_model.py", "tokenization.py")

# Environment variables with which PyTorch, its libraries or Triton compute otherwise.
_NUMERIC_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_INTERPRET",
)


def numeric_variables() -> dict[str, str]:
    """The environment variables, vLLM's own aside, that numbers may depend on and that are set."""
    return {name: os.environ[name] for name in _NUMERIC_VARIABLES if name in os.environ}


def default_folder() -> Path | None:
    """Folder of stores where none is named: `answers` in patheval's cache.

    `PATHEVAL_CACHE` names the cache, or says `off`; else it is `patheval` in the user's cache.
    """
    named = os.environ.get("PATHEVAL_CACHE")
    if named == "off":
        return None
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named or Path(user_cache) / "patheval").expanduser() / "answers"


def request_key(kind: str, *token_ids: NDArray[Any], **settings: object) -> bytes:
    """Identity of a request, whatever model answers it.

    Args:
        kind: What is asked for.
        *token_ids: The arrays of token ids that the model reads.
        **settings: Everything else that the answer depends on, as JSON values.

    Returns:
        SHA-256, 32 bytes.
    """
    digest = hashlib.sha256(canonical_json([kind, settings]).encode())
    for part in token_ids:
        digest.update(b"\0" + len(part).to_bytes(8, "little"))
        digest.update(part.astype("<u4", copy=False).tobytes())
    return digest.digest()


def fingerprint(facts: Mapping[str, object]) -> str:
    """Identity of a model as it is run: SHA-256 over facts, 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()


def canonical_json(value: object) -> str:
    """JSON that is equal for equal values; what JSON has no type for, by its `repr`."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr)


def tokenizer_digest(tokenizer: Any) -> str:
    """Hashes what a tokenizer does: vocabulary, rules and special tokens, not its path.

    Returns:
        SHA-256, 64 hexadecimal digits.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = [
        sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str(),
        {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
    ]
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Hashes patheval's own sources that compute numbers, so that no edit serves old answers.

    Returns:
        SHA-256, 64 hexadecimal digits.
    """
    root = Path(str(files("patheval")))
    digest = hashlib.sha256()
    for name in _NUMERIC_SOURCES:
        path = root / name
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(source.relative_to(root).as_posix().encode() + b"\0")
            digest.update(source.read_bytes() + b"\0")
    return digest.hexdigest()
