"""vLLM plugin: model classes, attention layer and cache pages for checkpoints in fla's format.

vLLM calls `register` in every process that it starts, through the entry point group
`vllm.general_plugins`.
"""

MODELS = {
    "PathEvalForCausalLM": "patheval.vllm_plugin.models:PathEvalForCausalLM",
    "PathEvalRopeForCausalLM": "patheval.vllm_plugin.models:PathEvalRopeForCausalLM",
}


def register() -> None:
    """Make the model types known to transformers and vLLM, and prepare the process's engine.

    The engine ends with its front end, and its core takes scored requests.

    Repeated calls change nothing.
    """
    from transformers import AutoConfig
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from patheval import json_tokenizer
    from patheval.vllm_plugin import scoring_core
    from patheval.vllm_plugin.config_hooks import PagedAttentionConfig, RopeConfig
    from patheval.vllm_plugin.hf_configs import CONFIG_CLASSES
    from patheval.vllm_plugin.lifetime import end_with_parent

    end_with_parent()
    json_tokenizer.register()
    for config_class in CONFIG_CLASSES:
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    for architecture, target in MODELS.items():
        ModelRegistry.register_model(architecture, target)
    MODELS_CONFIG_MAP["PathEvalForCausalLM"] = PagedAttentionConfig
    MODELS_CONFIG_MAP["PathEvalRopeForCausalLM"] = RopeConfig
    scoring_core.install()
