"""Entry point of the processes that the first one starts: python -m eblvm_lit.training.worker config.yaml."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import cast

from omegaconf import DictConfig, OmegaConf

__all__ = ["main"]


def _exit_with(parent: int) -> None:
    """End this process when its parent has died: otherwise it would wait forever in a collective."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def main(path: str) -> int:
    """Take part in a run.

    Args:
        path: The resolved configuration that the first process has written.

    Returns:
        The exit code.
    """
    threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from eblvm_lit.cli import run
    from eblvm_lit.errors import EblvmError

    try:
        cfg = cast(DictConfig, OmegaConf.load(path))
        cfg.resume = None  # the first process has compared the settings
        run.train(cfg)
    except EblvmError as error:
        logging.getLogger(__name__).error("%s", error)
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
