"""Signals that stop a run while it does not train: what they raise, and what they wait for."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = [
    "INTERRUPTED",
    "SIGNALS",
    "Interruption",
    "exit_on_interrupt",
    "handled",
    "hold",
    "leave_terminal",
    "raise_interrupts",
    "received",
]

# The signals of batch systems, users and closed terminals; some batch systems announce the end of the time by SIGUSR1.
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]
# The exit code of a process that was interrupted by SIGINT.
INTERRUPTED = 130
# Seconds within which further signals belong to the first: they would only break off what it has begun.
BURST = 5.0
# Seconds after which a signal is sent again whose exception was lost: the finalizer is over by then.
AGAIN = 0.5

# Descriptors that were a terminal at the start: one that has hung up says no more that it is one.
_terminals: list[int] = []


class Interruption(SystemExit):
    """A signal has stopped this process outside of the iterations, which end first.

    Args:
        number: The signal.
        text: What to say; by default which signal it was.

    Example:
        >>> str(Interruption(signal.SIGTERM)), Interruption(signal.SIGTERM).code
        ('Stopped by SIGTERM.', 143)
    """

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(128 + number)
        self.number, self.text = number, text or f"Stopped by {signal.Signals(number).name}."

    def __str__(self) -> str:
        """What happened."""
        return self.text


class _Raising:
    """A handler that raises :class:`Interruption`, once for a burst of signals, and not while it is held."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.n_holds, self.waiting = 0, 0

    def __call__(self, number: int, frame: FrameType | None = None) -> None:  # noqa: ARG002 - as Python calls it
        leave_terminal(number)
        now = time.monotonic()
        if self.at is not None and now - self.at < BURST:
            return
        if self.n_holds:
            self.waiting = number
            return
        self.at = now
        raise Interruption(number)


_raising: _Raising | None = None


def _is_main() -> bool:
    """Whether this is the main thread: Python allows handlers nowhere else."""
    return threading.current_thread() is threading.main_thread()


def handled() -> list[int]:
    """The signals that are handled: nohup has SIGHUP ignored, and the run is to outlive its terminal."""
    hangup = getattr(signal, "SIGHUP", None)
    return [number for number in SIGNALS if number != hangup or signal.getsignal(number) != signal.SIG_IGN]


def exit_on_interrupt() -> None:
    """From here on, a signal ends the process with one word instead of a traceback through half-imported modules."""
    _terminals[:] = [descriptor for descriptor in range(3) if os.isatty(descriptor)]
    if _is_main():
        for number in handled():
            signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as Python calls it
    leave_terminal(number)
    sys.stderr.write("Interrupted.\n")
    sys.stderr.flush()
    os._exit(128 + number)  # an exception would be caught, and printed, by whatever is being imported


def leave_terminal(number: int) -> None:
    """After SIGHUP, send to nowhere what would go to the terminal: it is closed, and writing to it fails.

    Args:
        number: The signal that came; others change nothing.
    """
    if number != getattr(signal, "SIGHUP", None) or not _terminals:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    while _terminals:
        os.dup2(nowhere, _terminals.pop())
    os.close(nowhere)


@contextmanager
def raise_interrupts() -> Iterator[None]:
    """Inside the block, a signal raises :class:`Interruption`, so that files are closed and results are recorded.

    Python loses an exception that a signal raises inside of a finalizer, as those of its own imports: it is raised
    again.

    Example:
        >>> with raise_interrupts():
        ...     signal.raise_signal(signal.SIGTERM)
        Traceback (most recent call last):
        eblvm_lit.utils.interrupts.Interruption: Stopped by SIGTERM.
    """
    global _raising
    if not _is_main():
        yield
        return
    outer, _raising = _raising, _Raising()
    hook = sys.unraisablehook
    before = {number: signal.signal(number, _raising) for number in handled()}
    sys.unraisablehook = _again(hook)
    try:
        yield
    finally:
        sys.unraisablehook, _raising = hook, outer
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _again(hook: Any) -> Any:
    """A hook of lost exceptions that has an interruption raised again, outside of the finalizer."""

    def lost(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not isinstance(error, Interruption):
            hook(unraisable)
            return
        if _raising is not None:
            _raising.at = None
        threading.Timer(AGAIN, os.kill, (os.getpid(), error.number)).start()

    return lost


def received(number: int) -> None:
    """Take note of a signal that another handler acts upon: those of its burst raise nothing.

    Args:
        number: The signal.
    """
    leave_terminal(number)
    if _raising is not None:
        _raising.at = time.monotonic()


@contextmanager
def hold() -> Iterator[None]:
    """Inside the block, a signal waits: what is written there is written to its end.

    Example:
        >>> written = []
        >>> with raise_interrupts(), hold():
        ...     signal.raise_signal(signal.SIGTERM)
        ...     written.append("all of it")
        Traceback (most recent call last):
        eblvm_lit.utils.interrupts.Interruption: Stopped by SIGTERM.
        >>> written
        ['all of it']
    """
    handler = _raising if _is_main() else None
    if handler is None:
        yield
        return
    handler.n_holds += 1
    try:
        yield
    finally:
        handler.n_holds -= 1
        waiting, handler.waiting = handler.waiting, 0
        if waiting:
            handler(waiting)
