"""Callbacks that stop a run at a certain point.

The configurations of tests name them as users name their own callbacks.
"""

import os
import signal
import time
from pathlib import Path

import pytorch_lightning as pl

__all__ = ["CrashAt", "KillAt", "PauseAt"]


class CrashAt(pl.Callback):
    """Raises an error in the middle of an iteration, as a bug or a lack of memory would."""

    def __init__(self, *, iteration: int) -> None:
        self.iteration = iteration

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step + 1 == self.iteration:
            raise RuntimeError("crashed on purpose")


class PauseAt(pl.Callback):
    """Waits in the middle of an iteration until a file appears, and creates another file when it starts to wait."""

    def __init__(self, *, iteration: int, folder: str) -> None:
        self.iteration = iteration
        self.folder = Path(folder)

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step + 1 == self.iteration:
            (self.folder / "paused").touch()
            parent = os.getppid()  # The parent's id changes if the test has ended, which would create the file.
            while not (self.folder / "go").exists() and os.getppid() == parent:
                time.sleep(0.02)


class KillAt(pl.Callback):
    """Kills the process in the middle of an iteration, but only once.

    The callback writes a file first, and does nothing where this file exists.
    """

    def __init__(self, *, iteration: int, flag: str) -> None:
        self.iteration = iteration
        self.flag = Path(flag)

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step + 1 == self.iteration and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
