"""The end of a process of a run when the one that has started it is gone."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

__all__ = ["STARTING", "end_with_parent"]

STARTING = "EBLVM_LIT_STARTING"  # set in the environment of the processes of a run, which import the package first


def end_with_parent() -> None:
    """Let the system end this process when the one that started it is gone, or end it here if that is gone already.

    SIGINT, which torch lets it send, does not end a process that meets the others at a start, because the connection
    to a process that is gone holds the interpreter for minutes, nor one that a shell started in the background, where
    SIGINT is ignored. The last checkpoint is intact.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        os._exit(1)
