import resource
import subprocess
import sys

import pytest

HEAVY = ("datasets", "lm_eval", "numpy", "torch", "transformers", "triton", "vllm")


@pytest.mark.parametrize("module", ["patheval", "patheval.errors", "patheval.cli.main"])
def test_import_needs_nothing_heavy(run_python, module):
    run_python(f"""
import sys
sys.modules.update(dict.fromkeys({HEAVY}))
import {module}
""")


@pytest.mark.parametrize("module", ["patheval", "patheval.errors", "patheval.cli.main"])
def test_import_pulls_in_nothing_heavy(run_python, module):
    assert run_python(f"import sys, {module}; print(*sys.modules.keys() & {set(HEAVY)})") == ""


def test_help_is_quick():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "patheval", "--help"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
