"""The origin of a run: its experiment and sweep, the command that resumes it, and the name of its device."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from eblvm_lit.utils.command_line import pasteable

__all__ = ["Job", "device_name", "resume_command"]


class Job(NamedTuple):
    """The labels by which loggers identify a run.

    Attributes:
        kind: The command, ``train`` or ``evaluate``.
        experiment: The name of the run's file in ``conf/experiment``, if any.
        sweep: The folder of the run's sweep, if any.
        name: The overrides of the command line.
        choices: The chosen method, data and model.
    """

    kind: str = "train"
    experiment: str | None = None
    sweep: str | None = None
    name: str | None = None
    choices: dict[str, str] = {}  # noqa: RUF012 - never modified

    @property
    def group(self) -> str | None:
        """The name of the run's group on dashboards: the experiment and the sweep.

        Example:
            >>> Job(experiment="bism_fig3", sweep="2026-01-01/10-00-00").group
            'bism_fig3 2026-01-01/10-00-00'
        """
        return " ".join(part for part in (self.experiment, self.sweep) if part) or None

    @classmethod
    def current(cls) -> Job:
        """Return the labels of the current run from Hydra's configuration; they are empty outside of a Hydra run.

        Example:
            >>> Job.current().group is None
            True
        """
        if not HydraConfig.initialized():
            return cls()
        hydra = HydraConfig.get()
        chosen = {name: hydra.runtime.choices.get(name) for name in ("experiment", "method", "data", "model")}
        choices = {name: str(value) for name, value in chosen.items() if value not in (None, "null")}
        experiment = choices.pop("experiment", None)
        sweep = "/".join(Path(hydra.sweep.dir).parts[-2:]) if hydra.mode == RunMode.MULTIRUN else None
        return cls(hydra.job.name, experiment, sweep, " ".join(hydra.overrides.task) or None, choices)


def resume_command(folder: str | Path) -> str:
    """Return instructions for resuming a stopped run; a job of a sweep is resumed with the whole sweep.

    Example:
        >>> resume_command("outputs/a")
        'resume with the same command and ckpt=outputs/a/checkpoints/last.ckpt, or ckpt=last'
    """
    own = f"resume with the same command and {pasteable('ckpt', f'{folder}/checkpoints/last.ckpt')}, or ckpt=last"
    return "resume the sweep with the same command and sweep.resume=true" if Job.current().sweep else own


def device_name(device: torch.device) -> str:
    """Return the product name of a GPU, or the type of another device, such as ``cpu``.

    Example:
        >>> device_name(torch.device("cpu"))
        'cpu'
    """
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
