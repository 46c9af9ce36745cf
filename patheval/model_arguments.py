"""The model that a command line asks for, checked before anything of it is loaded."""

from collections.abc import Mapping
from typing import Any

from patheval._autoload import OWN_MODELS
from patheval.checkpoint.folders import local
from patheval.errors import UnsupportedError
from patheval.suggestions import did_you_mean


def check_model(name: str, arguments: Mapping[str, Any], option: str = "--model") -> None:
    """Checks lm-eval's `--model`, and for patheval's own models their `--model_args`.

    Args:
        name: The model's name. A name that lm-eval knows is checked in milliseconds; arguments
            take the import of the adapter, and of vLLM for arguments that only vLLM can know.
        arguments: Names and values of `--model_args`.
        option: How the command line spells the option, for the message.

    Raises:
        UnsupportedError: There is no such model, or an argument is unknown or refused.
        PrerequisiteError: A folder is not there, or an argument may be one of vLLM's, which is not
            installed.
    """
    import lm_eval.models  # noqa: F401  (the registry knows no model without it)
    from lm_eval.api.registry import get_model, model_registry

    if name not in model_registry:
        hint = did_you_mean(name, list(model_registry), cutoff=0.5)
        raise UnsupportedError(
            f"{option} is {name!r}, which lm-eval does not know; {hint}patheval's own are "
            f"{' and '.join(OWN_MODELS)}"
        )
    if name not in OWN_MODELS or not arguments:
        return
    for place in ("pretrained", "tokenizer"):
        if isinstance(arguments.get(place), str):
            local(arguments[place])
    if others := {key: value for key, value in arguments.items() if key != "pretrained"}:
        get_model(name).check_arguments(others)
