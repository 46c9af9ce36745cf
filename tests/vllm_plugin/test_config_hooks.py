"""Engine settings: the defaults that the plugin sets and the refusals that name their setting."""

from pathlib import Path
from typing import Any

import pytest
from random_checkpoint import save_random_checkpoint

from patheval.errors import PrerequisiteError, UnsupportedError
from patheval.vllm_plugin import MODELS, register
from patheval.vllm_plugin.config_hooks import ATTENTION_OP, AttentionOptions, attention_options
from patheval.vllm_plugin.versions import check_vllm_version


def engine_config(folder: Path, **arguments: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    defaults = dict(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=1024
    )
    return EngineArgs(**(defaults | arguments)).create_engine_config()


def test_the_reference_gets_its_page_size_and_no_compilation(checkpoints: Path) -> None:
    from vllm.config import CompilationMode, CUDAGraphMode

    options = {"patheval": {"impl": "reference"}}
    config = engine_config(checkpoints / "path-d64", additional_config=options)
    assert config.cache_config.block_size == 256
    assert config.cache_config.enable_prefix_caching
    assert config.compilation_config.mode == CompilationMode.NONE
    assert config.compilation_config.cudagraph_mode == CUDAGraphMode.NONE


def test_a_page_size_that_the_user_chose_is_kept(checkpoints: Path) -> None:
    assert engine_config(checkpoints / "fox-d64", block_size=64).cache_config.block_size == 64


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"block_size": 48}, "block_size=48"),
        ({"block_size": 16}, "block_size=16"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8"),
        ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype=bfloat16"),
        ({"prefix_match_unit": 32}, "prefix_match_unit=32"),
        (
            {
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 2,
                    "prompt_lookup_max": 2,
                }
            },
            "speculative_config=ngram",
        ),
        (
            {
                "kv_transfer_config": {
                    "kv_connector": "ExampleConnector",
                    "kv_role": "kv_both",
                }
            },
            "kv_transfer_config=ExampleConnector",
        ),
        ({"enable_lora": True}, "enable_lora=True"),
        ({"attention_backend": "CPU_ATTN"}, "attention_backend=CPU_ATTN"),
        ({"kv_sharing_fast_prefill": True}, "kv_sharing_fast_prefill=True"),
    ],
)
@pytest.mark.parametrize("name", ["path-d64", "fox-d64"])
def test_what_cannot_be_honoured_is_refused_by_name(
    name: str, arguments: dict[str, Any], setting: str, checkpoints: Path
) -> None:
    with pytest.raises(UnsupportedError, match=setting):
        engine_config(checkpoints / name, **arguments)


def test_triton_kernels_leave_compilation_on_and_split_it_at_the_attention(
    checkpoints: Path,
) -> None:
    from vllm.config import CompilationMode

    options = {"patheval": {"impl": "triton", "skip_pages": False}}
    config = engine_config(checkpoints / "path-d64", additional_config=options)
    assert ATTENTION_OP in config.compilation_config.splitting_ops
    assert attention_options(config) == AttentionOptions("triton", skip_pages=False)
    if config.device_config.device_type == "cuda":
        assert config.compilation_config.mode == CompilationMode.VLLM_COMPILE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"imp": "triton"}, "unknown patheval option 'imp'"),
        ({"impl": "cuda"}, "'cuda' cannot run here"),
        ({"skip_pages": "no"}, "skip_pages is 'no'"),
        ("triton", "has 'triton' under 'patheval'"),
    ],
)
def test_wrong_options_of_the_attention_are_refused(
    options: object, message: str, checkpoints: Path
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        engine_config(checkpoints / "path-d64", additional_config={"patheval": options})


def test_page_sizes_that_the_triton_kernels_lack_are_refused(checkpoints: Path) -> None:
    options = {"patheval": {"impl": "triton"}}
    with pytest.raises(UnsupportedError, match="block_size=96"):
        engine_config(checkpoints / "fox-d64", block_size=96, additional_config=options)


def test_rope_checkpoints_keep_vllms_own_settings(checkpoints: Path) -> None:
    config = engine_config(checkpoints / "rope-d64", block_size=16)
    assert config.cache_config.block_size == 16
    assert config.model_config.architecture == "PathEvalRopeForCausalLM"


def test_head_sizes_that_vllms_cpu_attention_lacks_are_refused(tmp_path: Path) -> None:
    folder = save_random_checkpoint(tmp_path / "rope-d16", model_type="transformer")
    with pytest.raises(UnsupportedError, match="head_dim=16"):
        engine_config(folder)


def test_positions_that_a_path_config_states_are_no_limit(tmp_path: Path) -> None:
    folder = save_random_checkpoint(
        tmp_path / "path", model_type="path_attn", max_position_embeddings=64
    )
    assert engine_config(folder).model_config.max_model_len == 1024


def test_register_may_run_many_times() -> None:
    from vllm import ModelRegistry

    register()
    register()
    assert set(MODELS) <= set(ModelRegistry.get_supported_archs())


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0.0", "dev"])
def test_other_vllm_versions_are_refused(version: str) -> None:
    with pytest.raises(PrerequisiteError, match=version):
        check_vllm_version(version)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.33.0", "0.33.0.dev1"])
def test_supported_vllm_versions(version: str) -> None:
    check_vllm_version(version)
