"""The model card of a checkpoint, written from its training log alone."""

from typing import Any

Entry = dict[str, Any]

_CURVE_POINTS = 12
_LEARNED = 0.9
_CLEAN = """\
Training text is made by seeded generators under `patheval/zoo/documents/` and read from the
Python standard library and installed packages; nothing is stored. Test samples cannot occur in it:

- no plain number in a book or as a needle has 10 digits (PhoneBook) or 7 (RULER);
- names, keys and counted words are made-up syllables or words of the prose; the packages `names`
  and `wonderwords`, which the tests draw on, are never imported and their files never read;
- templates, places, things and people differ from those of RULER and BABILong;
- `patheval.zoo.leakage` holds the tests' sample formats as patterns: installed texts that match one
  are dropped, and `tests/zoo` checks the generated documents against them;
- random numbers come from string seeds (`train/...`, `probe/...`), which no task uses;
- a tenth of the files, chosen by the SHA-256 of their path (`documents.corpus.is_held_out`), is
  kept out for perplexity measurements.
"""


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _curve(log: list[Entry]) -> str:
    points = [entry for entry in log if "loss" in entry]
    kept = sorted(
        {round(i * (len(points) - 1) / (_CURVE_POINTS - 1)) for i in range(_CURVE_POINTS)}
    )
    rows = [
        [str(point["step"]), f"{point['tokens'] / 1e6:.1f}", f"{point['loss']:.3f}"]
        for point in (points[index] for index in kept)
    ]
    return _table(["step", "tokens (M)", "training loss"], rows)


def _probe_history(log: list[Entry]) -> str:
    entries = [entry for entry in log if "probes" in entry or "final_probes" in entry]
    names = list(entries[-1].get("final_probes") or entries[-1]["probes"])
    rows = []
    for entry in entries:
        results = entry.get("final_probes") or entry["probes"]
        label = f"{entry['step']} (bf16)" if "final_probes" in entry else str(entry["step"])
        rows.append([label, *(_percent(results[name]) for name in names)])
    return _table(["step", *(name.replace("_", " ") for name in names)], rows)


def _verdict(final: dict[str, float]) -> str:
    learned = [name for name, share in final.items() if share >= _LEARNED]
    missing = [name for name, share in final.items() if share < _LEARNED]
    parts = []
    if learned:
        parts.append(f"At least {_percent(_LEARNED)} % on: {', '.join(learned)}.")
    if missing:
        parts.append(f"Below that on: {', '.join(missing)}.")
    return " ".join(parts).replace("_", " ")


def write(name: str, log: list[Entry], data: Entry) -> str:
    """The card as Markdown.

    Args:
        name: of the checkpoint.
        log: entries of its training log.
        data: facts about the data, as preparation left them.
    """
    recipe, start = log[0]["recipe"], log[0]
    last = next(entry for entry in reversed(log) if "loss" in entry)
    final = next(entry["final_probes"] for entry in log if "final_probes" in entry)
    shares = data["shares"]
    total = sum(shares.values())
    mixture = ", ".join(f"{kind} {_percent(share / total)} %" for kind, share in shares.items())
    return f"""# {name}

A language model of {start["num_parameters"] / 1e6:.2f}M parameters with {recipe["attention"]}
attention, one of four that differ in attention only (rope, fox, path, path-fox). It exists to test
evaluations of long-context models, not to write text.

## Model

{recipe["num_layers"]} layers, hidden size {recipe["hidden_size"]}, {recipe["num_heads"]} heads of
{recipe["hidden_size"] // recipe["num_heads"]}, MLP {recipe["intermediate_size"]}, tied embeddings.
Byte-level BPE of {recipe["vocab_size"]} entries with single digits, BOS before every document.
Stored in flash-linear-attention's format, bfloat16.

## Training

{last["tokens"] / 1e6:.1f}M tokens in {last["step"]} steps of {recipe["batch_size"]} x \
{recipe["seq_len"]} tokens, each sequence seen once, {last["seconds"]:.0f} s on one
{start["device"]} shared with another run (torch {start["torch"]}). AdamW, betas {recipe["beta1"]}
and {recipe["beta2"]}, weight decay {recipe["weight_decay"]} on matrices, gradient norm at most \
{recipe["max_grad_norm"]};
learning rate {recipe["peak_lr"]} after {recipe["warmup_steps"]} steps of warm-up, cosine to \
{recipe["final_lr_ratio"]} of it. bfloat16 autocast over fp32 weights.
Weight seed {recipe["seed"]}, data seed "{recipe["data_seed"]}"; the four models see the same data
in the same order.

Documents by kind: {mixture}. Their longest length grows from 256 tokens to
{recipe["seq_len"]} over the first fifth of the training. Code and prose:
{data["code_chars"] / 1e6:.1f}M and {data["prose_chars"] / 1e6:.1f}M characters, SHA-256 \
`{data["corpus_sha256"]}`.

{_curve(log)}

## What it can and cannot do

Teacher-forced exact match in percent, at the test formats of PhoneBook and RULER's niah_single_1
but with made-up names, by prompt length in tokens. Last row: the shipped weights.

{_probe_history(log)}

{_verdict(final)}
It has seen no dialogue and little prose: it cannot answer questions about the world, and its text
is not worth reading.

## Test data stays out

{_CLEAN}"""
