"""`patheval bench`: measure speed on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from patheval.errors import PrerequisiteError

_CPU_FRACTION = 0.005
_CPU_WORKLOADS = ["short"]
_PREFILL_RIVALS = ("fa3", "cudnn", "fla")


def _names(ctx: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    return [name for name in (value or "").split(",") if name]


_COMMIT = click.option(
    "--commit", help="Commit to write into the rows, where the code is not in a git checkout."
)


@click.group()
def bench() -> None:
    """Measure speed on this machine; every kernel is checked before it is timed."""


@bench.command()
@click.option("--shapes", callback=_names, help="Comma-separated names; all by default.")
@click.option("--against", callback=_names, help="Rivals of fa3, cudnn and fla, by commas.")
@click.option("--page-size", default=256, show_default=True, help="Tokens in a page.")
@_COMMIT
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
def kernels(
    shapes: list[str], against: list[str], page_size: int, commit: str | None, file: Path | None
) -> None:
    """Time the prefill of whole sequences, pages left ready for decode."""
    from patheval.bench.kernels import PREFILL_SHAPES, bench_prefill

    _check("shape", shapes, PREFILL_SHAPES)
    _check("rival", against, _PREFILL_RIVALS)
    _need_gpu()
    _report(bench_prefill(shapes or list(PREFILL_SHAPES), against, page_size), commit, file)


@bench.command()
@click.option("--shapes", callback=_names, help="Comma-separated names; all by default.")
@click.option("--against", callback=_names, help="Rivals: fa3.")
@click.option("--page-size", default=256, show_default=True, help="Tokens in a page.")
@_COMMIT
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
def decode(
    shapes: list[str], against: list[str], page_size: int, commit: str | None, file: Path | None
) -> None:
    """Time one decode step's attention in a CUDA graph."""
    from patheval.bench.kernels import DECODE_SHAPES, bench_decode

    _check("shape", shapes, DECODE_SHAPES)
    _check("rival", against, ("fa3",))
    _need_gpu()
    _report(bench_decode(shapes or list(DECODE_SHAPES), against, page_size), commit, file)


@bench.command()
@click.option("--shapes", callback=_names, help="Comma-separated names; all by default.")
@click.option("--kinds", callback=_names, default="rope,path,path-fox", show_default=True)
@click.option("--page-size", type=int, help="Tokens in a page; vLLM plugin's default if left out.")
@_COMMIT
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
def engine(
    shapes: list[str],
    kinds: list[str],
    page_size: int | None,
    commit: str | None,
    file: Path | None,
) -> None:
    """Time vLLM's decode steps, beside vLLM's own Llama (rope)."""
    from patheval.bench.engine import ENGINE_SHAPES, bench_engine

    _check("shape", shapes, ENGINE_SHAPES)
    _check("kind", kinds, ("rope", "path", "path-fox", "fox"))
    _need_gpu()
    _report(bench_engine(shapes or list(ENGINE_SHAPES), kinds, page_size), commit, file)


@bench.command()
@click.argument("checkpoint", required=False)
@click.option("--attention", default="path", show_default=True, help="Kind of a random model.")
@click.option(
    "--workloads", callback=_names, help="By commas; all by default, on a CPU the shortest."
)
@click.option("--routes", callback=_names, help="patheval, lm-eval, or both (default).")
@click.option(
    "--fraction",
    type=click.FloatRange(0, min_open=True),
    show_default=f"1; on a CPU {_CPU_FRACTION}",
    help="Share of the questions to run.",
)
@click.option("--repeats", default=3, show_default=True, help="The fastest repetition counts.")
@click.option("--dtype", default="bfloat16", show_default=True, help="What the model computes in.")
@_COMMIT
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results here.")
def scoring(
    checkpoint: str | None,
    attention: str,
    workloads: list[str],
    routes: list[str],
    fraction: float | None,
    repeats: int,
    dtype: str,
    commit: str | None,
    file: Path | None,
) -> None:
    """Time multiple-choice scoring beside lm-eval's own vLLM adapter.

    Without CHECKPOINT (a folder, zoo:NAME or Hugging Face id), a model with random weights of 8
    layers and hidden size 1024 is made.
    """
    from patheval.bench import scoring as measure
    from patheval.bench.environment import environment

    on_cpu = not _num_gpus()
    if fraction is None:
        fraction = _CPU_FRACTION if on_cpu else 1.0
    workloads = workloads or (_CPU_WORKLOADS if on_cpu else list(measure.WORKLOADS))
    if on_cpu:
        click.echo(
            f"there is no NVIDIA GPU, so the CPU is timed, which takes minutes: --fraction "
            f"{fraction:g} of the questions of --workloads {','.join(workloads)}",
            err=True,
        )
    result = measure.main(
        checkpoint,
        attention=attention,
        workloads=workloads,
        routes=routes or measure.ROUTES,
        fraction=fraction,
        repeats=repeats,
        dtype=dtype,
    ) | environment(commit)
    for row in result["rows"]:
        speedup = "" if row["speedup"] is None else f"  {row['speedup']:.1f} x lm-eval"
        click.echo(
            f"scoring  {row['workload']:22} {row['route']:10} "
            f"{row['choices_per_second']:9.1f} choices/s{speedup}"
        )
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=1) + "\n")


@bench.command()
@click.option("--engines", default="1,2", callback=_names, show_default=True, help="How many.")
@click.option("--requests", default=2000, show_default=True, help="Generation requests.")
@click.option("--kind", default="path", show_default=True, help="Kind of a random model.")
@_COMMIT
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
def replicas(
    engines: list[str], requests: int, kind: str, commit: str | None, file: Path | None
) -> None:
    """Time generation by several engines (data_parallel_size) beside one."""
    from patheval.bench.replicas import bench_replicas

    _check("kind", [kind], ("rope", "path", "path-fox", "fox"))
    if not all(count.isdecimal() and int(count) for count in engines):
        raise click.BadParameter(f"--engines takes numbers from 1 on, got {','.join(engines)}")
    wanted, found = max(map(int, engines)), _num_gpus()
    if found < wanted and "RAY_ADDRESS" not in os.environ:
        raise PrerequisiteError(
            f"--engines {','.join(engines)} needs {wanted} NVIDIA GPUs, one for each engine, and "
            f"there are {found}; run it where they are"
        )
    _report(bench_replicas([int(count) for count in engines], requests, kind), commit, file)


def _check(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise click.BadParameter(f"the {what} {name!r} is none of {', '.join(known)}")


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _need_gpu() -> None:
    if not _num_gpus():
        raise PrerequisiteError("patheval bench needs an NVIDIA GPU; there is none here")


def _report(rows: Iterable[dict[str, Any]], commit: str | None, file: Path | None) -> None:
    """Print each row when it is there, and keep all that have come so far in the file."""
    from patheval.bench.environment import environment

    kept: list[dict[str, Any]] = []
    where = environment(commit)
    for row in rows:
        kept.append(row | where)
        ratios = "".join(f"  {ratio:.2f} x {rival}" for rival, ratio in row["ratio_to"].items())
        skipped = row.get("share_skipped")
        ratios += "" if skipped is None else f"  {skipped:.1%} of page reads skipped"
        click.echo(
            f"{row['bench']:8} {row['name']:22} {row['impl']:10} {row['median_ms']:9.3f} ms{ratios}"
        )
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"rows": kept}, indent=1) + "\n")
