"""A run of all three request types that tests kill and start again, in a process of its own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance

from patheval.model_adapters.path_ref import PathRefLM


def requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    """Instances as lm-eval makes them."""
    return [
        Instance(request_type=kind, doc={}, arguments=own, idx=i) for i, own in enumerate(arguments)
    ]


def run(lm: Any, num_requests: int) -> dict[str, Any]:
    """Answers to the same requests each time."""
    words = [f"{i} apples and {i * i} pears" for i in range(num_requests)]
    pairs = [(word, f" {choice}") for word in words for choice in ("red", "green")]
    greedy = {"until": ["\n"], "max_gen_toks": 6}
    drawn = {"until": [], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0}
    generations = [(word, greedy) for word in words]
    if not isinstance(lm, PathRefLM):
        generations += [(words[0], drawn)] * 3
    return {
        "loglikelihood": lm.loglikelihood(requests("loglikelihood", pairs)),
        "rolling": lm.loglikelihood_rolling(
            requests("loglikelihood_rolling", [(word * 7,) for word in words])
        ),
        "generate": lm.generate_until(requests("generate_until", generations)),
    }


def main(
    model: str, checkpoint: str, store: str, log: str, num_requests: int, results: str
) -> None:
    """Run.

    Args:
        model: `path` or `path-ref`.
        checkpoint: Folder.
        store: The argument `resume`.
        log: File that gets a byte for each answer that the model gives, before it is stored.
        num_requests: Requests of each type.
        results: File for all results as JSON.
    """
    arguments = {
        "pretrained": checkpoint,
        "max_length": 100,
        "dtype": "float32",
        "overlength": "truncate",
        "resume": store,
    }
    if model == "path":
        from patheval.model_adapters.path_vllm import PathLM

        lm: Any = PathLM.create_from_arg_obj(arguments | {"max_num_seqs": 4}, {"batch_size": 1})
    else:
        lm = PathRefLM.create_from_arg_obj(arguments, {"batch_size": 1, "device": "cpu"})
    original = lm._run
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def logged(*args: Any) -> Iterator[Any]:
        for answers in original(*args):
            os.write(descriptor, b"." * len(answers))
            yield answers

    lm._run = logged
    Path(results).write_text(json.dumps(run(lm, num_requests)))
