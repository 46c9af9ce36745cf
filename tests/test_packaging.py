import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "patheval": "patheval",
    "tasks": "patheval/tasks",
    "model_adapters": "patheval/model_adapters",
}
STARTUP_FILES = {"patheval_autoload.pth", "patheval_autoload.start"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a copy of what the build reads, with a left-over of an earlier build."""
    copy = tmp_path_factory.mktemp("source")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    left_over = copy / "build/lib/patheval/deleted.py"
    left_over.parent.mkdir(parents=True)
    left_over.touch()
    return copy


@pytest.fixture(scope="module")
def wheels(source, tmp_path_factory):
    """Return the wheel built from the tree, from the sdist, and for an editable installation."""
    folder = tmp_path_factory.mktemp("dist")
    sdist = build("sdist", source, folder)
    shutil.unpack_archive(sdist, folder)
    return {
        "tree": build("wheel", source, folder / "tree"),
        "sdist": build("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder / "sdist"),
        "editable": build("editable", source, folder / "editable"),
    }


def build(kind, source, target):
    target.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(target)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (archive,) = target.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return archive


@pytest.mark.parametrize("origin", ["tree", "sdist", "editable"])
def test_metadata_and_startup_files(wheels, origin):
    with zipfile.ZipFile(wheels[origin]) as wheel:
        names = set(wheel.namelist())
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        assert names >= STARTUP_FILES
        assert wheel.read(f"{info}/top_level.txt") == b"patheval\n"
        entry_points = wheel.read(f"{info}/entry_points.txt").decode()
        assert "[lm_eval.models]" in entry_points
        assert "[vllm.general_plugins]" in entry_points
        assert f"{info}/licenses/LICENSE" in names


@pytest.mark.parametrize("origin", ["tree", "sdist"])
def test_wheel_holds_exactly_the_tree(source, wheels, origin):
    expected = {
        f"{package}/{path.relative_to(source / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    with zipfile.ZipFile(wheels[origin]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == expected | STARTUP_FILES


def test_entry_points_lead_to_code(wheels):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = [
        *declared["scripts"].values(),
        *(target for group in declared["entry-points"].values() for target in group.values()),
    ]
    with zipfile.ZipFile(wheels["tree"]) as wheel:
        names = set(wheel.namelist())
    for target in targets:
        path = target.split(":")[0].replace(".", "/")
        assert names & {f"{path}.py", f"{path}/__init__.py"}, target


class Environment:
    """A virtual environment that also sees the packages which the tests run with."""

    def __init__(self, folder):
        venv.create(folder)
        self.folder = folder
        self.python = folder / "bin/python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        (self.site / "_dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def pip(self, *arguments):
        command = [sys.executable, "-m", "pip", "--python", self.python, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def modules(self):
        code = "import sys; print(*sys.modules)"
        return set(subprocess.check_output([self.python, "-c", code], text=True).split())


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installation(request, source, wheels, tmp_path_factory):
    """Return an environment with patheval installed, and the modules of its Python before."""
    environment = Environment(tmp_path_factory.mktemp(request.param))
    before = environment.modules()
    if request.param == "wheel":
        environment.pip("install", "--no-deps", wheels["tree"])
    else:
        environment.pip("install", "--no-deps", "--no-build-isolation", "--editable", source)
    return environment, before, request.param


@pytest.fixture
def run_installed(installation, run_python):
    environment, *_ = installation
    return lambda code, **variables: run_python(code, python=environment.python, **variables)


@pytest.mark.parametrize("name", ["tasks", "model_adapters"])
def test_folders_are_no_global_modules(run_installed, name):
    assert run_installed(f"import importlib.util as u; print(u.find_spec({name!r}))") == "None"


def test_lm_eval_knows_models_and_tasks(run_installed):
    code = """
import lm_eval.models
from lm_eval.api.registry import model_registry
from lm_eval.tasks import manager
print(*(name for name in ("dummy", "path", "path-ref") if name in model_registry))

build = manager.TaskIndex.build
manager.TaskIndex.build = lambda index, paths: build(paths[1:])
print(*manager.TaskManager().all_tasks)
"""
    models, tasks = run_installed(code).splitlines()
    assert models == "dummy path path-ref"
    assert "path_" in tasks
    models, *tasks = run_installed(code, PATHEVAL_NO_AUTOLOAD="1").splitlines()
    assert models == "dummy"
    assert not any(tasks)


def test_every_yaml_is_a_task(run_installed, source):
    code = """
from patheval._autoload import task_folder
from lm_eval.tasks import TaskManager
manager = TaskManager(include_path=task_folder(), include_defaults=False)
print(*{entry.yaml_path.name for entry in manager.task_index.values() if entry.yaml_path})
"""
    indexed = set(run_installed(code).split())
    assert indexed >= {path.name for path in (source / "tasks").rglob("*.yaml")}


def test_python_starts_with_two_more_modules(installation):
    environment, before, kind = installation
    added = environment.modules() - before
    if kind == "wheel":
        assert added == {"patheval", "patheval._autoload"}
    else:
        # The import hook of setuptools adds what it needs.
        assert {name for name in added if name.startswith("patheval")} == {
            "patheval",
            "patheval._autoload",
        }


def test_broken_start_up_is_harmless(installation, run_installed, tmp_path):
    (tmp_path / "patheval.py").write_text("raise SystemError")
    assert run_installed("print('started')", PYTHONPATH=str(tmp_path)) == "started"


def test_uninstall_leaves_nothing(wheels, tmp_path):
    environment = Environment(tmp_path)
    environment.pip("install", "--no-deps", wheels["tree"])
    assert list(environment.folder.rglob("*patheval*"))
    environment.pip("uninstall", "--yes", "patheval")
    assert not list(environment.folder.rglob("*patheval*"))


@pytest.mark.slow
@pytest.mark.parametrize("installation", ["wheel"], indirect=True)
def test_lm_eval_still_runs_its_own_models(installation, tmp_path):
    environment, *_ = installation
    (tmp_path / "documents.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "own.yaml").write_text("""
task: own
dataset_path: json
dataset_kwargs: {data_files: documents.jsonl}
test_split: train
output_type: generate_until
doc_to_text: text
doc_to_target: text
metric_list: [{metric: exact_match}]
""")
    command = "-m lm_eval --model dummy --tasks own --include_path ."
    table = subprocess.check_output(
        [environment.python, *command.split()],
        cwd=tmp_path,
        env=os.environ | {"HF_HOME": str(tmp_path / "cache")},
        text=True,
    )
    assert "exact_match" in table
