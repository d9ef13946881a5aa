"""The Hydra callback that resumes a sweep at its start, and shows its jobs and reports failed ones at its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from eblvm_lit.cli.console import prepare_folder
from eblvm_lit.cli.sweeps.folder import earlier_sweep
from eblvm_lit.cli.sweeps.launcher import check_launcher, prepare_worker
from eblvm_lit.cli.sweeps.search import is_search, prepare_search
from eblvm_lit.cli.sweeps.summary import read_jobs, show_jobs
from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.training.status import FINISHED

__all__ = ["Sweep", "refuse_another_sweep"]


class Sweep(Callback):
    """Resumes in the folder of an earlier start if ``sweep.resume`` is true, and shows all jobs and errors at the end.

    Errors end the process by ``sys.exit``: Hydra turns exceptions of callbacks into warnings and continues.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Prepare a worker process of joblib, which gets this object before it composes and runs its job."""
        self.__dict__.update(state)
        prepare_worker()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002 - Hydra's signature
        """Check the launcher and find the earlier folder, before anything is written."""
        try:
            check_launcher(config.hydra.launcher._target_)
            if config.sweep.resume:
                _move(config, earlier_sweep(config))
            folder = prepare_folder(config.hydra.sweep.dir)
            refuse_another_sweep(config, folder)
            prepare_search(config)
        except EblvmError as error:
            sys.exit(f"ERROR: {error}")

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:  # noqa: ARG002
        """Drop the configuration of the job, which Hydra would keep in memory until the end of the sweep."""
        job_return.cfg = job_return.hydra_cfg = None

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002
        """Show all jobs; name those that have not finished, and exit with an error if there are any."""
        folder = Path(config.hydra.sweep.dir)
        jobs = read_jobs(folder)
        if any(job.metrics for job in jobs):
            show_jobs(jobs, folder, config.get("optimized_metric"))
        bad = [f"  job {job.name}: see its train.log" for job in jobs if job.state != FINISHED]
        text = "\n".join([f"{len(bad)} of {len(jobs)} jobs in {folder} have not finished:", *bad])
        if bad and is_search(config):  # they count as the worst value
            print(f"WARNING: {text}", file=sys.stderr)
        elif bad:
            sys.exit(f"ERROR: {text}")


def refuse_another_sweep(config: DictConfig, folder: Path) -> None:
    """Refuse jobs whose numbers an earlier sweep in the folder has: Hydra would overwrite what it says of them."""
    named: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
    numbered = "job.num" in str(named.get("subdir"))
    if numbered and not config.sweep.resume and (folder / "0" / "config.yaml").is_file():
        raise ConfigError(
            f"{folder} holds a sweep already: continue it with sweep.resume=true, or choose another folder by "
            "hydra.sweep.dir=... ."
        )


def _move(config: DictConfig, folder: Path) -> None:
    """Change the folder of the sweep; Hydra composes the jobs from the overrides, so these change, too."""
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder)
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{quoted}'")
