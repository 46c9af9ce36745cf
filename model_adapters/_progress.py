"""Progress of a phase: a bar on a terminal, a log line a minute elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

_LOG_INTERVAL_S = 60.0
_MAX_LENGTH_CLASSES = 6
# Phase, bar and status fit in 80 columns; the lengths get a line of their own.
_BAR_WIDTH = 10

# lm-eval shows what its own loggers say of the course of a run, and no others.
_logger = logging.getLogger(f"lm_eval.{__name__}")


class _Terminal(Console):
    """Standard error, whose cursor stays: a process that is killed could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class PhaseProgress:
    """Shows how far a phase is; a context manager.

    The rest of the time is told from the share of the work that is done, where a request's work is
    its tokens: requests differ in length by orders of magnitude.

    Args:
        phase: Name of the phase.
        work: Tokens of each request, prompt and budget.
        num_done: Further requests that were answered before the phase began.
        disable: Show and log nothing.
        clock: Seconds; for tests.
    """

    def __init__(
        self,
        phase: str,
        work: Sequence[int],
        *,
        num_done: int = 0,
        disable: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._phase = phase
        self._clock = clock
        self._total_work = sum(work)
        self._num_total = len(work) + num_done
        self._num_done = num_done
        self._done_work = 0
        self._num_tokens = 0
        self._class_totals = Counter(length_class(own) for own in work)
        self._class_done: Counter[int] = Counter()
        self._is_disabled = disable or not work
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._start = self._last_log = clock()

    def __enter__(self) -> Self:
        self._start = self._last_log = self._clock()
        if not self._is_disabled and sys.stderr.isatty():
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=_BAR_WIDTH),
                TextColumn("{task.fields[status]}"),
                console=_Terminal(stderr=True),
            )
            self._task = self._progress.add_task(
                self._phase, total=self._total_work, status=self.status("\n")
            )
            self._progress.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def seconds(self) -> float:
        """Time since the phase began."""
        return self._clock() - self._start

    def advance(self, work: Sequence[int], num_tokens: int) -> None:
        """Counts finished requests.

        Args:
            work: Their tokens, as given to the constructor.
            num_tokens: Tokens that the model read and wrote for them.
        """
        self._num_done += len(work)
        self._done_work += sum(work)
        self._num_tokens += num_tokens
        self._class_done.update(length_class(own) for own in work)
        if self._is_disabled:
            return
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done_work, status=self.status("\n"))
        elif self._clock() - self._last_log >= _LOG_INTERVAL_S:
            self._last_log = self._clock()
            _logger.info("%s: %s", self._phase, self.status())

    def status(self, before_lengths: str = ", ") -> str:
        """Requests, speed, rest and lengths.

        Args:
            before_lengths: What separates the lengths from the rest.
        """
        parts = [f"{self._num_done}/{self._num_total} requests"]
        if self._num_tokens:
            parts.append(f"{self._num_tokens / max(self.seconds, 1e-9):,.0f} tokens/s")
        if self._done_work:
            left = self.seconds * (self._total_work - self._done_work) / self._done_work
            parts.append(f"{_duration(left)} left")
        status = ", ".join(parts)
        if 1 < len(self._class_totals) <= _MAX_LENGTH_CLASSES:
            lengths = (
                f"{_length_name(size)}: {self._class_done[size]}/{total}"
                for size, total in sorted(self._class_totals.items())
            )
            status += before_lengths + ", ".join(lengths)
        return status


def length_class(num_tokens: int) -> int:
    """The power of two, at least 256, that a number of tokens fits in."""
    return max(256, 1 << (num_tokens - 1).bit_length())


def _length_name(size: int) -> str:
    return f"{size // 1024}k" if size >= 1024 else str(size)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
