"""`patheval sweep`: many models on many tasks and lengths."""

import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from patheval import _autoload
from patheval.cli._stopping import resumable

_ASSUMED_SPEED = 20_000


@click.command()
@click.option("--model", multiple=True, metavar="NAME=CHECKPOINT", help="May be repeated.")
@click.option(
    "--suite",
    help="What to run: ruler, phonebook, babilong, longbench_e, ppl, state_tracking, table2, "
    "table3, table7 or all; several by commas.",
)
@click.option("--lengths", help="Such as 1k,2k,4k; by default those of the suite.")
@click.option("--tasks", multiple=True, help="Further tasks: names or patterns, by commas.")
@click.option("--skip", multiple=True, help="Tasks to leave out, likewise.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results.")
@click.option("--config", type=click.Path(path_type=Path), help="YAML file of the same options.")
@click.option("--backend", help="lm-eval's --model.  [default: path]")
@click.option("--model-args", help="--model_args of all models, without pretrained.")
@click.option("--metadata", help="--metadata of all tasks, as JSON.")
@click.option("--max-length", help="Limit of prompt and answer.  [default: what the tasks need]")
@click.option("--limit", type=float, help="Samples of each task, for trials.")
@click.option("--device", help="lm-eval's --device.")
@click.option("--batch-size", help="lm-eval's --batch_size.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan, run nothing.")
@click.option(
    "--assume-speed",
    type=int,
    default=_ASSUMED_SPEED,
    show_default=True,
    help="Prompt tokens per second for the plan's estimate of time.",
)
@click.pass_context
def sweep(
    context: click.Context, /, config: Path | None, dry_run: bool, assume_speed: int, **given: Any
) -> None:
    """Run many models on many tasks and lengths, and resume where it stopped.

    Checks all models, tokenizers, data and lengths first and lists every fault. Each engine is
    loaded once; the longest tasks run first. A task that fails is reported at the end and stops no
    other: then the exit status is 1. Ctrl-C or kill stops it, and the same command runs what is
    missing.

    \b
    patheval sweep --model rope=CKPT --model path=CKPT --suite table3 --out results
    patheval leaderboard build results --baseline rope --out leaderboards/mine
    """  # noqa: D301  (click reads the backspace as "keep the lines")
    _autoload.install()
    import json
    import logging

    from patheval.errors import UnsupportedError
    from patheval.sweep import plan as plans
    from patheval.sweep import progress
    from patheval.sweep.lock import check_free
    from patheval.sweep.options import CHECKPOINT_BACKENDS, read_options
    from patheval.sweep.run import run_plan

    if given["metadata"]:
        try:
            given["metadata"] = json.loads(given["metadata"])
        except ValueError as error:
            raise UnsupportedError(
                f"--metadata is no JSON ({error}); quote it as a whole"
            ) from error
    options = read_options(given, config)
    if "LMEVAL_LOG_LEVEL" not in os.environ:
        # lm-eval's hints about each task would bury the plan.
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if not dry_run:
        check_free(options.out)
    messages = Console(stderr=True)
    with messages.status("Checking") as status:
        plan = plans.make_plan(options, lambda text: status.update(f"Checking {text}"))
    if plan.cells:
        Console().print(progress.plan_table(plan))
    for note in plan.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)
    if plan.faults:
        for fault in plan.faults:
            click.secho(f"fault: {fault}", fg="red", err=True)
        raise UnsupportedError(
            "nothing was run; mend what is listed above"
            if len(plan.faults) > 1
            else "nothing was run; mend the fault above"
        )
    click.echo(progress.work_line(plan, assume_speed))
    if dry_run:
        return
    answers = " and answers" if options.backend in CHECKPOINT_BACKENDS else ""
    with (
        resumable(f"finished cells{answers}"),
        progress.LiveTable(plan, options.out / "sweep.log") as live,
    ):
        outcomes = run_plan(plan, live.report, live.starting)
    live.print_table()
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for line in progress.failure_lines(failed):
        click.secho(line, fg="red", err=True)
    click.echo(progress.closing_line(outcomes, options.out))
    context.exit(1 if failed else 0)
