"""The beginning and the end of a sweep, as Hydra calls for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, open_dict, read_write

from eblvm_lit.errors import EblvmError
from eblvm_lit.runtime.status import FINISHED, STATUS, read_status
from eblvm_lit.runtime.sweeps.folder import earlier_sweep
from eblvm_lit.runtime.sweeps.launcher import check_launcher

__all__ = ["Sweep"]


class Sweep(Callback):
    """Goes on in the folder of an earlier start if ``sweep.resume`` asks for it, and names the failed jobs at the end.

    Hydra would turn an exception here into a warning and go on: a sentence and an exit are what stops it.
    """

    def __init__(self) -> None:
        self._before: dict[Path, int] = {}

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002 - Hydra's signature
        """Before anything is written."""
        try:
            check_launcher(config.hydra.launcher._target_)
            if config.sweep.resume:
                _move(config, earlier_sweep(config))
        except EblvmError as error:
            sys.exit(f"ERROR: {error}")
        self._before = _changes(Path(config.hydra.sweep.dir))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:  # noqa: ARG002
        """Drop what nobody reads: Hydra would keep the configurations of all jobs to the end of the sweep."""
        job_return.cfg = job_return.hydra_cfg = None

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002
        """A line for each job of this start that has not finished, and a code that says so."""
        folder = Path(config.hydra.sweep.dir)
        changes = _changes(folder)
        bad = []
        for path in sorted(changes, key=lambda path: (len(path.parts), len(path.name), path)):
            status = read_status(path)
            if changes[path] != self._before.get(path) and status["state"] != FINISHED:
                name = path.relative_to(folder)
                bad.append(f"  job {name}: {status['state']}. {status.get('reason', '')}".rstrip())
        if bad:
            sys.exit("\n".join([f"ERROR: {len(bad)} of {len(changes)} jobs in {folder} have not finished:", *bad]))


def _changes(folder: Path) -> dict[Path, int]:
    """When each job last spoke."""
    return {path.parent: path.stat().st_mtime_ns for path in folder.glob(f"**/{STATUS}")}


def _move(config: DictConfig, folder: Path) -> None:
    """Give the sweep a folder: the jobs are composed anew, from the overrides."""
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder)
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{quoted}'")
