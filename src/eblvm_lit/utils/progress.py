"""A progress bar for long work outside of the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import Progress

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(what: str, total: int, *, visible: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a bar with the remaining time, which disappears at the end; without a terminal, show nothing.

    Args:
        what: The text beside the bar.
        total: The number of steps in all.
        visible: Whether to show the bar.

    Yields:
        A function that takes the number of newly completed steps.

    Example:
        >>> with progress_bar("samples", 100, visible=False) as on_step:
        ...     on_step(64)
    """
    # A new console: the shared one of rich may be older than the terminal. Results go to stdout, bars to stderr.
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (visible and console.is_terminal)) as progress:
        yield partial(progress.advance, progress.add_task(what, total=total))
