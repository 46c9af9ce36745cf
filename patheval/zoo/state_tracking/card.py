"""The card of a checkpoint of the state-tracking family, from its log and all seeds' errors."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from patheval.leaderboard import states
from patheval.leaderboard.states import StateRow, percent
from patheval.zoo.card import curve, table

_FAMILIES = {
    "fflm": "the flip-flop language: to name the bit that was last written, however many others\n"
    "were to be ignored since",
    "a5": "the word problem of the group A5: to name the product of all elements read so far",
    "mqrar": "multi-query repeated associative recall: to name the value that a variable had N\n"
    "assignments ago, N being the last digit of the name",
}
_LIMITS = (0.0, 0.001, 0.1)
_CLEAN = """\
Training sequences are made as they are needed by the generator of the task, from random numbers
that are named by `training`, the seed and the sequence's place in an endless stream; the tests'
are named by `test`. No seed of the one can repeat the draws of the other (`tasks/sequences.py`),
and sequences of this length never repeat by chance. No sequence is trained on twice."""


def write(
    name: str,
    own: StateRow,
    siblings: Sequence[StateRow],
    log: list[dict[str, Any]],
) -> str:
    """The card as Markdown.

    Args:
        name: Of the checkpoint.
        own: One of its errors.
        siblings: Errors of all seeds and numbers of layers of this attention kind, its own
            included.
        log: Its training log.
    """
    start, *entries = log
    recipe = start["recipe"]
    alike = [row for row in siblings if row.num_layers == own.num_layers]
    layers = "1 layer" if own.num_layers == 1 else f"{own.num_layers} layers"
    num_sequences = own.steps * recipe["batch_size"]
    cut = ""
    if own.is_cut:
        cut = (
            f"\nThe recipe has {own.planned_steps} steps; these runs were cut, with their "
            "learning-rate schedule, to the time\nthat was to be had."
        )
    growth = ""
    if recipe["first_labels"] is not None:
        growth = (
            f"\n- of each sequence the first {recipe['first_labels']} labels count at first, one "
            f"more whenever {percent(recipe['accuracy_to_grow'])} % are named, all after "
            f"{percent(recipe['growing_share'])} % of the steps"
        )
    return f"""# {name}

A model of {start["num_parameters"]:,} parameters with {own.attention} attention, trained for one \
thing alone,
{_FAMILIES[own.family.rstrip("1234") if own.family.startswith("mqrar") else own.family]}.
It shows what this kind of attention can track; models of the other kinds (rope, fox, path,
path-fox) differ from it in attention only, and saw the same sequences in the same order.

{layers}, hidden size {recipe["hidden_size"]}, {recipe["num_heads"]} heads of \
{recipe["hidden_size"] // recipe["num_heads"]}, tied embeddings. The tokenizer splits text at
spaces and knows the symbols of the task alone; all else becomes `<pad>`, so that other text means
nothing to it. BOS comes first. Stored in flash-linear-attention's format, bfloat16.

## What it can and cannot do

Share of the labels that greedy decoding does not give, in percent, on the whole tests, of the
weights as stored. This is the seed in the middle by its worst error, seed {own.seed}.

{_errors(alike)}

{_verdict(alike)}{_other_layers(siblings, own.num_layers)}

To ask it through lm-eval:

    lm_eval --model path --model_args pretrained=zoo:{name},dtype=float32 \\
        --tasks {",".join(dict.fromkeys(row.task for row in alike))}

The numbers above were counted by the trainer, from logits in float32 of many sequences at once;
labels whose two best logits nearly tie can fall the other way in another order of summation.

## Training

{own.steps} steps of {recipe["batch_size"]} sequences ({num_sequences:,} in all) for each of \
{len({row.seed for row in alike})} seeds; {own.seconds:.0f} s
for all of them together, beside the other kinds of attention, on one {own.device}
(torch {own.torch}), float32. The loss is that of the
labels alone.{cut}

- AdamW, betas {recipe["beta1"]} and {recipe["beta2"]}, weight decay {recipe["weight_decay"]} on \
matrices, gradient norm at most {recipe["max_grad_norm"]}
- learning rate {recipe["peak_lr"]} after {recipe["warmup_steps"]} steps of warm-up, falling to 0 \
over the last {percent(recipe["decay_share"])} % of the steps
- a seed names the first weights and the stream of training sequences{growth}

{curve(entries, {"training loss": ("loss", 4), "labels named": ("accuracy", 4)})}

## Test data stays out

{_CLEAN}
"""


def _errors(rows: Sequence[StateRow]) -> str:
    """Seeds, mean and standard deviation, a column for each test."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    by_task = {task: [row for row in rows if row.task == task] for task in tasks}
    lines = [
        [
            f"seed {seed}",
            *(percent(row.error) for task in tasks for row in by_task[task] if row.seed == seed),
        ]
        for seed in sorted({row.seed for row in rows})
    ]
    means = {task: fmean(row.error for row in own) for task, own in by_task.items()}
    spreads = {
        task: stdev([row.error for row in own]) if len(own) > 1 else math.nan
        for task, own in by_task.items()
    }
    lines.append(["mean", *(percent(means[task]) for task in tasks)])
    lines.append(["standard deviation", *(percent(spreads[task]) for task in tasks)])
    lines.append(["labels asked", *(f"{by_task[task][0].labels:,}" for task in tasks)])
    return table(["error in percent", *tasks], lines)


def _verdict(rows: Sequence[StateRow]) -> str:
    """Which tests every seed passes, how well, and which not."""
    limits = (*_LIMITS, 1.0)
    tasks: dict[float, list[str]] = {limit: [] for limit in limits}
    for task in dict.fromkeys(row.task for row in rows):
        worst = max(row.error for row in rows if row.task == task)
        tasks[next(limit for limit in limits if worst <= limit)].append(task)
    labels = [
        *(f"- Every seed errs on at most {percent(limit)} %" for limit in _LIMITS),
        f"- Some seed errs on more than {percent(_LIMITS[-1])} %",
    ]
    return "\n".join(
        f"{label}: {', '.join(own)}"
        for label, own in zip(labels, tasks.values(), strict=True)
        if own
    )


def _other_layers(siblings: Sequence[StateRow], num_layers: int) -> str:
    """Mean errors with other numbers of layers."""
    lines = []
    for other in sorted({row.num_layers for row in siblings} - {num_layers}):
        own = [row for row in siblings if row.num_layers == other]
        values = (
            f"{task} {states.mean_and_range([row for row in own if row.task == task])}"
            for task in dict.fromkeys(row.task for row in own)
        )
        lines.append(f"- With {other} layers, mean error in percent: {', '.join(values)}")
    return "".join(f"\n{line}" for line in lines)
