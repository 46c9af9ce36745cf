"""From tiny trained runs of the state-tracking family to checkpoints that `--model` can load."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from answering_lm import evaluate
from click.testing import CliRunner

from patheval import zoo
from patheval.cli.main import cli
from patheval.errors import CheckpointError, ResultsError
from patheval.leaderboard import states
from patheval.model_adapters.path_ref import PathRefLM
from patheval.tasks.sequences import SequenceSource
from patheval.zoo.state_tracking import family, recipes, shipping
from patheval.zoo.state_tracking.shipping import choose, collect, read_errors
from patheval.zoo.state_tracking.training import RESULTS_NAME

NUM_SAMPLES = 3
ATTENTIONS = ("rope", "path-fox")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few steps of two tasks, tested on a few sequences as if those were all."""

    def small(source: SequenceSource) -> SequenceSource:
        return replace(source, num_samples=NUM_SAMPLES)

    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "_FFLM", replace(recipes._FFLM, num_steps=3, batch_size=2))
        patch.setattr(
            recipes,
            "_A5",
            replace(recipes._A5, num_steps=3, batch_size=2, hidden_size=32, num_heads=1),
        )
        patch.setitem(recipes.LAYER_COUNTS, "a5", (1, 2))
        for task in ("fflm", "a5"):
            patch.setitem(recipes.TESTS, task, tuple(map(small, recipes.TESTS[task])))
        family.make(folder, ["fflm", "a5"], ATTENTIONS)
    return folder


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in ("fflm", "a5"):
        small = tuple(replace(s, num_samples=NUM_SAMPLES) for s in recipes.TESTS[task])
        monkeypatch.setitem(recipes.TESTS, task, small)


@pytest.fixture
def shipped(
    runs: Path, few_samples: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Names of what is shipped into a zoo of its own."""
    # As if naming no label were enough to have learned the task.
    monkeypatch.setattr(states, "REQUIRED_ACCURACY", 0.0)
    names = collect(runs, tmp_path / "zoo", tmp_path / "results" / states.STATES)
    monkeypatch.setattr(zoo, "CHECKPOINTS", tmp_path / "zoo")
    return names


def test_one_seed_of_each_attention_kind_ships_with_all_it_takes(
    shipped: list[str], tmp_path: Path
) -> None:
    assert shipped == ["fflm-rope", "fflm-path-fox", "a5-rope", "a5-path-fox"]
    assert list(zoo.manifest()) == sorted(shipped)
    output = CliRunner().invoke(cli, ["zoo", "verify"], catch_exceptions=False).output
    assert [line.partition(":")[0] for line in output.splitlines()] == sorted(shipped)
    for name in shipped:
        stored = json.loads((Path(zoo.resolve(f"zoo:{name}")) / "logprobs.json").read_text())
        assert len(stored["next_logprobs"]) == 200
        assert len(set(stored["input_ids"])) > 4  # symbols of the task, not <pad>


def test_every_seeds_errors_are_published_and_stand_in_the_card(
    shipped: list[str], runs: Path, tmp_path: Path
) -> None:
    rows = states.read(tmp_path / "results" / states.STATES)
    tested = [json.loads(line) for line in (runs / RESULTS_NAME).read_text().splitlines()]
    assert len(rows) == len(tested) == 2 * 3 * 3 + 2 * 2 * 3
    assert {row.zoo for row in rows} == {None, *shipped}
    for name in shipped:
        (own,) = {(row.seed, row.weights_sha256) for row in rows if row.zoo == name}
        folder = zoo.CHECKPOINTS / name
        assert own[1] == zoo.sha256(folder / "model.safetensors")
        card = (folder / "card.md").read_text()
        assert f"the seed in the middle by its worst error, seed {own[0]}." in card
        family_name, _, attention = name.partition("-")
        for row in rows:
            if (row.family, row.attention) == (family_name, attention) and row.zoo == name:
                assert states.percent(row.error) in card
    card = (zoo.CHECKPOINTS / "a5-rope" / "card.md").read_text()
    assert "1 layer, hidden size 32" in card
    assert "- With 2 layers, mean error in percent: path_a5 " in card
    assert "The recipe has 8000 steps; these runs were cut" in card
    parts = "\n\n".join(states.markdown_parts(rows))
    header = "| attention | layers | seeds | path_fflm_iid | path_fflm_sparse | path_fflm_dense |"
    assert f"{header} steps |" in parts
    assert {(row.family, row.steps, row.planned_steps) for row in rows} == {
        ("fflm", 3, 4000),
        ("a5", 3, 8000),
    }
    assert "path_a5 3 of 8000 with 1 layer; path_a5 3 of 8000 with 2 layers" in parts
    assert "path_fflm_iid, path_fflm_sparse, path_fflm_dense 3 of 4000 with 1 layer" in parts
    assert "Fewest layers" not in parts
    assert "Seeds that name" not in parts


@pytest.mark.parametrize("name", ["fflm-path-fox", "a5-rope"])
def test_lm_eval_counts_the_published_errors(name: str, shipped: list[str], tmp_path: Path) -> None:
    lm = PathRefLM.create_from_arg_obj({"pretrained": f"zoo:{name}"}, {"device": "cpu"})
    rows = [row for row in states.read(tmp_path / "results" / states.STATES) if row.zoo == name]
    assert rows
    for row in rows:
        results = evaluate(
            row.task, lm, limit=None, pretrained=f"zoo:{name}", num_samples=NUM_SAMPLES
        )
        # Two logits that nearly tie may fall either way.
        error = results["results"][row.task]["error,none"]
        assert error * row.labels == pytest.approx(row.wrong, abs=1.01)


def _row(family: str, attention: str, layers: int, seed: int, error: int) -> states.StateRow:
    return states.StateRow(
        family=family,
        attention=attention,
        num_layers=layers,
        seed=seed,
        task=f"path_{family}",
        error=error / 1000,
        wrong=error,
        labels=1000,
        sequences=10,
        steps=1,
        planned_steps=1,
        seconds=1.0,
        route="",
        device="cpu",
        torch="2",
        weights_sha256="",
        zoo=None,
    )


def test_choice_is_the_middle_seed_of_the_fewest_layers_that_suffice() -> None:
    errors = {
        ("path", 1): (500, 10, 20),
        ("path", 2): (80, 0, 3),
        ("path", 3): (0, 0, 0),
        ("rope", 1): (900, 800, 850),
        ("rope", 2): (300, 0, 700),
    }
    rows = [
        _row("a5", *model, seed, error)
        for model, own in errors.items()
        for seed, error in enumerate(own, start=1)
    ]
    assert choose(rows) == {"a5-path-2-seed3": "a5-path", "a5-rope-2-seed1": "a5-rope"}
    parts = list(states.markdown_parts(rows))
    assert "90 % of the labels: path 2, rope none of 1 to 2." in parts[-1]
    # What no kind of attention has learned does not ship.
    assert choose([row for row in rows if row.attention == "rope"]) == {}


def test_of_the_mqrar_tasks_the_first_that_is_learned_ships() -> None:
    errors = {1: 900, 2: 0, 3: 0}
    rows = [
        replace(_row(f"mqrar{n}", "path", 2, 1, error), task=f"path_mqrar_n{n}")
        for n, error in errors.items()
    ]
    assert choose(rows) == {"mqrar2-path-2-seed1": "mqrar2-path"}


def test_partly_tested_runs_are_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"on 3 of the 16000 sequences of path_fflm_iid"):
        read_errors(runs)
    with pytest.raises(CheckpointError, match=r"errors\.jsonl is missing"):
        read_errors(tmp_path)
    shutil.copy(runs / RESULTS_NAME, tmp_path)
    with pytest.raises(CheckpointError, match="has errors of fflm-rope-1-seed1, which is not in"):
        read_errors(tmp_path)


def test_too_large_a_zoo_is_refused(
    runs: Path, few_samples: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "REQUIRED_ACCURACY", 0.0)
    monkeypatch.setattr(shipping.shipping, "MAX_TOTAL_BYTES", 2**18)
    with pytest.raises(CheckpointError, match=r"all checkpoints together would take 0.*MiB"):
        collect(runs, tmp_path / "zoo", tmp_path / states.STATES)


@pytest.mark.parametrize(
    "change", [{"wrong": 1}, {"labels": 0}, {"sequences": None, "extra": 1}, {"error": "x"}]
)
def test_damaged_errors_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / states.STATES
    states.write([_row("a5", "path", 1, 1, 500)], path)
    assert states.read(path) == [_row("a5", "path", 1, 1, 500)]
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(ResultsError, match=r"line 1 of .*states\.jsonl is damaged"):
        states.read(path)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0"), (1e-6, "0.0001"), (0.403, "40.3"), (0.9, "90"), (1, "100"), (3.2e-5, "0.0032")],
)
def test_percent_shows_one_label_in_a_million(share: float, text: str) -> None:
    assert states.percent(share) == text
