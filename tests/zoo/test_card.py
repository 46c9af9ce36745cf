import json

import pytest

from patheval.zoo import CHECKPOINTS, card, manifest, recipes
from patheval.zoo.train import LOG_NAME


def test_card_states_what_the_log_says() -> None:
    log: list[card.Entry] = [
        {
            "recipe": {**vars(recipes.find("fox", 1)), "shares": {"books": 3.0, "code": 1.0}},
            "num_parameters": 3_100_000,
            "torch": "2.11",
            "device": "GPU",
        },
        {"step": 1, "tokens": 65_536, "loss": 7.5, "seconds": 1.0},
        {"step": 1, "probes": {"needle_512": 0.25}},
        {"step": 2, "tokens": 131_072, "loss": 6.25, "seconds": 2.0},
        {"step": 2, "final_probes": {"needle_512": 0.5}},
    ]
    facts = [{"code_chars": 9_000_000, "prose_chars": 30_000_000, "corpus_sha256": "abc"}]
    text = card.write("fox", log, facts)
    assert "3.10M parameters" in text
    assert "books 75.0 %, code 25.0 %" in text
    assert "| training loss | 7.500 | 6.250 |" in text
    assert "| 1 | 25.0 |\n| 2, bf16 | 50.0 |" in text
    assert "- Below 90.0 %: needle 512" in text


@pytest.mark.parametrize("name", sorted(manifest().keys() & recipes.LONG_CONTEXT.keys()))
def test_shipped_log_holds_every_stage_as_recipes_define_it(name: str) -> None:
    lines = (CHECKPOINTS / name / LOG_NAME).read_text().splitlines()
    logged = [entry["recipe"] for entry in map(json.loads, lines) if "recipe" in entry]
    assert logged == [vars(stage) for stage in recipes.LONG_CONTEXT[name]]  # type: ignore[index]
