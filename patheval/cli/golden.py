"""`patheval golden`: recorded cases of the original benchmarks."""

from pathlib import Path

import click


@click.group()
def golden() -> None:
    """Recorded cases of the original benchmarks' code."""


@golden.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option("--benchmark", multiple=True, help="Replay only this benchmark; may be repeated.")
def check(files: tuple[Path, ...], benchmark: tuple[str, ...]) -> None:
    """Replay golden files: prompts are rendered and predictions scored again.

    A case is a line of JSON: its `benchmark`, `task` and `kind`, and what the original did. A
    scored prediction (kind `single` or `aggregate`) has `metric`, `prediction`, `references`,
    `expected_score` and `scale` (1 or 100); a prompt (kind `rendered` or `generated`) has `prompt`
    and the parts that it is made of.

    Prints a line for each case that differs, then `N passed, M failed`. Exit status 1 if any
    differs.
    """
    from rich.console import Console
    from rich.progress import track

    from patheval.golden.case import GoldenError
    from patheval.golden.check import read_cases, replay

    cases = read_cases(files)
    if benchmark:
        cases = [case for case in cases if case["benchmark"] in benchmark]
        if not cases:
            raise GoldenError(
                f"the files hold no case of {' or '.join(benchmark)}; leave out --benchmark"
            )
    console = Console(stderr=True)
    progress = track(
        cases, "Replaying", console=console, transient=True, disable=not console.is_terminal
    )
    outcomes = [replay(case) for case in progress]
    failed = [outcome for outcome in outcomes if outcome.failures]
    for outcome in failed:
        for failure in outcome.failures:
            click.echo(f"{outcome.case.name}: {failure}")
    click.echo(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed")
    if failed:
        raise SystemExit(1)
