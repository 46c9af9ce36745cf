"""Which function replays the cases of which benchmark.

An adapter is a function `replay(case: Case) -> Iterable[Check]` in `tasks/<benchmark>/golden.py`.
It looks at `case["kind"]`, calls the benchmark's own public functions on the recorded parts, and
yields one `Check` for everything that the case records. It yields none for a kind that it does not
know, which counts as a failure: a case is never passed without a comparison.

To plug in a benchmark, write the adapter and add its line to `ADAPTERS`.
"""

from collections.abc import Callable, Iterable
from importlib import import_module

from patheval.golden.case import Case, Check

Replay = Callable[[Case], Iterable[Check]]

ADAPTERS = {
    "babilong": "patheval.tasks.babilong.golden",
    "fflm": "patheval.tasks.fflm.golden",
    "longbench_e": "patheval.tasks.longbench_e.golden",
    "phonebook": "patheval.tasks.phonebook.golden",
    "ruler": "patheval.tasks.ruler.golden",
    "word_problem": "patheval.tasks.word_problem.golden",
}
"""Module of each benchmark's `replay`; a string, for `patheval` does not import the tasks."""


def replay_function(benchmark: str) -> Replay | None:
    """Returns what replays the cases of a benchmark, or None if patheval has no such benchmark."""
    module = ADAPTERS.get(benchmark)
    if module is None:
        return None
    function: Replay = import_module(module).replay
    return function
