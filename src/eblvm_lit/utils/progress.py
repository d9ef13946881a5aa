"""How far the chains are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.progress import Progress

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(what: str, total: int, *, visible: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar with the remaining time, which is gone at the end; nothing where there is no terminal.

    Args:
        what: What it says.
        total: Steps of all chains.
        visible: Whether it is shown at all.

    Yields:
        What is to be called with the number of steps that were done.

    Example:
        >>> with progress_bar("samples", 100, visible=False) as on_step:
        ...     on_step(64)
    """
    with Progress(transient=True, disable=not visible) as progress:
        yield partial(progress.advance, progress.add_task(what, total=total))
