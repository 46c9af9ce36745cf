"""`patheval bench` where there is no GPU, and what it writes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from patheval.bench import kernels
from patheval.bench import scoring as measure
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


@pytest.mark.parametrize("engines", ["1,2", "2"])
def test_replicas_need_a_gpu_each(engines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    result = CliRunner().invoke(bench, ["replicas", "--engines", engines])
    assert isinstance(result.exception, PrerequisiteError)
    assert f"--engines {engines} needs 2 NVIDIA GPUs" in str(result.exception)
    assert "there are 1" in str(result.exception)


@pytest.mark.parametrize(
    ("num_gpus", "arguments", "fraction"),
    [
        (1, [], 1.0),
        (0, [], 0.005),
        (0, ["--fraction", "0.5"], 0.5),
        (1, ["--fraction", "0.5"], 0.5),
    ],
)
def test_scoring_says_that_it_times_a_cpu_and_is_short_there(
    num_gpus: int, arguments: list[str], fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(
        measure,
        "main",
        lambda *_, **options: (
            asked.append((options["fraction"], "long" in options["workloads"])) or {"rows": []}
        ),
    )
    result = CliRunner().invoke(bench, ["scoring", *arguments], catch_exceptions=False)
    assert asked == [(fraction, num_gpus > 0)]
    assert (f"--fraction {fraction:g}" in result.output) == (num_gpus == 0)


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
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    result = CliRunner().invoke(bench, ["kernels", "--commit", "abc", "--json", str(file)])
    assert str(result.exception) == "wrong"
    assert "1.25 x fa3" in result.output and "50.0% of page reads skipped" in result.output
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["median_ms"], row["card"], row["commit"]) == (1.5, "a card", "abc")
    assert row["versions"]["torch"]
