"""A further process of a run, which the first one starts: python -m eblvm_lit.distributed.worker config.yaml."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

from omegaconf import OmegaConf

__all__ = ["main"]


def _leave_with(parent: int) -> None:
    """End where the first process has ended without saying so: nobody else would end this one in a collective."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def main(path: str) -> int:
    """Take part in a run.

    Args:
        path: The resolved configuration that the first process has left.

    Returns:
        The exit code.
    """
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from eblvm_lit.errors import EblvmError
    from eblvm_lit.runtime import run

    try:
        run.train(OmegaConf.load(path))
    except EblvmError as error:
        logging.getLogger(__name__).error("%s", error)
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
