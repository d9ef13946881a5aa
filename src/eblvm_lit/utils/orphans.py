"""The end of a run's process when the process that started it is gone."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

__all__ = ["STARTING", "end_with_parent"]

STARTING = "EBLVM_LIT_STARTING"  # a variable in the environment of a run's processes, read when they import the package


def end_with_parent() -> None:
    """Let the system kill this process when the process that started it is gone; exit now if it is already gone.

    The system sends SIGKILL, because SIGINT, which torch asks for, is not enough. It does not end a process that is
    connecting to the others: waiting for a process that is gone blocks the interpreter for minutes. Nor does it end one
    that a shell started in the background, where SIGINT is ignored. The last checkpoint stays intact.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        os._exit(1)
