"""Making the zoo, step by step: `patheval zoo train prepare`, `model`, `collect`; or `states`."""

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from patheval.errors import PrerequisiteError
from patheval.leaderboard.states import STATES
from patheval.zoo import CHECKPOINTS, mixture, recipes, shipping, train
from patheval.zoo import tokenizer as zoo_tokenizer
from patheval.zoo.documents.corpus import load_installed
from patheval.zoo.state_tracking import family
from patheval.zoo.state_tracking import recipes as state_recipes
from patheval.zoo.state_tracking import shipping as state_shipping
from patheval.zoo.tokenizer import TOKENIZER_NAME

_TOKENIZER_TEXTS = 12_000
_TOKENIZER_TEXT_CHARS = 2_000


def _prepare(options: argparse.Namespace) -> None:
    """Writes the shards of one stage; trains the tokenizer first unless it is there."""
    recipe = recipes.find(next(iter(recipes.LONG_CONTEXT)), options.stage)
    shards = train.shard_folder(options.data, recipe.stage)
    shards.mkdir(parents=True, exist_ok=True)
    corpus = load_installed()
    if not (options.data / TOKENIZER_NAME).exists():
        texts = mixture.sample_texts(
            corpus,
            recipe.shares,
            f"{recipe.data_seed}/tokenizer",
            count=_TOKENIZER_TEXTS,
            num_chars=_TOKENIZER_TEXT_CHARS,
        )
        zoo_tokenizer.save(zoo_tokenizer.train(texts, recipe.vocab_size), options.data)
    facts = {
        "corpus_sha256": corpus.fingerprint(),
        "code_chars": sum(map(len, corpus.code)),
        "prose_chars": sum(map(len, corpus.prose)),
    }
    (shards / shipping.DATA_NAME).write_text(json.dumps(facts, indent=1) + "\n")
    mixture.ShardMaker(
        corpus=corpus,
        tokenizer=Tokenizer.from_file(str(options.data / TOKENIZER_NAME)),
        recipe=recipe,
        folder=shards,
    ).write_all(options.processes)


def _train(options: argparse.Namespace) -> None:
    """Trains one stage of one model; the shards may still be in the making."""
    _require_fla()
    recipe = recipes.find(options.name, options.stage)
    trainer = train.Trainer(recipe, options.data, options.out)
    trainer.compile()
    trainer.resume()
    trainer.run(time.time() + options.seconds)


def _require_fla() -> None:
    if importlib.util.find_spec("fla") is None:
        raise PrerequisiteError(
            "the long-context family is trained with flash-linear-attention, which is not "
            "installed; run pip install 'patheval[zoo]'"
        )
    if not torch.cuda.is_available():
        raise PrerequisiteError(
            f"flash-linear-attention trains on GPUs only and torch {torch.__version__} sees none; "
            "run this on a machine with one, with a torch built for it"
        )


def _collect(options: argparse.Namespace) -> None:
    """Puts finished models where they ship, with cards and manifest."""
    shipping.collect(options.out, options.data, options.checkpoints)


def _states(options: argparse.Namespace) -> None:
    """Trains and tests the state-tracking family."""
    family.make(
        options.out,
        options.tasks,
        options.attentions,
        layers=options.layers,
        seconds=options.seconds,
        limit=options.limit,
        num_processes=options.processes,
    )


def _collect_states(options: argparse.Namespace) -> None:
    """Puts one seed of each state-tracking model where it ships, and writes all seeds' errors."""
    for name in state_shipping.collect(options.out, options.checkpoints, options.errors):
        print(name)  # noqa: T201


def _parse(arguments: Sequence[str], prog: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(required=True)

    prepare = commands.add_parser("prepare", help=_prepare.__doc__)
    prepare.add_argument("--processes", type=int, default=12)
    prepare.set_defaults(run=_prepare)

    training = commands.add_parser("model", help=_train.__doc__)
    training.add_argument("name", choices=list(recipes.LONG_CONTEXT))
    training.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after this time"
    )
    training.set_defaults(run=_train)

    collect = commands.add_parser("collect", help=_collect.__doc__)
    collect.add_argument("--checkpoints", type=Path, default=CHECKPOINTS)
    collect.set_defaults(run=_collect)

    states = commands.add_parser("states", help=_states.__doc__)
    tasks, attentions = list(state_recipes.LAYER_COUNTS), list(state_recipes.ATTENTIONS)
    states.add_argument("--tasks", nargs="+", choices=tasks, default=tasks)
    states.add_argument("--attentions", nargs="+", choices=attentions, default=attentions)
    states.add_argument("--layers", nargs="+", type=int, help="train these numbers of layers alone")
    states.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="training time of the models of one task with one number of layers",
    )
    states.add_argument("--limit", type=int, help="first sequences of each test to take")
    states.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    states.set_defaults(run=_states)

    collect_states = commands.add_parser("collect-states", help=_collect_states.__doc__)
    collect_states.add_argument("--checkpoints", type=Path, default=CHECKPOINTS)
    collect_states.add_argument(
        "--errors", type=Path, required=True, help=f"file to write, such as results/{STATES}"
    )
    collect_states.set_defaults(run=_collect_states)

    for command in (prepare, training, collect):
        command.add_argument("--data", type=Path, required=True, help="tokenizer and shards")
    for command in (prepare, training):
        command.add_argument("--stage", type=int, choices=(1, 2), required=True)
    for command in (training, collect, states, collect_states):
        command.add_argument("--out", type=Path, required=True, help="the runs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str], prog: str) -> None:
    """Runs one step.

    Args:
        arguments: Of the command line, behind `prog`.
        prog: How the command was called, for its help.

    Raises:
        PrerequisiteError: A step needs a GPU or a package that is not there.
        CheckpointError: Runs are not as a step needs them.
    """
    options = _parse(arguments, prog)
    options.run(options)
