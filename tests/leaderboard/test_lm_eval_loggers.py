"""lm-eval's own loggers accept what patheval's models record.

The trackers' packages are replaced by ones that write down their calls: what is tested is that
nothing in our results breaks lm-eval's side.
"""

import json
import os
import subprocess
import sys

import pytest

TRACKIO = """
import json, os
import huggingface_hub

_calls = open(os.environ["CALLS"], "a")

def _note(name, *arguments, **options):
    _calls.write(json.dumps([name, arguments, options], default=repr) + "\\n")
    _calls.flush()

class _Hub:
    def __init__(self, token=None):
        pass
    def whoami(self):
        return {"name": "me"}
    def __getattr__(self, name):
        return lambda *arguments, **options: _note(f"hub.{name}", *arguments, **options)

huggingface_hub.HfApi = _Hub

# The card is made from what it downloads again, not from what our models record.
from lm_eval.loggers import EvaluationTracker
EvaluationTracker.recreate_metadata_card = lambda self: _note("card")

class _Config(dict):
    def update(self, *arguments):
        _note("config", *arguments)

config = _Config()
Trace = dict

def init(**options):
    _note("init", **options)

def log(values, step=None):
    _note("log", values)

def finish():
    _note("finish")
"""


@pytest.mark.slow
def test_trackio_and_hub_get_results_samples_and_configuration(tmp_path):
    (tmp_path / "trackio.py").write_text(TRACKIO)
    calls = tmp_path / "calls.jsonl"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "CALLS": str(calls)}
    arguments = [
        *(sys.executable, "-m", "patheval", "run", "--model", "path-ref"),
        *("--model_args", "pretrained=zoo:rope", "--tasks", "path_phonebook_256", "--limit", "2"),
        *("--log_samples", "--output_path", str(tmp_path / "out")),
        *("--trackio_args", "project=mine"),
        "--hf_hub_log_args",
        "hub_results_org=me,push_results_to_hub=True,push_samples_to_hub=True,token=x",
    ]
    result = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    made = [json.loads(line) for line in calls.read_text().splitlines()]
    names = [name for name, *_ in made]
    assert names[0] == "init"
    assert {"config", "log", "finish", "hub.create_repo", "hub.upload_file"} <= set(names)
    logged = {}
    for name, values, _ in made:
        if name == "log":
            logged |= values[0]
    assert isinstance(logged["path_phonebook_256/exact_match"], float)
    assert "path_phonebook_256/sample" in logged
    (configuration,) = [values[0] for name, values, _ in made if name == "config"]
    assert len(configuration["cli_configs"]["checkpoint_sha256"]) == 64
    assert "Could not save" not in result.stderr
    assert "Failed to" not in result.stderr
