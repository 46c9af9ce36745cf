"""Make lm-eval know patheval's models and tasks, without any command-line flag.

Python runs `autoload` in every process of an environment that has patheval installed: through
`patheval_autoload.pth`, or `patheval_autoload.start` from Python 3.15 on. It therefore imports
nothing, and touches lm-eval only once a program imports lm-eval itself. lm-eval 0.4.13 reads no
entry points; a release that does gets the very same entry points registered, which is no conflict.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType
    from typing import Any

NO_AUTOLOAD = "PATHEVAL_NO_AUTOLOAD"
HIDE_MODULES = "PATHEVAL_HIDE_MODULES"
OWN_MODELS = ("path", "path-ref")
_EXTENDED = "_patheval_extended"

failures: dict[str, str] = {}
"""The lm-eval modules that could not be extended, each with the reason."""


def autoload() -> None:
    """Run at interpreter start: hide the modules listed for this process, then `install`."""
    hide_modules(os.environ.get(HIDE_MODULES, ""))
    if not os.environ.get(NO_AUTOLOAD):
        install()


def hide_modules(names: str) -> None:
    """Let each module of a comma-separated list fail to import, unless it already is."""
    for name in filter(None, names.split(",")):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def install() -> None:
    """Extend lm-eval's modules: at once where imported, else when they are. Idempotent."""
    if is_installed():
        return
    sys.meta_path.insert(0, _Finder())
    for name in _EXTENSIONS:
        if module := sys.modules.get(name):
            _extend(module)


def is_installed() -> bool:
    """Whether `install` ran in this process."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


class _Finder:
    """Finds lm-eval's modules as the other finders do, and extends them once executed."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in _EXTENSIONS:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            if spec := finder.find_spec(name, path, target):
                _extend_after_execution(spec)
                return spec
        return None


def _extend_after_execution(spec: "ModuleSpec") -> None:
    loader = spec.loader
    if loader is None:
        return

    def exec_module(module: "ModuleType") -> None:
        del loader.exec_module
        loader.exec_module(module)
        _extend(module)

    # On the instance: the loader's type, source and reloading stay what they were.
    loader.exec_module = exec_module  # type: ignore[method-assign]


def _extend(module: "ModuleType") -> None:
    name = module.__name__
    try:
        _EXTENSIONS[name](module)
    except Exception as error:
        import logging

        failures[name] = f"{type(error).__name__}: {error}"
        logging.getLogger(__name__).warning(
            "patheval could not extend %s (%s); run `patheval doctor`.", name, failures[name]
        )


def _register_models(_: "ModuleType") -> None:
    from importlib.metadata import distribution

    from lm_eval.api.registry import model_registry

    for entry_point in distribution("patheval").entry_points.select(group="lm_eval.models"):
        if entry_point.name not in model_registry:
            # The entry point itself, which equals the one that a later lm-eval would register.
            model_registry.register(entry_point.name, target=entry_point)


def _add_task_folder(module: "ModuleType") -> None:
    import functools
    import inspect
    from pathlib import Path

    initialize = module.TaskManager.__init__
    if _EXTENDED in vars(initialize):
        return
    signature = inspect.signature(initialize)
    if missing := {"include_path", "include_defaults"} - signature.parameters.keys():
        raise TypeError(f"TaskManager takes no {' and no '.join(sorted(missing))}")

    @functools.wraps(initialize)
    def initialize_with_folder(*args: object, **kwargs: object) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.arguments["include_defaults"]:
            given = bound.arguments["include_path"] or []
            paths = [Path(p) for p in (given if isinstance(given, list | tuple) else [given])]
            folder = task_folder()
            # lm-eval's own tasks come first and the user's last; the last of a name wins.
            bound.arguments["include_path"] = [folder, *(p for p in paths if p != folder)]
        initialize(*bound.args, **bound.kwargs)

    vars(initialize_with_folder)[_EXTENDED] = True
    module.TaskManager.__init__ = initialize_with_folder


def _load_tasks_before_models(module: "Any") -> None:
    import functools
    import inspect

    evaluate = module.simple_evaluate
    if _EXTENDED in vars(evaluate):
        return
    signature = inspect.signature(evaluate)
    names = {"model", "model_args", "tasks", "task_manager", "metadata"}
    if missing := names - signature.parameters.keys():
        raise TypeError(f"simple_evaluate takes no {' and no '.join(sorted(missing))}")

    @functools.wraps(evaluate)
    def simple_evaluate(*args: object, **kwargs: object) -> object:
        given = signature.bind(*args, **kwargs).arguments
        tasks = given.get("tasks") or []
        own = [name for name in tasks if isinstance(name, str) and name.startswith("path_")]
        if own and isinstance(given.get("model"), str):
            # A missing source or a length that cannot be filled shows here, not after minutes.
            _load_quietly(given.get("task_manager") or _own_task_manager(given), own)
        return evaluate(*args, **kwargs)

    vars(simple_evaluate)[_EXTENDED] = True
    module.simple_evaluate = simple_evaluate


def _extend_evaluator(module: "Any") -> None:
    _load_tasks_before_models(module)
    _ask_git_quietly(module)


def _ask_git_quietly(module: "Any") -> None:
    import functools

    ask = module.get_git_commit_hash
    if _EXTENDED in vars(ask):
        return

    @functools.wraps(ask)
    def get_git_commit_hash() -> object:
        import subprocess

        from lm_eval.loggers.utils import get_commit_from_path

        # Where git has no answer lm-eval goes on as here, but lets git call that fatal.
        command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
        try:
            is_known = subprocess.run(command, capture_output=True).returncode == 0
        except OSError:
            is_known = False
        return ask() if is_known else get_commit_from_path(os.getcwd())

    vars(get_git_commit_hash)[_EXTENDED] = True
    module.get_git_commit_hash = get_git_commit_hash


def _shorten_samples(module: "Any") -> None:
    import functools
    import inspect

    save = module.EvaluationTracker.save_results_samples
    if _EXTENDED in vars(save):
        return
    if missing := {"task_name", "samples"} - inspect.signature(save).parameters.keys():
        raise TypeError(f"save_results_samples takes no {' and no '.join(sorted(missing))}")

    @functools.wraps(save)
    def save_results_samples(self: "Any", task_name: str, samples: "Sequence[Any]") -> object:
        from patheval import samplefile

        tracked = getattr(self, "general_config_tracker", None)
        is_own_model = getattr(tracked, "model_source", None) in OWN_MODELS
        return save(
            self,
            task_name=task_name,
            samples=[
                samplefile.shortened(sample)
                if is_own_model or samplefile.is_generated(sample["doc"])
                else sample
                for sample in samples
            ],
        )

    vars(save_results_samples)[_EXTENDED] = True
    module.EvaluationTracker.save_results_samples = save_results_samples


def _load_quietly(manager: "Any", tasks: list[str]) -> None:
    import logging

    logger = logging.getLogger("lm_eval.api.task")
    level = logger.level
    # What there is to be told about the tasks is told when they are loaded again.
    logger.setLevel(logging.ERROR)
    try:
        manager.load(tasks)
    finally:
        logger.setLevel(level)


def _own_task_manager(given: "Mapping[str, Any]") -> "Any":
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import simple_parse_args_string

    model_args = given.get("model_args") or {}
    if isinstance(model_args, str):
        model_args = simple_parse_args_string(model_args)
    metadata = {**model_args, **(given.get("metadata") or {})}
    return TaskManager(include_path=task_folder(), include_defaults=False, metadata=metadata)


def task_folder() -> "Path":
    """Return the folder of the task definitions, wherever the installation keeps it."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("patheval.tasks")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("patheval.tasks is not installed; run `pip install patheval`.")
    return Path(spec.submodule_search_locations[0])


_EXTENSIONS: "dict[str, Callable[[ModuleType], None]]" = {
    "lm_eval.models": _register_models,
    "lm_eval.tasks.manager": _add_task_folder,
    "lm_eval.evaluator": _extend_evaluator,
    "lm_eval.loggers.evaluation_tracker": _shorten_samples,
}
