"""What a sweep is asked to run, from the command line and from a YAML file."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from patheval.errors import UnsupportedError
from patheval.leaderboard.catalogue import tokens

_LONGEST_NAME = 120

CHECKPOINT_BACKENDS = ("path", "path-ref")
"""Values of lm-eval's --model whose checkpoints patheval can check before they run."""


@dataclass(frozen=True)
class Model:
    """One model of a sweep.

    Attributes:
        name: Name in results and on boards.
        pretrained: Checkpoint folder, `zoo:NAME` or Hugging Face id.
        arguments: Further --model_args of this model alone.
    """

    name: str
    pretrained: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """A whole sweep.

    Attributes:
        models: At least one, with distinct names.
        out: Folder of the results.
        suites: Keys of `suites.SUITES`.
        lengths: Lengths in tokens; empty for a suite's own.
        tasks: Further tasks, as names or glob patterns.
        skip: Tasks of the suites to leave out, as names or glob patterns.
        backend: lm-eval's --model.
        model_args: --model_args of all models.
        metadata: --metadata of all tasks.
        max_length: Limit of prompt and answer; None for what the longest task needs.
        limit: lm-eval's --limit, for trials only; None for whole tasks.
        device: lm-eval's --device.
        batch_size: lm-eval's --batch_size.
    """

    models: tuple[Model, ...]
    out: Path
    suites: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    backend: str = "path"
    model_args: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    max_length: int | None = None
    limit: float | None = None
    device: str | None = None
    batch_size: str | None = None

    def arguments(self, model: Model, max_length: int) -> dict[str, Any]:
        """Returns the --model_args that a model runs with."""
        return {
            "pretrained": model.pretrained,
            **self.model_args,
            **model.arguments,
            "max_length": max_length,
        }


def read_options(given: Mapping[str, Any], config: Path | None) -> Options:
    """Combines the command line with a YAML file that holds the same options.

    Args:
        given: Options by their names, as the command line spells them; None and empty ones are
            taken from the file.
        config: The file, or None.

    Raises:
        UnsupportedError: An option is missing, unknown or of the wrong kind.
    """
    merged = {**_read_yaml(config), **{k: v for k, v in given.items() if v not in (None, (), {})}}
    if unknown := sorted(set(merged) - set(_READERS)):
        raise UnsupportedError(
            f"{config} has the unknown option {unknown[0]}; it may have {', '.join(_READERS)}"
        )
    options = {name: _READERS[name](name, value) for name, value in merged.items()}
    models = options.pop("model", ())
    if not models:
        raise UnsupportedError("no model is named; pass --model NAME=CHECKPOINT")
    for model in models:
        _check_name(model.name)
        _refuse_own({**options.get("model_args", {}), **model.arguments})
    names = [model.name for model in models]
    if double := sorted({name for name in names if names.count(name) > 1}):
        raise UnsupportedError(f"two models are called {double[0]}; give each its own name")
    if "out" not in options:
        raise UnsupportedError("no folder is named for the results; pass --out FOLDER")
    if not options.get("suite") and not options.get("tasks"):
        raise UnsupportedError("nothing is to be run; pass --suite or --tasks")
    return Options(models=models, suites=options.pop("suite", ()), **options)


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would keep the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        merge = "tag:yaml.org,2002:merge"
        keys = [self.construct_object(k, deep=True) for k, _ in node.value if k.tag != merge]
        if double := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"{double[0]!r} stands twice", node.start_mark
            )
        return dict(super().construct_mapping(node, deep))


def _read_yaml(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        content = yaml.load(config.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UnsupportedError(f"{config} cannot be read ({reason}); correct it") from error
    if not isinstance(content, dict):
        raise UnsupportedError(f"{config} holds no options; write lines such as suite: table3")
    return {str(key).replace("-", "_"): value for key, value in content.items()}


def _models(name: str, value: object) -> tuple[Model, ...]:
    if isinstance(value, Mapping):
        return tuple(_model(str(own), given) for own, given in value.items())
    if not isinstance(value, list | tuple):
        raise UnsupportedError(f"{name} is {value!r}; write NAME: CHECKPOINT for each model")
    models = []
    for text in value:
        own, equals, pretrained = str(text).partition("=")
        if not (own and equals and pretrained):
            raise UnsupportedError(f"--model is {text!r}; write NAME=CHECKPOINT")
        models.append(Model(own, pretrained))
    return tuple(models)


def _model(name: str, given: object) -> Model:
    if isinstance(given, str):
        return Model(name, given)
    if isinstance(given, Mapping) and isinstance(given.get("pretrained"), str):
        rest = {str(key): value for key, value in given.items() if key != "pretrained"}
        return Model(name, given["pretrained"], rest)
    raise UnsupportedError(
        f"model {name} is {given!r}; write a checkpoint, or a mapping that has pretrained"
    )


def _check_name(name: str) -> None:
    """Refuse what lm-eval's folders, or a board, could not call the model by."""
    is_path = name.startswith((".", "/", "~")) or not name.strip()
    if is_path or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        raise UnsupportedError(
            f"a model is called {name[:_LONGEST_NAME]!r}; a name is printable, begins with none of "
            f". / ~ and has at most {_LONGEST_NAME} bytes"
        )


def _refuse_own(arguments: Mapping[str, Any]) -> None:
    for name, instead in _OWN_ARGUMENTS.items():
        if name in arguments:
            raise UnsupportedError(
                f"{name}={arguments[name]!r} is among the arguments of the models, where the sweep "
                f"puts its own; {instead}"
            )


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple):
        raise UnsupportedError(f"{name} is {value!r}; write a list of names")
    return tuple(str(part).strip() for own in value for part in str(own).split(",") if part.strip())


def _lengths(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        value = [value]
    if isinstance(value, Mapping) or value in ("", [], ()):
        raise UnsupportedError(f"{name} is {value!r}; write lengths such as 1k,2k,4k")
    return tuple(sorted({_length(name, text) for text in _texts(name, value)}))


def _length(name: str, value: object) -> int:
    try:
        return tokens(str(value))
    except ValueError as error:
        raise UnsupportedError(
            f"{name} is {value!r}; write tokens, or 4k for 4096 of them"
        ) from error


def _limit_of_length(name: str, value: object) -> int:
    length = _length(name, value)
    if not length:
        raise UnsupportedError(f"{name} is {value!r}; write tokens, or 4k for 4096 of them")
    return length


def _mapping(name: str, value: object) -> dict[str, Any]:
    if isinstance(value, str):
        from lm_eval.utils import simple_parse_args_string

        return dict(simple_parse_args_string(value))
    if not isinstance(value, Mapping):
        raise UnsupportedError(f"{name} is {value!r}; write key: value pairs")
    return {str(key): own for key, own in value.items()}


def _number(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, int | float) or not is_number or not 0 < value < math.inf:
        raise UnsupportedError(f"{name} is {value!r}; write a positive number")
    return value


_OWN_ARGUMENTS = {
    "pretrained": "name checkpoints with --model NAME=CHECKPOINT",
    "max_length": "pass --max-length",
    "max_model_len": "pass --max-length",
}
_READERS: dict[str, Callable[[str, object], Any]] = {
    "model": _models,
    "suite": _texts,
    "lengths": _lengths,
    "tasks": _texts,
    "skip": _texts,
    "out": lambda name, value: Path(str(value)),
    "backend": lambda name, value: str(value),
    "model_args": _mapping,
    "metadata": _mapping,
    "max_length": _limit_of_length,
    "limit": _number,
    "device": lambda name, value: str(value),
    "batch_size": lambda name, value: str(value),
}
