"""What a phase shows on a terminal, and what it logs elsewhere."""

import logging
import sys

import lm_eval.utils
import pytest

from patheval.model_adapters._progress import PhaseProgress, length_class

HIDE_CURSOR = "\x1b[?25l"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_status_tells_requests_speed_rest_and_lengths() -> None:
    clock = Clock()
    with PhaseProgress("x", [100, 1000, 1000, 7900], num_done=2, clock=clock) as progress:
        clock.now += 5
        progress.advance([100, 1000], 500)
        assert progress.status() == (
            "4/6 requests, 100 tokens/s, 0:00:40 left, 256: 1/1, 1k: 1/2, 8k: 0/1"
        )
        clock.now += 45
        progress.advance([1000, 7900], 4500)
        assert progress.status().startswith("6/6 requests, 100 tokens/s, 0:00:00 left")


def test_one_length_is_not_named() -> None:
    with PhaseProgress("x", [300, 400]) as progress:
        assert progress.status() == "0/2 requests"


def test_a_line_a_minute_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As in lm-eval's command.
    monkeypatch.setattr(lm_eval.utils, "_LOGGING_CONFIGURED", False)
    logger = logging.getLogger("lm_eval")
    for name in ("handlers", "level", "propagate"):
        monkeypatch.setattr(logger, name, type(getattr(logger, name))())
    lm_eval.utils.setup_logging()
    clock = Clock()
    with PhaseProgress("loglikelihood", [10] * 100, clock=clock) as progress:
        for _ in range(100):
            clock.now += 2
            progress.advance([10], 10)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 3
    assert lines[0].endswith("loglikelihood: 30/100 requests, 5 tokens/s, 0:02:20 left")


def test_disabled_and_empty_phases_are_quiet(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    clock = Clock()
    for work, disable in (([10], True), ([], False)):
        with PhaseProgress("x", work, disable=disable, clock=clock) as progress:
            clock.now += 100
            progress.advance(work, 10)
    assert not caplog.records


def test_a_terminal_gets_one_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    clock = Clock()
    with PhaseProgress("generate_until", [10, 20, 90000], num_done=4000, clock=clock) as progress:
        progress.advance([10], 5)
        clock.now += 1
        progress.advance([20, 90000], 90005)
    out, err = capsys.readouterr()
    assert out == ""
    assert "generate_until" in err and "4003/4003 requests, 90,010 tokens/s, 0:00:00 left" in err
    assert "256: 2/2, 128k: 1/1" in err
    assert HIDE_CURSOR not in err


@pytest.mark.parametrize(("num_tokens", "size"), [(1, 256), (256, 256), (257, 512), (4096, 4096)])
def test_length_classes(num_tokens: int, size: int) -> None:
    assert length_class(num_tokens) == size
