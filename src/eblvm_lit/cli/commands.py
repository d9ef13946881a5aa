"""The commands eblvm-train and eblvm-evaluate, which train.py and evaluate.py run, too."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["evaluate", "train"]


def _train(cfg: DictConfig) -> dict[str, float]:
    from eblvm_lit.runs import run  # takes ten seconds, for which errors in the command need not wait

    return run.train(cfg)


def _evaluate(cfg: DictConfig) -> dict[str, float]:
    from eblvm_lit.runs import run

    return run.evaluate(cfg)


def _start(function: Callable[[DictConfig], dict[str, float]], config_name: str) -> None:
    """Compose the configuration of the command line, and call a function of it."""
    import hydra
    from hydra.errors import HydraException

    from eblvm_lit.cli.hints import sentence
    from eblvm_lit.runs.groups import HYDRA, conf_folder

    def task(cfg: DictConfig) -> float | None:
        from eblvm_lit.cli import cli  # takes half a second, for which --help need not wait

        return cli.main(function, cfg)

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises what it would otherwise print in its own words
    try:
        options = HYDRA or {"execution_whitelist": ["eblvm_lit.*"]}  # Hydra's own callbacks
        hydra.main(config_path=str(conf_folder()), config_name=config_name, **options)(task)()
    except (HydraException, ValueError) as error:
        if isinstance(error, ValueError) and not str(error).startswith("Config group override must be"):
            raise
        sys.exit(f"ERROR: {sentence(error, config_name, sys.argv[1:])}")
    except OSError as error:  # after those of Hydra, some of which are also of this class
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(
            f"ERROR: {error.strerror}: make room, or choose another place by hydra.run.dir=... or hydra.sweep.dir=... ."
        )


def train() -> None:
    """Train a model: eblvm-train [GROUP=OPTION] [KEY=VALUE]; --help lists them."""
    _start(_train, "config")


def evaluate() -> None:
    """Evaluate a checkpoint on the test split: eblvm-evaluate ckpt=PATH."""
    _start(_evaluate, "evaluate")
