"""The model card of a checkpoint, written from its training log alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Entry = dict[str, Any]

_CURVE_POINTS = 10
_LEARNED = 0.9
_NOTES = """\
Teacher-forced exact match in percent, in the formats of PhoneBook and of RULER's niah_single_1 but
with made-up names, by prompt length in tokens. `bf16` marks the weights that the stage left. Strict
on needles: the number has to follow at once, so a model that first repeats the colon of the needle
counts as wrong here, while RULER looks for the number anywhere in the output.

The first stage asks for needles in a few dozen set phrases. That taught the phrases more than the
search: in the test's own wording the models mostly went on with the haystack. The second stage
words every document at random."""
_CLEAN = """\
Training text is made by seeded generators under `patheval/zoo/documents/` and read from the
Python standard library and installed packages; nothing is stored. Test samples cannot occur in it:

- no number that is made for a document has 10 digits, as PhoneBook's, or 7, as RULER's;
- names, keys and counted words are made-up syllables or words of the prose; the packages `names`
  and `wonderwords`, from which the tests draw, are never imported and their files never read;
- templates, places, things and people differ from those of RULER and BABILong;
- `patheval.zoo.leakage` holds the tests' sample formats as patterns: installed texts that match one
  are dropped, and `tests/zoo` checks the generated documents against them;
- random numbers come from string seeds (`train/...`, `train-2/...`), which no task uses; the probes
  have their own (`probe/...`);
- a tenth of the files, chosen by the SHA-256 of their path (`documents.corpus.is_held_out`), is
  kept out for perplexity measurements."""


@dataclass(frozen=True)
class _Stage:
    """The log of one stage.

    Attributes:
        start: first entry, with the recipe.
        losses: entries with a training loss.
        probes: step and results of each probe; the last one is of the saved weights.
    """

    start: Entry
    losses: list[Entry]
    probes: list[tuple[str, dict[str, float]]]


def _stages(log: list[Entry]) -> list[_Stage]:
    stages: list[_Stage] = []
    for entry in log:
        if "recipe" in entry:
            stages.append(_Stage(entry, [], []))
        elif "loss" in entry:
            stages[-1].losses.append(entry)
        elif "probes" in entry:
            stages[-1].probes.append((str(entry["step"]), entry["probes"]))
        else:
            stages[-1].probes.append((f"{entry['step']}, bf16", entry["final_probes"]))
    return stages


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def curve(entries: list[Entry], lines: Mapping[str, tuple[str, int]]) -> str:
    """A few points of a training log as a Markdown table.

    Args:
        entries: entries with a step.
        lines: label of each line -> key of the entries, and decimals.
    """
    last = len(entries) - 1
    kept = sorted({round(i * last / (_CURVE_POINTS - 1)) for i in range(_CURVE_POINTS)})
    points = [entries[index] for index in kept]
    return table(
        ["step", *(str(point["step"]) for point in points)],
        [
            [label, *(f"{point[key]:.{decimals}f}" for point in points)]
            for label, (key, decimals) in lines.items()
        ],
    )


def _curve(stage: _Stage) -> str:
    losses = [entry | {"millions": entry["tokens"] / 1e6} for entry in stage.losses]
    return curve(losses, {"tokens (M)": ("millions", 1), "training loss": ("loss", 3)})


def _history(stage: _Stage) -> str:
    names = list(stage.probes[-1][1])
    return table(
        ["step", *(name.replace("_", " ") for name in names)],
        [[step, *(_percent(results[name]) for name in names)] for step, results in stage.probes],
    )


def _training(stage: _Stage, facts: Entry) -> str:
    recipe, last = stage.start["recipe"], stage.losses[-1]
    total = sum(recipe["shares"].values())
    shares = ", ".join(
        f"{kind} {_percent(share / total)} %" for kind, share in recipe["shares"].items()
    )
    return f"""### Stage {recipe["stage"]}

{last["tokens"] / 1e6:.1f}M tokens in {last["step"]} steps of {recipe["batch_size"]} x \
{recipe["seq_len"]}, no sequence twice; {last["seconds"]:.0f} s
on one {stage.start["device"]} shared with the other runs (torch {stage.start["torch"]}).

- AdamW, betas {recipe["beta1"]} and {recipe["beta2"]}, weight decay {recipe["weight_decay"]} on \
matrices, gradient norm at most {recipe["max_grad_norm"]}
- learning rate {recipe["peak_lr"]} after {recipe["warmup_steps"]} steps of warm-up, then a cosine \
to {recipe["final_lr_ratio"]} of it
- bfloat16 autocast over fp32 weights; weight seed {recipe["seed"]}, data seed \
`{recipe["data_seed"]}`
- documents: {shares}
- the longest document grows to the whole sequence over the first {_percent(recipe["ramp"])} % of \
the steps
- code and prose: {facts["code_chars"] / 1e6:.1f}M and {facts["prose_chars"] / 1e6:.1f}M \
characters, SHA-256 `{facts["corpus_sha256"]}`

{_curve(stage)}

{_history(stage)}
"""


def _verdict(stage: _Stage) -> str:
    final = stage.probes[-1][1]
    groups = {
        f"At least {_percent(_LEARNED)} %": [n for n, share in final.items() if share >= _LEARNED],
        f"Below {_percent(_LEARNED)} %": [n for n, share in final.items() if share < _LEARNED],
    }
    lines = [
        f"- {label}: {', '.join(names).replace('_', ' ')}"
        for label, names in groups.items()
        if names
    ]
    return "\n".join(lines)


def write(name: str, log: list[Entry], facts: list[Entry]) -> str:
    """The card as Markdown.

    Args:
        name: of the checkpoint.
        log: entries of its training log, all stages.
        facts: facts about the data of each stage, as preparation left them.
    """
    stages = _stages(log)
    start = stages[0].start
    recipe = start["recipe"]
    training = "\n".join(_training(*pair) for pair in zip(stages, facts, strict=True))
    size = f"{start['num_parameters'] / 1e6:.2f}M"
    return f"""# {name}

A language model of {size} parameters with {recipe["attention"]} attention,
one of four that differ in attention only (rope, fox, path, path-fox) and saw the same data in the
same order. It exists to test evaluations of long-context models, not to write text.

{recipe["num_layers"]} layers, hidden size {recipe["hidden_size"]}, {recipe["num_heads"]} heads of \
{recipe["hidden_size"] // recipe["num_heads"]}, MLP {recipe["intermediate_size"]}, tied embeddings.
Byte-level BPE of {recipe["vocab_size"]} entries with single digits, BOS before every document.
Stored in flash-linear-attention's format, bfloat16.

## What it can and cannot do

Last probes, explained below:

{_verdict(stages[-1])}

It has seen little prose and no dialogue: it knows nothing about the world, and its text is not
worth reading.

## Training

{_NOTES}

{training}
## Test data stays out

{_CLEAN}
"""
