"""Settings that vLLM needs before it is imported, where the user has chosen none."""

import logging
import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from patheval._autoload import HIDE_MODULES, hide_modules
from patheval.errors import PrerequisiteError

logger = logging.getLogger(__name__)

INSTALL_GPU = "pip install 'patheval[gpu]'"
# PyPI has no CPU build of torch for Linux.
INSTALL_CPU = "pip install 'patheval[cpu]' --extra-index-url https://download.pytorch.org/whl/cpu"

_GIB = 1024**3
_TORCH_COMPANIONS = ("torchaudio", "torchcodec", "torchvision")


def prepare() -> None:
    """Set the environment for vLLM and its child processes; call before importing vLLM.

    Variables that are set already keep their value.

    Raises:
        PrerequisiteError: If vLLM is not installed, or may not load patheval's plugin.
    """
    for name, value in defaults().items():
        os.environ.setdefault(name, value)
    if remedy := plugin_remedy():
        raise PrerequisiteError(
            f"VLLM_PLUGINS={os.environ['VLLM_PLUGINS']} keeps vLLM from loading patheval's plugin; "
            f"run `{remedy}`."
        )
    if misfits := torch_misfits():
        logger.warning(
            "%s built for another torch than the installed %s, hidden for this run; remove with "
            "`%s`.",
            ", ".join(misfits),
            version("torch"),
            removal_command(misfits),
        )
        hidden = os.environ.get(HIDE_MODULES, "").split(",")
        os.environ[HIDE_MODULES] = ",".join(dict.fromkeys(filter(None, [*hidden, *misfits])))
        hide_modules(os.environ[HIDE_MODULES])


def defaults() -> dict[str, str]:
    """Return the settings for the installed vLLM, by environment variable."""
    settings = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # Standard output is for lm-eval's table.
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    }
    if is_cpu():
        # Left to itself, the CPU worker wants nearly all of the memory to be free.
        settings["VLLM_CPU_KVCACHE_SPACE"] = str(_kv_cache_gib())
        # Compiling the sampler for the CPU takes longer than an evaluation gains from it.
        settings["TORCHDYNAMO_DISABLE"] = "1"
        # An engine process of its own starts 20 s later and gains nothing here.
        settings["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    else:
        # Tasks have started torch's threads by now; a fork would wait for them for ever.
        settings["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        if find_spec("flashinfer") is None:
            settings["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    return settings


def plugin_remedy() -> str | None:
    """Return the command that lets vLLM load patheval's plugin, if VLLM_PLUGINS keeps it out."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is None or "patheval" in allowed.split(","):
        return None
    return f"export VLLM_PLUGINS={','.join(filter(None, [allowed, 'patheval']))}"


def is_cpu() -> bool:
    """Whether the installed vLLM is a CPU build, told as vLLM itself tells."""
    name, vllm_version = vllm_distribution()
    return name == "vllm-cpu" or "cpu" in vllm_version


def vllm_distribution() -> tuple[str, str]:
    """Return the name and the version of the distribution that provides vLLM.

    Raises:
        PrerequisiteError: If none does.
    """
    for name in ("vllm", "vllm-cpu"):
        if found := installed_version(name):
            return name, found
    raise PrerequisiteError(
        f"vLLM is not installed; run `{INSTALL_GPU}` on a machine with an NVIDIA GPU, else "
        f"`{INSTALL_CPU}`."
    )


def torch_misfits() -> list[str]:
    """Return the torch companions of another build than a CPU torch: importing them fails."""
    if not _is_cpu_build("torch"):
        return []
    return [
        name for name in _TORCH_COMPANIONS if installed_version(name) and not _is_cpu_build(name)
    ]


def removal_command(distributions: list[str]) -> str:
    """Return the command that uninstalls the distributions."""
    return f"pip uninstall -y {' '.join(distributions)}"


def _is_cpu_build(distribution: str) -> bool:
    return (installed_version(distribution) or "").endswith("+cpu")


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution, or None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _kv_cache_gib() -> int:
    """A quarter of the available memory in GiB, at least 1 and at most 8."""
    import psutil

    available: int = psutil.virtual_memory().available
    return min(8, max(1, available // 4 // _GIB))
