"""`patheval samples`: what is in a samples file."""

import json
from pathlib import Path

import click

from patheval.errors import ResultsError


@click.group()
def samples() -> None:
    """Look into the files that `lm_eval --log_samples` writes."""


@samples.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--doc", "doc_id", type=int, help="Number of the document; the first one by default.")
@click.option("--task", help="The task, where FILE's name does not hold it.")
@click.option(
    "--include_path",
    type=click.Path(exists=True, file_okay=False),
    help="Further folder with task definitions.",
)
@click.option(
    "--tokenizer", help="Where the run's tokenizer is now.  [default: as the results file says]"
)
@click.option("--json", "as_json", is_flag=True, help="Print prompts and answers as JSON.")
def show(
    file: Path,
    doc_id: int | None,
    task: str | None,
    include_path: str | None,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Print the prompts of one document as the model read them, its answers and the target.

    FILE holds a long prompt once, or, of patheval's own tasks, only how to make it. Here it is
    whole again, checked by its SHA-256.
    """
    from patheval.rebuilding import Rebuilder
    from patheval.samplefile import read_samples, whole_prompts

    for sample in read_samples(file):
        if doc_id is None or sample["doc_id"] == doc_id:
            break
    else:
        raise ResultsError(f"{file} holds no document {doc_id}; `--doc` is its doc_id")
    arguments = whole_prompts(sample, Rebuilder(file, task, tokenizer, include_path))
    if as_json:
        fields = ("doc_id", "target", "resps", "filter", *sample.get("metrics", []))
        content = {name: sample.get(name) for name in fields} | {"arguments": arguments}
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
        return
    for number, (own, answers) in enumerate(zip(arguments, sample["resps"], strict=True)):
        click.secho(f"--- document {sample['doc_id']}, request {number}: prompt", bold=True)
        click.echo(own[0])
        for argument in own[1:]:
            kind = "continuation" if isinstance(argument, str) else "settings"
            click.secho(f"--- {kind}", bold=True)
            click.echo(argument if isinstance(argument, str) else json.dumps(argument))
        click.secho("--- answer", bold=True)
        click.echo("\n".join(map(str, answers)))
    click.secho("--- target", bold=True)
    click.echo(sample.get("target"))
