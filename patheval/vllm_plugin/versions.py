"""What differs between the vLLM versions that the plugin supports: so far only their range.

The interfaces in use (AttentionLayerBase.bind_kv_cache, FullAttentionSpec without a value part,
MODELS_CONFIG_MAP, CommonAttentionMetadata.query_start_loc_cpu and seq_lens; for the adapter
EngineCoreRequest, EngineCoreOutput and the engine core's client) are the same in 0.32 and 0.33.
"""

from __future__ import annotations

import re

from patheval.errors import PrerequisiteError

OLDEST = (0, 32)
NEWEST = (0, 33)


def check_vllm_version(version: str) -> None:
    """Raise PrerequisiteError unless `version` is one that the plugin was written for."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or not OLDEST <= (int(match[1]), int(match[2])) <= NEWEST:
        raise PrerequisiteError(
            f"vLLM {version} is installed, but patheval works with "
            f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}; "
            "run: pip install 'patheval[gpu]' (NVIDIA GPU) or 'patheval[cpu]'"
        )
