import json
import math
import multiprocessing
from dataclasses import replace
from multiprocessing.pool import Pool

import numpy as np
import pytest
import torch

from patheval.checkpoint.reader import open_checkpoint
from patheval.errors import CheckpointError
from patheval.kernels.definition import attention_by_definition
from patheval.reference_model import ReferenceModel
from patheval.tasks.fflm import sequences as fflm
from patheval.zoo.state_tracking import data, family, recipes, training
from patheval.zoo.state_tracking.attention import attend
from patheval.zoo.state_tracking.model import StackedModel


def _recipe(task, attention, **changes):
    (recipe,) = recipes.find(task, [attention], 1)
    return replace(recipe, hidden_size=32, num_heads=2, batch_size=4, **changes)


@pytest.fixture(scope="module")
def pool() -> Pool:
    with multiprocessing.get_context("fork").Pool(1) as processes:
        yield processes


def _short(part, num_steps, seq_len):
    return data.Batch(
        *(
            np.ascontiguousarray(array[:num_steps, ..., :seq_len])
            for array in (part.ids, part.labels)
        )
    )


@pytest.mark.parametrize("seq_len, chunk_size", [(1, 8), (21, 32), (64, 16), (100, 32)])
@pytest.mark.parametrize("kind", recipes.ATTENTIONS)
def test_attention_is_the_definitions(kind, seq_len, chunk_size):
    torch.manual_seed(seq_len)
    q, k, v, w = (torch.randn(2, seq_len, 16, dtype=torch.float64) for _ in range(4))
    # Nearly parallel w with beta near 2: the worst case for the inverse.
    w = torch.nn.functional.normalize(w[:, :1] + 0.1 * w, dim=-1)
    beta = 2 - 0.1 * torch.rand(2, seq_len, dtype=torch.float64)
    log_fgate = torch.nn.functional.logsigmoid(torch.randn(2, seq_len, dtype=torch.float64))
    extra = {
        "w": w if kind.startswith("path") else None,
        "beta": beta if kind.startswith("path") else None,
        "log_fgate": log_fgate if kind.endswith("fox") else None,
    }
    expected = attention_by_definition(
        *(x.transpose(0, 1) for x in (q, k, v)),
        **{name: None if x is None else x.transpose(0, 1) for name, x in extra.items()},
        sm_scale=0.3,
        gate_inside_scale=kind == "path-fox",
    )
    for dtype, atol in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        actual = attend(
            *(x.to(dtype) for x in (q, k, v)),
            **{name: None if x is None else x.to(dtype) for name, x in extra.items()},
            sm_scale=0.3,
            gate_scale=0.3 if kind == "path-fox" else 1.0,
            chunk_size=chunk_size,
        )
        torch.testing.assert_close(actual.transpose(0, 1).double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", recipes.ATTENTIONS)
def test_saved_model_computes_what_was_trained(kind, tmp_path):
    recipe = replace(_recipe("a5", kind), num_layers=2, seeds=(1, 2))
    model = StackedModel(recipe, data.vocab_size("a5"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.round_to_bfloat16()
    ids = torch.randint(3, data.vocab_size("a5"), (140,))
    for index in range(2):
        model.save(index, tmp_path / str(index))
        reference = ReferenceModel(open_checkpoint(tmp_path / str(index)))
        expected = reference.logits(reference.prefill(ids.tolist())[0])
        with torch.no_grad():
            actual = model(ids.expand(2, 3, -1))[index, 1]
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", recipes.ATTENTIONS)
def test_training_lowers_the_loss(kind):
    recipe = _recipe("fflm", kind, num_steps=50, warmup_steps=5, seeds=(1,), peak_lr=5e-3)
    part = _short(data.training_part(recipe, 0), 50, 40)
    trainer = training.Trainer(recipe, torch.device("cpu"))
    first, _ = trainer.train(_short(part, 5, 40))
    for _ in range(2):
        last, _ = trainer.train(_short(part, 20, 40))
    assert last.item() < 0.5 * first.item()


def test_seeds_in_one_stack_do_not_touch_each_other():
    both = _recipe("a5", "path-fox", num_steps=6, seeds=(1, 2))
    part = _short(data.training_part(both, 0), 6, 12)
    stack = training.Trainer(both, torch.device("cpu"))
    stack.train(part)
    for index, seed in enumerate(both.seeds):
        alone = training.Trainer(replace(both, seeds=(seed,)), torch.device("cpu"))
        alone.train(data.Batch(part.ids[:, index : index + 1], part.labels[:, index : index + 1]))
        for name, expected in alone.model.weights().items():
            torch.testing.assert_close(
                stack.model.weights()[name][index], expected[0], rtol=1e-4, atol=1e-5
            )


def test_labels_are_counted_one_more_at_a_time_until_all_are():
    recipe = _recipe("a5", "rope", num_steps=100, first_labels=2, growing_share=0.5)
    trainer = training.Trainer(replace(recipe, accuracy_to_grow=0.0), torch.device("cpu"))
    part = _short(data.training_part(recipe, 0), 2, 21)
    assert (trainer._first_labels(part.labels) != data.NO_LABEL).sum(axis=-1).max() == 2
    trainer.train(part)
    assert trainer.num_labels == [3, 3, 3]
    trainer.step = 50
    trainer.train(part)
    assert trainer.num_labels == [None, None, None]


def test_training_parts_follow_the_tasks_stream():
    recipe = _recipe("fflm", "rope")
    part = data.training_part(recipe, 1)
    index = data.STEPS_PER_PART * recipe.batch_size + 3 * recipe.batch_size + 2
    sequence = fflm.IID.training_sequence(2, index)
    symbols = ["", "", "", *fflm.ALPHABET]
    assert [symbols[i] for i in part.ids[3, 1, 2, 1:]] == list(sequence.symbols[:-1])
    assert {
        position - 1: symbols[part.labels[3, 1, 2, position]]
        for position in np.flatnonzero(part.labels[3, 1, 2])
    } == dict(sequence.labels)


def test_family_trains_saves_and_counts_what_path_ref_would(tmp_path, pool, monkeypatch):
    base = replace(recipes._A5, batch_size=2, hidden_size=32, num_heads=2, num_steps=50)
    monkeypatch.setattr(recipes, "_A5", base)
    monkeypatch.setitem(recipes.LAYER_COUNTS, "a5", (1, 2))
    family.make(tmp_path, ["a5"], ["path"], layers=[1, 2, 9], limit=3, num_processes=1)
    entries = [
        json.loads(line) for line in (tmp_path / training.RESULTS_NAME).read_text().splitlines()
    ]
    assert [entry["model"] for entry in entries] == [
        f"a5-path-{layers}-seed{seed}" for layers in (1, 2) for seed in (1, 2, 3)
    ]
    for entry in entries:
        folder = tmp_path / entry["model"]
        reference = ReferenceModel(open_checkpoint(folder))
        (part,) = data.test_parts("a5", recipes.TRAINING["a5"], folder, 3, pool)
        wrong = 0
        for ids, labels in zip(part.ids, part.labels, strict=True):
            best = reference.logits(reference.prefill(ids.tolist())[0]).argmax(-1).numpy()
            wrong += int(((best != labels) & (labels != data.NO_LABEL)).sum())
        assert entry["labels"] == 60
        assert abs(entry["wrong"] - wrong) <= 1
        log = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
        assert log[0]["recipe"]["seeds"] == [int(entry["model"][-1])]
        assert log[-1]["step"] == 50


def test_layers_without_a_recipe_are_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match="mqrar1 has recipes with 2 layers, none with 3; leave it"
    ):
        family.make(tmp_path, ["a5", "mqrar1"], ["path"], layers=[3])
    assert not list(tmp_path.glob("a5*"))


def test_steps_are_cut_to_the_seconds_given(tmp_path, pool):
    recipe = _recipe("a5", "rope", num_steps=10_000, seeds=(1,), warmup_steps=10)
    (trainer,) = training.train_group([recipe], tmp_path, seconds=3, pool=pool)
    assert 200 <= trainer.step == trainer.recipe.num_steps < 10_000


def test_without_a_limit_all_steps_of_the_recipe_are_made(tmp_path, pool):
    recipe = _recipe("a5", "rope", num_steps=225, seeds=(1,), warmup_steps=10)
    (trainer,) = training.train_group([recipe], tmp_path, seconds=math.inf, pool=pool)
    assert trainer.step == trainer.recipe.num_steps == 225
