"""Measured speeds: tables of what `patheval bench` writes, and lines over lengths."""

import inspect
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from patheval.bench import engine, steps
from patheval.bench.scoring import Row
from patheval.bench.steps import Shape
from patheval.errors import ResultsError
from patheval.leaderboard import speed, speed_plots
from patheval.leaderboard.plots import COLORS

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
        "| path | 32 x 2k, 16 heads of 64 | 2.00 | **1.00** | 2.00 |",
        "| path-fox, mean log gate \u22120.02 | 32 x 2k, 16 heads of 64 "
        "| **0.500** | 1.50 | 0.50 |",
        "| path | 8 x 8k, 16 heads of 64 | 3.00 | **2.00** | 1.50 |",
        "| path-fox, mean log gate \u22120.02 | 8 x 8k, 16 heads of 64 | **1.00** | 2.50 | 0.50 |",
        "| path | 1 x 64k, 16 heads of 64 | 5.00 | **4.00** | 1.25 |",
        "| path-fox, mean log gate \u22120.02 | 1 x 64k, 16 heads of 64 | **2.00** | 4.50 | 0.50 |",
        "| path | 1 x 64k, 8 heads of 128 | 9.00 | \u2013 | \u2013 |",
    ]
    assert source == (
        "Measured with torch 2.11.0, driver 570.1, commit abc, "
        "[prefill.json](performance/prefill.json)."
    )


def test_rivals_differ_between_rows_by_as_much_as_is_said(tmp_path):
    rows = [*series_rows(), timing(Shape(1, 65536, 8, 128), "cudnn", 3)]
    note, *_ = parts(write(tmp_path, "prefill.json", {"rows": rows}))["prefill"]
    assert "over whole sequences" in note
    # fa3 at 2k: 1 beside path and 1.5 beside path-fox.
    assert "Plain attention (fa3, cudnn) was timed anew for each row" in note
    assert "at one shape these times differ: fa3 by up to 50 %." in note
    # What computes the kind of attention in its row has no spread of runs.
    for row in rows:
        row["impl"] = row["impl"].replace("fa3", "fla").replace("cudnn", "fla")
    note, *_ = parts(write(tmp_path, "prefill.json", {"rows": rows}))["prefill"]
    assert "Plain attention" not in note


def test_the_check_behind_a_speed_is_told(tmp_path):
    rows = series_rows()
    assert len(parts(write(tmp_path, "prefill.json", {"rows": rows}))["prefill"]) == 3
    for row, error in zip(rows, (0.00203, 0.001), strict=False):
        row["relative_error"] = error
    *_, note, _ = parts(write(tmp_path, "prefill.json", {"rows": rows}))["prefill"]
    assert note.endswith("The largest here is 0.002.")
    defaults = inspect.signature(steps.check).parameters
    assert f"at most {defaults['seq_len'].default:,} tokens" in note
    assert f"and {defaults['num_decoded'].default} more" in note


def test_the_projects_ratios_divide_times_of_one_row():
    speeds = speed.read_speeds(Path(__file__).parents[2] / "leaderboards/performance")
    times = {(t.bench, t.impl, str(t.shape)): t.median_ms for t in speeds.timings}
    ratios = [(t, rival, ratio) for t in speeds.timings for rival, ratio in t.ratio_to.items()]
    assert ratios
    for own, rival, ratio in ratios:
        rival_ms = times[own.bench, rival, str(own.shape)]
        assert ratio == pytest.approx(own.median_ms / rival_ms)


def test_the_projects_speeds_name_card_versions_and_commit():
    for path in (Path(__file__).parents[2] / "leaderboards/performance").glob("*.json"):
        content = json.loads(path.read_text())
        for where in [content] if "commit" in content else content["rows"]:
            assert where["card"] and where["versions"]["torch"] and where["commit"], path


def test_engines_are_compared_with_the_rope_engine(tmp_path):
    shape = {"batch": 1, "seq_len": 65536, "hidden_size": 1024, "num_heads": 16, "head_dim": 64}
    rows = [
        {"bench": "engine", "shape": shape, "impl": kind, "median_ms": ms, "prefill_s": 1.0,
         "ratio_to": {"rope": ms / 2}, **WHERE}
        for kind, ms in (("rope", 2.0), ("path", 3.0))
    ]  # fmt: skip
    note, table, _ = parts(write(tmp_path, "engine.json", {"rows": rows}))["engine"]
    assert "One decode step of vLLM" in note
    assert f"that {engine._NUM_STEPS} more tokens" in note
    assert "edian" not in note
    assert table.splitlines() == [
        "| shape | rope | path | path / rope |",
        "| --- | ---: | ---: | ---: |",
        "| 1 x 64k, 16 heads of 64, hidden_size 1024 | **2.00** | 3.00 | 1.50 |",
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
        gated: [(2048, 0.5), (8192, 1), (65536, 2)],
    }
    assert series.rivals == {
        ("patheval path", "fa3"): [(2048, 1), (8192, 2), (65536, 4)],
        (gated, "fa3"): [(2048, 1.5), (8192, 2.5), (65536, 4.5)],
    }
    assert series.ratios["patheval path", "fa3"] == [(2048, 2), (8192, 1.5), (65536, 1.25)]
    assert {value for _, value in series.ratios[gated, "fa3"]} == {0.5}
    assert "patheval path: 2k 2 ms, 8k 3 ms, 64k 5 ms" in series.description
    assert "fa3 beside patheval path: 2k 1 ms, 8k 2 ms, 64k 4 ms" in series.description


def test_both_panels_show_the_same_runs(tmp_path):
    (series,) = speed_plots.length_series(write(tmp_path, "prefill.json", {"rows": series_rows()}))
    left, right = speed_plots._draw(series).axes
    lines = {line.get_label(): line for line in left.get_lines()}
    rival = dict(zip(*lines["fa3, beside patheval path"].get_data(), strict=True))
    ours = dict(zip(*lines["patheval path"].get_data(), strict=True))
    ratio = dict(zip(*right.get_lines()[0].get_data(), strict=True))
    assert ratio == {length: ours[length] / rival[length] for length in LENGTHS}
    assert list(lines["fa3, beside the others"].get_ydata()) == [1.5, 2.5, 4.5]
    colors = dict(zip(("rope", "fox", "path", "path-fox"), COLORS, strict=False))
    assert lines["patheval path"].get_color() == colors["path"]
    assert right.get_lines()[1].get_color() == colors["path-fox"]
    assert lines["fa3, beside patheval path"].get_color() not in colors.values()


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
