"""Ctrl-C outside of training: while libraries are imported and the configuration is composed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["INTERRUPTED", "exit_on_interrupt", "raise_interrupts"]

# The exit code of a process that was interrupted by SIGINT.
INTERRUPTED = 130


def exit_on_interrupt() -> None:
    """From here on, Ctrl-C ends the process with one word instead of a traceback through half-imported modules."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _exit)


def _exit(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as Python calls it
    sys.stderr.write("Interrupted.\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)  # an exception would be caught, and printed, by whatever is being imported


@contextmanager
def raise_interrupts() -> Iterator[None]:
    """Inside the block, Ctrl-C raises KeyboardInterrupt, so that files are closed and results are recorded."""
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers nowhere else
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
