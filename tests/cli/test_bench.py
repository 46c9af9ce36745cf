"""`patheval bench` where there is no GPU, and what it writes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from patheval.bench import kernels
from patheval.cli.bench import bench
from patheval.errors import PrerequisiteError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernels", "--shapes", "1x1"], "the shape '1x1' is none of 1x64k-16x64"),
        (["kernels", "--against", "fa4"], "the rival 'fa4' is none of fa3, cudnn, fla"),
        (["decode", "--against", "cudnn"], "the rival 'cudnn' is none of fa3"),
        (["engine", "--kinds", "llama"], "the kind 'llama' is none of rope"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
@pytest.mark.parametrize("command", ["kernels", "decode", "engine"])
def test_without_a_gpu_nothing_is_measured(command: str) -> None:
    result = CliRunner().invoke(bench, [command])
    assert isinstance(result.exception, PrerequisiteError)


def test_rows_that_came_before_a_wrong_result_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(*_: object) -> Iterator[dict[str, Any]]:
        yield {
            "bench": "prefill",
            "name": "a",
            "impl": "patheval",
            "median_ms": 1.5,
            "ratio_to": {"fa3": 1.25},
            "share_skipped": 0.5,
        }
        raise RuntimeError("wrong")

    monkeypatch.setattr(kernels, "bench_prefill", rows)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    file = tmp_path / "deep" / "rows.json"
    result = CliRunner().invoke(bench, ["kernels", "--commit", "abc", "--json", str(file)])
    assert str(result.exception) == "wrong"
    assert "1.25 x fa3" in result.output and "50.0% of page reads skipped" in result.output
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["median_ms"], row["card"], row["commit"]) == (1.5, "a card", "abc")
    assert row["versions"]["torch"]
