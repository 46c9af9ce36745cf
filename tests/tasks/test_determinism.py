"""Every family's documents in any order, in any process, and for a tokenizer in plain Python."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from answering_lm import manager
from own_sources import write_sources
from transformers import ByT5Tokenizer

from patheval.errors import UnsupportedError

RULER = ["niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2",
         "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1",
         "qa_2"]  # fmt: skip
SIZED = [
    *(f"path_ruler_{name}_2k" for name in RULER),
    "path_phonebook_2k",
    "path_babilong_qa1_any",
    "path_babilong_qa3_any_offline",
]
TASKS = [
    *SIZED,
    "path_babilong_qa7_1k",
    "path_longbench_e_trec_4-8k",
    "path_ppl_narrativeqa_1k",
    *(f"path_fflm_{split}" for split in ("iid", "sparse", "dense")),
    *(f"path_mqrar_n{n_back}" for n_back in (1, 4)),
    "path_a5",
    "path_s5",
]


@pytest.fixture(scope="module")
def sources(data_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(Path(data_folder) / "ruler", folder / "ruler")
    write_sources(folder)
    return {"data_dir": str(folder), "own_data": True, "length": 2000}


_OTHER_PROCESS = """
import hashlib, json, random, sys
sys.path.insert(0, {support!r})
from answering_lm import manager

random.seed(7)
tasks = manager(tokenizer={tokenizer!r}, **{sources!r}).load({tasks!r})["tasks"]
names = sorted(tasks, reverse=True)
random.shuffle(names)
digests = {{}}
for index in (1, 0):
    for name in names:
        doc = json.dumps(tasks[name].dataset["test"][index], sort_keys=True)
        digests.setdefault(name, {{}})[str(index)] = hashlib.sha256(doc.encode()).hexdigest()
print(json.dumps(digests))
"""


@pytest.mark.slow
def test_documents_are_equal_in_any_order_and_process(english_folder, sources, run_python):
    tasks = manager(tokenizer=english_folder, **sources).load(TASKS)["tasks"]
    digests = {
        name: {
            str(index): hashlib.sha256(
                json.dumps(tasks[name].dataset["test"][index], sort_keys=True).encode()
            ).hexdigest()
            for index in range(2)
        }
        for name in TASKS
    }
    code = _OTHER_PROCESS.format(
        support=str(Path(__file__).parents[1] / "support"),
        tokenizer=english_folder,
        sources=sources,
        tasks=TASKS,
    )
    printed = run_python(code, PYTHONHASHSEED="4242", PYTHONWARNINGS="ignore")
    assert json.loads(printed.splitlines()[-1]) == digests


def test_tokenizer_without_a_fast_version_sizes_prompts_as_well(tmp_path, sources):
    ByT5Tokenizer().save_pretrained(tmp_path)
    given = sources | {"tokenizer": str(tmp_path), "length": 8192}
    names = [name.replace("2k", "8k") for name in SIZED]
    for name, task in manager(**given).load(names)["tasks"].items():
        doc = task.dataset["test"][0]
        text = doc["prompt"] + doc.get("answer_prefix", "")
        # A token for each byte, and one for the end of the text.
        assert doc["num_tokens"] == len(text.encode()) + 1, name
        budget = task.config.generation_kwargs["max_gen_toks"]
        assert 0.9 * doc["length"] < doc["num_tokens"] + budget <= doc["length"], name


@pytest.mark.parametrize("setting", [{"lenght": 1}, {"num_samples": 0}])
@pytest.mark.parametrize(
    "name",
    ["path_phonebook_512", "path_ruler_vt_1k", "path_babilong_qa1_1k", "path_babilong_qa1_any",
     "path_babilong_qa1_any_offline", "path_longbench_e_trec_0-4k", "path_ppl_pg19_512",
     "path_fflm_iid"],
)  # fmt: skip
def test_wrong_settings_are_refused_by_every_family(english_folder, sources, name, setting):
    with pytest.raises(UnsupportedError, match=r"lenght|num_samples is 0"):
        manager(tokenizer=english_folder, **(sources | setting)).load([name])
