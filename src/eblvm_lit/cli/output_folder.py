"""The Hydra callback that creates the folder of a run or a sweep before Hydra does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override

from eblvm_lit.cli.sweeps import set_key
from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.folders import claimed, new_folder, prepare_folder

__all__ = ["CheckOutputFolder"]


class CheckOutputFolder(Callback):
    """Creates the output folder before Hydra does, so that an error is reported without a traceback."""

    # The locks on folders, held until the process exits. They are a class attribute, because launchers pickle callbacks
    # and locks cannot be pickled.
    claims = ExitStack()

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002 - Hydra's signature
        """Create the folder of a run; a timestamp that another run already uses gets a numeric suffix."""
        with _exiting(), flag_override(config, ["struct", "readonly"], False):
            config.hydra.run.dir = str(_make(config, "run"))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002
        """Create the folder of a sweep, and lock it against other processes until the sweep ends.

        Hydra writes ``multirun.yaml`` next, and a sweep is resumed from this file. A folder with another sweep is
        therefore refused here, before its file is overwritten.
        """
        with _exiting():
            folder = _make(config, "sweep")
            set_key(config, "hydra.sweep.dir", str(folder))
            self.claims.enter_context(claimed(folder))
            if (folder / "multirun.yaml").is_file() and not OmegaConf.select(config, "sweep.resume"):
                raise ConfigError(
                    f"{folder} already contains a sweep: resume it with sweep.resume=true, or choose another folder by "
                    "hydra.sweep.dir=... ."
                )


def _make(config: DictConfig, kind: str) -> Path:
    """Create the folder of a ``run`` or ``sweep``, or reuse it if the user named it or another process created it."""
    typed = OmegaConf.select(config, "hydra.overrides.hydra") or []
    named = any(text.startswith(f"hydra.{kind}.dir=") for text in typed)
    # read the variables directly: Lightning's rank_zero_only, which reads them, too, takes seconds to import
    later = any(int(os.environ.get(name, 0)) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return (prepare_folder if named or later else new_folder)(config.hydra[kind].dir)


@contextmanager
def _exiting() -> Iterator[None]:
    """Exit the process if an error occurs, because Hydra turns exceptions of callbacks into warnings and continues."""
    try:
        yield
    except ConfigError as error:
        sys.exit(f"ERROR: {error}")
