"""Measured speeds: tables of what `patheval bench` writes, and lines over lengths."""

import json
from dataclasses import asdict

import pytest

from patheval.bench.scoring import Row
from patheval.bench.steps import Shape
from patheval.errors import ResultsError
from patheval.leaderboard import speed, speed_plots

WHERE = {"card": "NVIDIA H200", "driver": "570.1", "versions": {"torch": "2.11.0"}, "commit": "abc"}
LENGTHS = (2048, 8192, 65536)


def timing(shape, impl, ms, **ratios):
    return {
        "bench": "prefill",
        "shape": asdict(shape),
        "impl": impl,
        "median_ms": ms,
        "ratio_to": ratios,
        **WHERE,
    }


def series_rows():
    """Time of fa3: 1, 2, 4 ms; of path 2, 3, 5; of path-fox half of fa3."""
    rows = []
    for length, fa3, path in zip(LENGTHS, (1, 2, 4), (2, 3, 5), strict=True):
        own = Shape(65536 // length, length, 16, 64)
        rows.append(timing(own, "patheval", path, fa3=path / fa3))
        rows.append(timing(own, "fa3", fa3))
        gated = Shape(65536 // length, length, 16, 64, "path-fox", -0.02)
        rows.append(timing(gated, "patheval", fa3 / 2, fa3=0.5))
        rows.append(timing(gated, "fa3", fa3 + 0.5))
    rows.append(timing(Shape(1, 65536, 8, 128), "patheval", 9))
    return rows


def write(folder, name, content):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return speed.read_speeds(folder)


def parts(speeds):
    return {bench: tables for bench, _, tables in speed.markdown_parts(speeds, "performance")}


def test_kernels_stand_beside_their_rivals_with_ratios(tmp_path):
    _, table, source = parts(write(tmp_path, "prefill.json", {"rows": series_rows()}))["prefill"]
    assert table.splitlines() == [
        "| attention | shape | patheval | fa3 | patheval / fa3 |",
        "| --- | --- | ---: | ---: | ---: |",
        "| path | 32 x 2k, 16 heads of 64 | 2 | **1** | 2.00 |",
        "| path-fox, mean log gate \u22120.02 | 32 x 2k, 16 heads of 64 | **0.5** | 1.5 | 0.50 |",
        "| path | 8 x 8k, 16 heads of 64 | 3 | **2** | 1.50 |",
        "| path-fox, mean log gate \u22120.02 | 8 x 8k, 16 heads of 64 | **1** | 2.5 | 0.50 |",
        "| path | 1 x 64k, 16 heads of 64 | 5 | **4** | 1.25 |",
        "| path-fox, mean log gate \u22120.02 | 1 x 64k, 16 heads of 64 | **2** | 4.5 | 0.50 |",
        "| path | 1 x 64k, 8 heads of 128 | 9 | \u2013 | \u2013 |",
    ]
    assert source == (
        "Measured with torch 2.11.0, driver 570.1, commit abc, "
        "[prefill.json](performance/prefill.json)."
    )


def test_engines_are_compared_with_the_rope_engine(tmp_path):
    shape = {"batch": 1, "seq_len": 65536, "hidden_size": 1024, "num_heads": 16, "head_dim": 64}
    rows = [
        {"bench": "engine", "shape": shape, "impl": kind, "median_ms": ms, "prefill_s": 1.0,
         "ratio_to": {"rope": ms / 2}, **WHERE}
        for kind, ms in (("rope", 2.0), ("path", 3.0))
    ]  # fmt: skip
    _, table, _ = parts(write(tmp_path, "engine.json", {"rows": rows}))["engine"]
    assert table.splitlines() == [
        "| shape | rope | path | path / rope |",
        "| --- | ---: | ---: | ---: |",
        "| 1 x 64k, 16 heads of 64, hidden_size 1024 | **2** | 3 | 1.50 |",
    ]


def test_scoring_stands_beside_lm_eval(tmp_path):
    rows = [
        asdict(Row("short", route, 800, 1.0, rate, 70.0, speedup, difference, None))
        for route, rate, speedup, difference in (
            ("lm-eval", 1000.0, 1.0, 0.0),
            ("patheval", 4000.0, 4.0, 0.0123),
        )
    ]
    content = {
        "bench": "scoring",
        "checkpoint": {"attention": "path", "num_layers": 8, "hidden_size": 1024},
        "rows": rows,
        **WHERE,
    }
    note, table, _ = parts(write(tmp_path, "scoring.json", content))["scoring"]
    assert "path, random weights, 8 layers, hidden size 1024" in note
    assert table.splitlines() == [
        "| workload | lm-eval | patheval | patheval / lm-eval | largest difference, nats |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| short | 1,000.0 | 4,000.0 | 4.0 | 0.012 |",
    ]


def test_lines_join_equal_numbers_of_tokens(tmp_path):
    (series,) = speed_plots.length_series(write(tmp_path, "prefill.json", {"rows": series_rows()}))
    gated = "patheval path-fox, mean log gate \u22120.02"
    assert (series.tokens, series.num_heads, series.head_dim) == (65536, 16, 64)
    assert series.times == {
        "patheval path": [(2048, 2), (8192, 3), (65536, 5)],
        "fa3": [(2048, 1.25), (8192, 2.25), (65536, 4.25)],
        gated: [(2048, 0.5), (8192, 1), (65536, 2)],
    }
    assert series.ratios["patheval path", "fa3"] == [(2048, 2), (8192, 1.5), (65536, 1.25)]
    assert {value for _, value in series.ratios[gated, "fa3"]} == {0.5}
    assert "patheval path: 2k 2 ms, 8k 3 ms, 64k 5 ms" in series.description


def test_two_lengths_make_no_line(tmp_path):
    rows = [row for row in series_rows() if row["shape"]["seq_len"] != 8192]
    assert speed_plots.length_series(write(tmp_path, "prefill.json", {"rows": rows})) == []


def test_the_plot_is_the_same_file_each_time(tmp_path):
    series = speed_plots.length_series(write(tmp_path, "prefill.json", {"rows": series_rows()}))
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths = speed_plots.write_speed_plots(series, tmp_path / name)
        assert [path.name for path in paths] == [
            "prefill_64k_16x64_nvidia_h200.svg",
            "prefill_64k_16x64_nvidia_h200.png",
        ]
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]
    # On a ground of its own, so that it reads in a dark page too.
    assert b"fill: #ffffff" in written[0][0]


@pytest.mark.parametrize("value", [0, -1, "x", None, float("nan"), float("inf")])
def test_times_that_are_none_are_an_error(tmp_path, value):
    rows = [timing(Shape(1, 64, 1, 64), "patheval", value)]
    with pytest.raises(ResultsError, match="no file of speeds"):
        write(tmp_path, "prefill.json", {"rows": rows})
