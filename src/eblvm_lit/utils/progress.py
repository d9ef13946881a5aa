"""The progress of long work: a bar in a terminal, lines at intervals elsewhere, and the rate of the last seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import Progress, TextColumn

from eblvm_lit.utils.numbers import clock
from eblvm_lit.utils.printing import has_bars, say

__all__ = ["RateMeter", "progress_bar"]


class RateMeter:
    """The number of steps per second in the last seconds, without pauses.

    The clock starts with the first call of :meth:`update`: what comes before it, such as compilation, is not counted.

    Args:
        window: The seconds over which the rate is taken.

    Example:
        >>> meter = RateMeter()
        >>> meter.update(10), meter.rate
        (None, None)
        >>> meter.update(20), meter.rate > 0
        (None, True)
    """

    def __init__(self, *, window: float = 10.0) -> None:
        self.window = window
        self._marks: deque[tuple[int, float]] = deque()  # numbers of steps, and the time they were reached at
        self._now = (0, 0.0)
        self._paused, self._pause_began = 0.0, 0.0

    def update(self, n_steps: int) -> None:
        """Note the number of steps completed so far."""
        now = time.monotonic() - self._paused
        self._now = n_steps, now
        if not self._marks or now - self._marks[-1][1] > self.window / 50:
            self._marks.append(self._now)
            while len(self._marks) > 2 and self._marks[1][1] <= now - self.window:
                self._marks.popleft()

    def pause(self) -> None:
        """Stop the clock."""
        self._pause_began = time.monotonic()

    def resume(self) -> float:
        """Start the clock again; the seconds of the pause."""
        pause = time.monotonic() - self._pause_began
        self._paused += pause
        return pause

    @property
    def measured(self) -> float:
        """The seconds that the rate is taken over."""
        return self._now[1] - self._marks[0][1] if self._marks else 0.0

    @property
    def rate(self) -> float | None:
        """Steps per second; None until there are two updates at different times."""
        return (self._now[0] - self._marks[0][0]) / self.measured if self.measured > 0 else None


@contextmanager
def progress_bar(
    what: str, total: int, *, visible: bool = True, interval: float = 10.0
) -> Iterator[Callable[[int], None]]:
    """Show a bar with the remaining time, which disappears at the end; without a terminal, print lines at intervals.

    Args:
        what: The text beside the bar.
        total: The number of steps in all.
        visible: Whether to show anything.
        interval: Seconds between two lines.

    Yields:
        A function that takes the number of newly completed steps.

    Example:
        >>> with progress_bar("samples", 100, visible=False) as on_step:
        ...     on_step(64)
    """
    if not visible:
        yield lambda n: None  # noqa: ARG005
        return
    # A new console: the shared one of rich may be older than the terminal. Results go to stdout, bars to stderr.
    console = Console(stderr=True)
    if not has_bars(console):
        yield _lines(what, total, interval)
        return
    columns = TextColumn("{task.description}", markup=False), *Progress.get_default_columns()[1:]
    with Progress(*columns, console=console, transient=True) as progress:
        yield partial(progress.advance, progress.add_task(what, total=total))


def _lines(what: str, total: int, interval: float) -> Callable[[int], None]:
    """A function that prints the progress on stderr at intervals; nothing of work that is over before."""
    done, began = 0, time.monotonic()
    last = began

    def on_step(n: int) -> None:
        nonlocal done, last
        done, now = done + n, time.monotonic()
        if now - last >= interval and done < total:
            last = now
            left = (now - began) / done * (total - done)
            say(f"{what}: {done:,} of {total:,}, {clock(now - began)}, {clock(left)} left", error=True)

    return on_step
