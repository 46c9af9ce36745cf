"""vLLM's server with a PaTH checkpoint, asked by lm-eval's own client: the same scores."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from patheval.model_adapters.path_ref import PathRefLM

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
MAX_LENGTH = 512
START_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "path-fox"
    shutil.copytree(CHECKPOINTS / "path-fox-d64-gqa", folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Address of a server, which `vllm serve` starts too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = {
        "model": folder,
        "served-model-name": "served",
        "dtype": "float32",
        "max-model-len": MAX_LENGTH,
        "host": "127.0.0.1",
        "port": port,
    }
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"),
            *(text for name, value in arguments.items() for text in (f"--{name}", str(value))),
        ]
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(START_TIMEOUT_S):
            assert process.poll() is None, "the server has ended"
            try:
                urllib.request.urlopen(f"{address}/health")
                break
            except OSError:
                time.sleep(1)
        else:
            pytest.fail("the server does not answer")
        yield address
    finally:
        process.terminate()
        process.wait(60)


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=own, idx=i, metadata=("task", i, 1))
        for i, own in enumerate(arguments)
    ]


@pytest.mark.slow
def test_a_server_gives_the_scores_of_the_model(folder: Path, url: str) -> None:
    client = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions",
        model="served",
        tokenizer=str(folder),
        tokenizer_backend="huggingface",
        add_bos_token=True,  # Without it, the client sends no BOS.
        max_length=MAX_LENGTH,
    )
    reference = PathRefLM.create_from_arg_obj(
        {"pretrained": str(folder), "max_length": MAX_LENGTH, "resume": "off"}, {"device": "cpu"}
    )
    pairs = [("Once upon", " a time"), ("x" * 300, "yz"), ("x" * 300, "ab"), ("a b", " c")]
    requests = instances("loglikelihood", *pairs)
    got, want = client.loglikelihood(requests), reference.loglikelihood(requests)
    assert [x for x, _ in got] == pytest.approx([x for x, _ in want], abs=1e-3)
    assert [x for _, x in got] == [x for _, x in want]

    texts = instances("loglikelihood_rolling", ("some words",), ("long text " * 40,))
    assert client.loglikelihood_rolling(texts) == pytest.approx(
        reference.loglikelihood_rolling(texts), rel=1e-5, abs=1e-3
    )

    settings = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    prompts = instances("generate_until", ("Once", settings), ("upon " * 60, settings))
    got_texts, want_texts = client.generate_until(prompts), reference.generate_until(prompts)
    # vLLM leaves out a character whose bytes are not complete at the end.
    assert [t.rstrip("\ufffd") for t in got_texts] == [t.rstrip("\ufffd") for t in want_texts]
