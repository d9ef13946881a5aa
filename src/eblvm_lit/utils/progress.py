"""A progress bar for long computations, which prints lines at intervals if there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from rich import get_console
from rich.progress import Progress

from eblvm_lit.utils.printing import is_worker, say

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(
    what: str, total: int, *, visible: bool = True, interval: float = 10.0
) -> Iterator[Callable[[int], None]]:
    """Show a temporary progress bar with the remaining time; without a terminal, print lines at intervals.

    Args:
        what: The text beside the bar.
        total: The total number of steps.
        visible: Whether anything is shown.
        interval: The number of seconds between two printed lines.

    Yields:
        A function that takes the number of newly completed steps.

    Example:
        >>> with progress_bar("samples", 100, visible=False) as on_step:
        ...     on_step(64)
    """
    console = get_console()  # Lightning's bar uses the same console, so rich draws one bar below the other
    if visible and console.is_terminal and not is_worker():
        with Progress(*Progress.get_default_columns(), console=console, transient=True) as progress:
            yield partial(progress.advance, progress.add_task(what, total=total))
    else:
        yield _lines(what, total, interval if visible else float("inf"))


def _lines(what: str, total: int, interval: float) -> Callable[[int], None]:
    """Return a function that prints the progress at intervals; work shorter than one interval prints nothing."""
    done = 0
    began = time.monotonic()
    last = began

    def on_step(n: int) -> None:
        nonlocal done, last
        done = done + n
        now = time.monotonic()
        if now - last >= interval and done < total:
            last = now
            left = timedelta(seconds=round((now - began) / done * (total - done)))
            say(f"{what}: {done:,} of {total:,}, {left} left")

    return on_step
