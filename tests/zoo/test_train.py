import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from patheval.zoo import mixture, models, probes, recipes, train
from patheval.zoo import tokenizer as zoo_tokenizer
from patheval.zoo.documents.corpus import Corpus

_RECIPE = replace(
    recipes.find("rope", 1),
    vocab_size=600,
    hidden_size=64,
    intermediate_size=64,
    num_layers=1,
    num_heads=1,
    seq_len=64,
    batch_size=4,
    num_steps=20,
    warmup_steps=5,
    shares=dict.fromkeys(mixture.KINDS, 1.0),
)


@pytest.fixture
def data(corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    shards = train.shard_folder(folder, 1)
    shards.mkdir(parents=True)
    zoo_tokenizer.save(tokenizer, folder)
    mixture.ShardMaker(corpus, tokenizer, _RECIPE, shards).write(0)
    return folder


def _weights(trainer: train.Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LENGTHS", ())
    monkeypatch.setattr(models, "save", lambda *_: None)


def test_run_that_was_stopped_goes_on_to_the_same_weights(data: Path, tmp_path: Path) -> None:
    whole = train.Trainer(_RECIPE, data, tmp_path / "whole")
    assert whole.run()

    stopped = train.Trainer(_RECIPE, data, tmp_path / "parts")
    assert not stopped.run(deadline=-math.inf)
    assert 0 < stopped.step < _RECIPE.num_steps
    resumed = train.Trainer(_RECIPE, data, tmp_path / "parts")
    resumed.resume()
    assert resumed.run()
    for expected, actual in zip(_weights(whole), _weights(resumed), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)

    log = train.run_folder(tmp_path / "parts", "rope", 1) / train.LOG_NAME
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [entry["step"] for entry in entries if "loss" in entry]
    assert steps == list(range(1, _RECIPE.num_steps + 1))
    assert entries[-1]["step"] == _RECIPE.num_steps
    assert "final_probes" in entries[-1]


def test_compiling_leaves_weights_alone(data: Path, tmp_path: Path) -> None:
    trainer = train.Trainer(_RECIPE, data, tmp_path)
    before = _weights(trainer)
    trainer.compile()
    for expected, actual in zip(before, _weights(trainer), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_llama_loads_the_shipped_names() -> None:
    folder = Path(recipes.__file__).parent / "checkpoints" / "rope"
    model = models.build(recipes.find("rope", 1))
    models.load(model, folder)
    stored = load_file(folder / models.WEIGHTS_NAME)
    torch.testing.assert_close(
        model.state_dict()["model.layers.3.self_attn.q_proj.weight"],
        stored["model.layers.3.attn.q_proj.weight"].float(),
        rtol=0,
        atol=0,
    )
