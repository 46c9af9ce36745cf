import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from patheval import _autoload

REGISTERED = """
from importlib.metadata import distribution
from lm_eval.api.registry import model_registry

ours = distribution("patheval").entry_points.select(group="lm_eval.models")
assert ours and all(entry_point.name in model_registry for entry_point in ours)
assert "dummy" in model_registry
"""

LATER_LM_EVAL_SCANS = """
from importlib.metadata import entry_points
for entry_point in entry_points(group="lm_eval.models"):
    model_registry.register(entry_point.name, target=entry_point)
"""


def test_start_of_python_is_enough(run_python):
    run_python("import lm_eval.models" + REGISTERED)


def test_install_reaches_modules_imported_before(run_python):
    code = f"""
import lm_eval.models, lm_eval.tasks.manager
from patheval import _autoload
_autoload.install()
{REGISTERED}
assert _autoload._EXTENDED in vars(lm_eval.tasks.manager.TaskManager.__init__)
"""
    run_python(code, PATHEVAL_NO_AUTOLOAD="1")


def test_install_is_idempotent(run_python):
    code = f"""
import importlib, sys
from patheval import _autoload
_autoload.install()
import lm_eval.models
importlib.reload(lm_eval.models)
_autoload.install()
{REGISTERED}
assert sum(type(finder) is _autoload._Finder for finder in sys.meta_path) == 1
assert not _autoload.failures
"""
    run_python(code)


def test_lm_eval_may_register_the_same_entry_points_after(run_python):
    run_python("import lm_eval.models" + REGISTERED + LATER_LM_EVAL_SCANS + REGISTERED)


def test_lm_eval_may_register_the_same_entry_points_before(run_python):
    code = f"""
import lm_eval.models
from lm_eval.api.registry import model_registry
{LATER_LM_EVAL_SCANS}
from patheval import _autoload
_autoload.install()
{REGISTERED}
assert not _autoload.failures
"""
    run_python(code, PATHEVAL_NO_AUTOLOAD="1")


def test_failure_leaves_lm_eval_as_it_is(run_python):
    code = """
import importlib.metadata
original = importlib.metadata.distribution
def distribution(name):
    if name == "patheval":
        raise LookupError(name)
    return original(name)
importlib.metadata.distribution = distribution
import lm_eval.models
from lm_eval.api.registry import model_registry
from patheval import _autoload
assert "dummy" in model_registry and "path" not in model_registry
print(_autoload.failures)
"""
    assert run_python(code) == "{'lm_eval.models': 'LookupError: patheval'}"


def test_listed_modules_are_hidden_from_the_start(run_python):
    code = "import importlib.util; print(importlib.util.find_spec('tomllib'))"
    assert run_python(code, PATHEVAL_HIDE_MODULES="json,tomllib") == "None"


def test_hiding_spares_imported_modules():
    _autoload.hide_modules("sys")
    assert sys.modules["sys"] is sys


@pytest.fixture
def manager():
    """Return a module like `lm_eval.tasks.manager`, extended, whose TaskManager keeps its paths."""

    class TaskManager:
        def __init__(self, verbosity=None, include_path=None, include_defaults=True):
            self.include_path = include_path

    module = SimpleNamespace(__name__="lm_eval.tasks.manager", TaskManager=TaskManager)
    _autoload._add_task_folder(module)
    return module


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ("own", [Path("own")]),
        (Path("own"), [Path("own")]),
        (["own", Path("more")], [Path("own"), Path("more")]),
    ],
    ids=["none", "str", "path", "list"],
)
def test_task_folder_precedes_the_users(manager, given, expected):
    ours = _autoload.task_folder()
    assert manager.TaskManager(include_path=given).include_path == [ours, *expected]
    assert manager.TaskManager(None, given).include_path == [ours, *expected]


def test_task_folder_is_added_once(manager):
    _autoload._add_task_folder(manager)
    ours = _autoload.task_folder()
    assert manager.TaskManager(include_path=[str(ours)]).include_path == [ours]


def test_task_folder_is_not_forced_on_those_without_defaults(manager):
    assert manager.TaskManager(include_path="own", include_defaults=False).include_path == "own"


def test_git_is_asked_quietly_outside_a_repository(run_python, tmp_path):
    code = """
import os
from lm_eval import evaluator
os.dup2(1, 2)  # What git calls fatal is printed too.
print(evaluator.get_git_commit_hash())
"""
    assert run_python(code, GIT_CEILING_DIRECTORIES=str(tmp_path.parent)) == "None"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    assert run_python(code) == "None"
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "a"], check=True)
    head = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True)
    assert run_python(code) == head.strip()


def test_unknown_task_manager_is_reported_and_left_alone(monkeypatch, caplog):
    class TaskManager:
        def __init__(self, folders):
            self.folders = folders

    monkeypatch.setattr(_autoload, "failures", {})
    _autoload._extend(SimpleNamespace(__name__="lm_eval.tasks.manager", TaskManager=TaskManager))

    assert TaskManager("own").folders == "own"
    reason = "TypeError: TaskManager takes no include_defaults and no include_path"
    assert _autoload.failures == {"lm_eval.tasks.manager": reason}
    assert reason in caplog.text
