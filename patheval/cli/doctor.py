"""`patheval doctor`: whether this installation can evaluate models, and what to do if not."""

import dataclasses
import json

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from patheval.cli._checks import Finding, examine

_STYLES = {"ok": "green", "warn": "yellow", "fault": "bold red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON list.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Check the installation.

    Says for each fault what to do, and exits with status 1 if there is any.
    """
    with Console(stderr=True).status("Checking the installation"):
        findings = list(examine())
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        Console().print(_table(findings))
    context.exit(1 if any(finding.status == "fault" for finding in findings) else 0)


def _table(findings: list[Finding]) -> Table:
    table = Table("status", "check", Column("finding", overflow="fold"))
    for finding in findings:
        detail = Text(finding.detail)
        if finding.remedy:
            detail.append(f"\n→ {finding.remedy}", style="bold")
        table.add_row(Text(finding.status, style=_STYLES[finding.status]), finding.check, detail)
    return table
