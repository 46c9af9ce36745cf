"""Tasks of every family, run by `--model path` in a real engine."""

import shutil
from pathlib import Path

import pytest
from answering_lm import manager
from lm_eval import evaluator
from own_sources import write_sources

from patheval.model_adapters.path_vllm import PathLM
from patheval.tasks.longbench_e.sets import SETS

MODEL = "zoo:path-fox"
# What 768 symbols of MQRAR take; other prompts have up to 1024 tokens.
MAX_LENGTH = 2112
ESSAYS = ["niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"]
GENERATED = ["niah_single_1", "niah_multikey_2", "niah_multikey_3", "fwe", "qa_1", "qa_2"]
LONGBENCH = [f"path_longbench_e_{name}_0-4k" for name in SETS]
TASKS = [
    *(f"path_phonebook_{label}" for label in ("512", "any")),
    *(f"path_ruler_{name}_512" for name in GENERATED + ESSAYS),
    *(f"path_ruler_{name}_512_offline" for name in ESSAYS[::3]),
    *(f"path_ruler_{name}_1k" for name in ("vt", "cwe")),
    *(f"path_babilong_qa{number}_1k" for number in (1, 5, 7, 10)),
    *(f"path_babilong_qa{number}_1k_offline" for number in (1, 5)),
    "path_babilong_qa10_any",
    *LONGBENCH,
    *(f"path_ppl_{corpus}_512" for corpus in ("pg19", "codeparrot", "narrativeqa")),
    *(f"path_ppl_{corpus}_512_offline" for corpus in ("plays", "code")),
    "path_mqrar_n4",
    "path_a5",
    "path_s5",
]


@pytest.fixture(scope="module")
def tasks(data_folder, tmp_path_factory):
    """Every task's own metadata, among them a folder with all sources."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(Path(data_folder) / "ruler", folder / "ruler")
    write_sources(folder)
    return manager(
        pretrained=MODEL,
        max_prompt_tokens=256,
        length=900,
        data_dir=str(folder),
        own_data=True,
    )


@pytest.mark.slow
def test_every_family_runs_in_the_engine(tasks):
    lm = PathLM(pretrained=MODEL, dtype="float32", max_length=MAX_LENGTH)
    try:
        results = evaluator.simple_evaluate(
            model=lm,
            tasks=[*TASKS, "path_table1"],
            limit=2,
            task_manager=tasks,
            # Budgets of hundreds of tokens take minutes on a CPU.
            gen_kwargs={"max_gen_toks": 12},
            bootstrap_iters=0,
        )
    finally:
        lm.close()
    scores = results["results"]
    assert set(TASKS) <= set(scores)
    assert {f"path_fflm_{split}" for split in ("iid", "sparse", "dense")} <= set(scores)
    for name in results["configs"]:
        assert results["n-samples"][name]["effective"] == 2, name
        values = [
            value
            for key, value in scores[name].items()
            if key.endswith(",none") and "_stderr" not in key
        ]
        assert values and all(value == value and value >= 0 for value in values), name
    # What the model was trained for, it does.
    assert scores["path_phonebook_512"]["exact_match,none"] == 1
    assert scores["path_ruler_niah_single_1_512"]["score,none"] == 1
    assert all(scores[name]["cut,none"] == 1 for name in LONGBENCH)
    assert 1 < scores["path_ppl_plays_512_offline"]["perplexity,none"] < 1920
