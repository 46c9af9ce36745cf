"""Suites: which tasks a name stands for, and which of their lengths."""

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from patheval.leaderboard import catalogue
from patheval.suggestions import did_you_mean


@dataclass(frozen=True)
class Part:
    """Tasks of one benchmark.

    Attributes:
        benchmark: The benchmark's key in `catalogue`.
        subtasks: The tasks within it; empty for all.
        lengths: Labels of the lengths that are run where none are asked for; empty for all.
    """

    benchmark: str
    subtasks: tuple[str, ...] = ()
    lengths: tuple[str, ...] = ()


_RULER = catalogue.benchmark("ruler").average
_BABILONG = catalogue.benchmark("babilong").average

SUITES: dict[str, tuple[Part, ...]] = {
    "ruler": (Part("ruler", _RULER),),
    "phonebook": (Part("phonebook"),),
    "babilong": (Part("babilong", _BABILONG),),
    "longbench_e": (Part("longbench_e"),),
    "ppl": (Part("ppl"),),
    "state_tracking": (Part("fflm"), Part("mqrar"), Part("a5"), Part("s5")),
    "table2": (Part("zero_shot"),),
    "table3": (
        Part("ruler", _RULER, ("4k", "8k", "16k")),
        Part("babilong", _BABILONG, ("0k", "4k", "8k", "16k")),
        Part("phonebook", (), ("2k", "4k", "8k")),
        Part("longbench_e", catalogue.LONGBENCH_E),
    ),
    "table7": (Part("longbench_e", catalogue.LONGBENCH_E),),
}
SUITES["all"] = tuple(
    part
    for name in ("ruler", "phonebook", "babilong", "longbench_e", "ppl", "state_tracking", "table2")
    for part in SUITES[name]
)
"""Every suite's parts; `all` has each benchmark once."""

ZERO_SHOT = (*catalogue.TABLE_2, "wikitext")
"""lm-eval's own tasks of the paper's Table 2."""


@dataclass(frozen=True)
class Selection:
    """Chosen tasks.

    Attributes:
        tasks: Names, longest first.
        faults: What was asked for and does not exist.
    """

    tasks: tuple[str, ...]
    faults: tuple[str, ...]


def select(
    names: Collection[str],
    suites: Sequence[str],
    lengths: Sequence[int],
    patterns: Sequence[str],
    skip: Sequence[str] = (),
) -> Selection:
    """Chooses tasks by suites, lengths and patterns.

    Args:
        names: All tasks there are.
        suites: Keys of `SUITES`.
        lengths: Lengths in tokens; empty for each part's own. Tasks without a length are always
            chosen, and LongBench-E's buckets if they end within the longest.
        patterns: Further tasks, as names or glob patterns.
        skip: Tasks to leave out, likewise.
    """
    faults = []
    chosen: dict[str, int] = {}
    parsed = {name: catalogue.parse(name) for name in names if not name.endswith("_any")}
    covered: set[int] = set()
    for suite in suites:
        if suite not in SUITES:
            hint = did_you_mean(suite, SUITES)
            faults.append(f"there is no suite {suite}; {hint}choose from {', '.join(SUITES)}")
            continue
        for part in SUITES[suite]:
            found = {
                name: place
                for name, place in parsed.items()
                if place.benchmark == part.benchmark
                and (not part.subtasks or place.subtask in part.subtasks)
                and (part.benchmark != "zero_shot" or name in ZERO_SHOT)
            }
            if not found:
                faults.append(f"suite {suite} needs tasks of {part.benchmark}, and there are none")
            missing = set(part.subtasks) - {place.subtask for place in found.values()}
            if found and missing:
                listed = ", ".join(sorted(missing))
                faults.append(
                    f"suite {suite} needs {part.benchmark} tasks that do not exist: {listed}"
                )
            own = [catalogue.tokens(label) for label in part.lengths]
            for name, place in found.items():
                wanted = lengths or own
                if place.length is not None and wanted:
                    is_bucket = part.benchmark == "longbench_e"
                    if not (place.length <= max(wanted) if is_bucket else place.length in wanted):
                        continue
                    covered.add(place.length)
                chosen[name] = place.length or 0
    for pattern in patterns:
        matches = [name for name in fnmatch.filter(names, pattern)]
        if not matches:
            hint = did_you_mean(pattern, names)
            faults.append(f"no task matches {pattern}; {hint}`patheval tasks` lists them")
        chosen.update(
            dict.fromkeys(matches, 0) | {m: parsed[m].length or 0 for m in matches if m in parsed}
        )
    if suites and not faults:
        for length in sorted(set(lengths) - covered):
            known = sorted({p.length for p in parsed.values() if p.length})
            labels = ", ".join(map(catalogue.length_label, known))
            label = catalogue.length_label(length)
            faults.append(f"no task of the suite has the length {label}; there are {labels}")
    for pattern in skip:
        left_out = fnmatch.filter(chosen, pattern)
        if not left_out:
            faults.append(f"--skip {pattern} matches none of the chosen tasks; correct it")
        for name in left_out:
            del chosen[name]
    ordered = sorted(chosen, key=lambda name: (-chosen[name], name))
    return Selection(tuple(ordered), tuple(faults))
