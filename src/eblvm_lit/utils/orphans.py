"""A function that ends the child processes of a run when their parent process dies."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

__all__ = ["STARTING", "end_with_parent"]

# The environment variable that a run sets for the processes that it starts. If the variable is set, importing this
# package calls end_with_parent.
STARTING = "EBLVM_LIT_STARTING"


def end_with_parent() -> None:
    """Let the system kill this process when its parent process dies; exit now if the parent is already dead.

    The system sends SIGKILL, because SIGINT, which torch asks for, is not enough. SIGINT does not stop a process that
    is connecting to the others, because waiting for a dead process blocks the interpreter for minutes. Nor does it stop
    a process that a shell started in the background, where SIGINT is ignored. The last checkpoint stays intact.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG: send this signal when the parent dies
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        os._exit(1)
