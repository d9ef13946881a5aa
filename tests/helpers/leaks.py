"""A callback of Hydra's that notes what the process holds after each job of a sweep."""

import gc
import json
import logging
import os
import threading
from pathlib import Path

from hydra.experimental.callback import Callback

__all__ = ["Meter"]


def held():
    """Memory in MiB, open files, threads, handlers of all loggers, loggers."""
    gc.collect()
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "handlers": sum(len(logger.handlers) for logger in loggers),
        "loggers": len(loggers),
    }


class Meter(Callback):
    """Writes a line a job."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_job_end(self, config, job_return, **kwargs):
        with self.path.open("a") as file:
            file.write(json.dumps(held()) + "\n")
