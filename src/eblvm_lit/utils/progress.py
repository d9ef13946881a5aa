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
    """Show a bar with the remaining time while the block runs; nothing where there is no terminal.

    Args:
        what: Its title.
        total: Number of steps.
        visible: Whether it is shown at all.

    Yields:
        A function to call with the number of steps that were done.

    Example:
        >>> with progress_bar("samples", 100, visible=False) as on_step:
        ...     on_step(64)
    """
    # A new console: the shared one of rich may be older than the terminal. Results go to stdout, bars to stderr.
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (visible and console.is_terminal)) as progress:
        yield partial(progress.advance, progress.add_task(what, total=total))
