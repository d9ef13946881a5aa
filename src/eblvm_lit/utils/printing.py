"""Printing that appears at once and is also kept in the log file of the run."""

from __future__ import annotations

import logging
import multiprocessing

from rich.console import Console, RenderableType

__all__ = ["is_worker", "record", "say", "show"]

# Hydra's job_logging gives this logger the log file and nothing else: what it gets was printed already.
PRINTED = logging.getLogger("eblvm_lit.printed")
PRINTED.propagate = False


def record(text: str) -> None:
    """Write a text into the log file of the run, if there is one."""
    PRINTED.info("%s", text if "\n" not in text else f"\n{text}")


def say(text: str) -> None:
    """Print a text at once, and record it.

    Example:
        >>> say("log Z by AIS: 100 of 1,999")
        log Z by AIS: 100 of 1,999
    """
    print(text, flush=True)
    record(text)


def show(*parts: RenderableType) -> None:
    """Print texts and tables of rich at once, and record them; lines of texts are never broken.

    Example:
        >>> show("results in", "  outputs/2026-01-01/10-00-00")
        results in
          outputs/2026-01-01/10-00-00
    """
    # rich's shared console may be older than the terminal
    console = Console(record=True, markup=False, emoji=False, highlight=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    console.file.flush()
    record("\n".join(line.rstrip() for line in console.export_text().splitlines()))


def is_worker() -> bool:
    """Whether this process is a worker of a parallel sweep, which shares the terminal with others.

    Example:
        >>> is_worker()
        False
    """
    return multiprocessing.current_process().name != "MainProcess"
