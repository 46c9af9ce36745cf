"""What is wrong with the options of `patheval run`, found before lm-eval indexes 13,000 tasks."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patheval._autoload import task_folder
from patheval.errors import UnsupportedError
from patheval.model_arguments import check_model
from patheval.suggestions import did_you_mean

_DEFAULT_MODEL = "hf"


def check(arguments: Sequence[str]) -> str:
    """Checks the model, its arguments and the names of patheval's tasks.

    Args:
        arguments: Those of `lm_eval run`, as lm-eval's own parser takes them.

    Returns:
        Name of the model.

    Raises:
        UnsupportedError: One of them is unknown or refused, or a file of them cannot be read.
    """
    given = _merged(_parse(arguments))
    name = str(given.get("model") or _DEFAULT_MODEL)
    check_model(name, {})
    _check_tasks(given)
    check_model(name, _model_args(given.get("model_args")))
    return name


def no_such_task(missing: str, known: Sequence[str]) -> UnsupportedError:
    """Makes the error that there are no such tasks.

    Args:
        missing: Their names, by commas.
        known: Names of patheval's own.
    """
    hint = did_you_mean(missing.split(", ")[0], known)
    return UnsupportedError(
        f"there is no task {missing}; {hint}`patheval tasks` lists patheval's own; any length is "
        """a task ..._any with --metadata '{"length": N}'"""
    )


def _parse(arguments: Sequence[str]) -> dict[str, Any]:
    from lm_eval._cli.run import Run

    parser = argparse.ArgumentParser(prog="patheval", add_help=False)
    Run(parser.add_subparsers())
    return vars(parser.parse_args(["run", *arguments]))


def _merged(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of --config with those of the command line before them."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    options = {name: value for name, value in given.items() if value}
    if config := options.get("config"):
        try:
            return {**EvaluatorConfig.load_yaml_config(config), **options}
        except (OSError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UnsupportedError(f"--config cannot be read ({reason}); correct it") from error
    return options


def _model_args(given: object) -> dict[str, Any]:
    from lm_eval.utils import simple_parse_args_string

    if isinstance(given, str):
        return dict(simple_parse_args_string(given))
    return dict(given) if isinstance(given, Mapping) else {}


def _check_tasks(given: Mapping[str, Any]) -> None:
    names = given.get("tasks") or []
    names = names if isinstance(names, list) else [names]
    names = [part for name in names if isinstance(name, str) for part in name.split(",")]
    # A file, a folder or a pattern is lm-eval's to find; so are its own 13,000 tasks.
    plain = [name for name in names if name.startswith("path_") and not set(name) & set("/*?[")]
    wanted = [name for name in plain if not Path(name).exists() and not name.endswith(".yaml")]
    if not wanted:
        return
    from lm_eval.tasks import TaskManager

    folders = [task_folder(), *filter(None, [given.get("include_path")])]
    known = TaskManager(include_path=folders, include_defaults=False).all_tasks
    if missing := [name for name in wanted if name not in known]:
        raise no_such_task(", ".join(missing), known)
