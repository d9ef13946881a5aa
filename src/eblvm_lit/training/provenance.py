"""The origin of a run: its experiment and sweep, code version, and machine."""

from __future__ import annotations

import functools
import platform
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from eblvm_lit import __version__
from eblvm_lit.utils.command_line import pasteable

__all__ = ["Job", "device_name", "environment", "resume_command"]


class Job(NamedTuple):
    """The identity of a run for loggers.

    Attributes:
        kind: ``train`` or ``evaluate``.
        experiment: The name of its file in ``conf/experiment``, if any.
        sweep: The folder of its sweep, if any.
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
        """The name of its group on dashboards: the experiment and the sweep.

        Example:
            >>> Job(experiment="bism_fig3", sweep="2026-01-01/10-00-00").group
            'bism_fig3 2026-01-01/10-00-00'
        """
        return " ".join(part for part in (self.experiment, self.sweep) if part) or None

    @classmethod
    def current(cls) -> Job:
        """The identity of the present run, according to Hydra; without Hydra, nothing is known.

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
    """How a stopped run is resumed, in words; a job of a sweep with its sweep.

    Example:
        >>> resume_command("outputs/a")
        'resume with the same command and ckpt=outputs/a/checkpoints/last.ckpt, or ckpt=last'
    """
    own = f"resume with the same command and {pasteable('ckpt', f'{folder}/checkpoints/last.ckpt')}, or ckpt=last"
    return "resume the sweep with the same command and sweep.resume=true" if Job.current().sweep else own


@functools.cache
def environment() -> dict[str, str | None]:
    """Machine and versions; the commit ends in ``-dirty`` if tracked files were changed, and is None elsewhere.

    Example:
        >>> sorted(environment())
        ['commit', 'eblvm_lit', 'host', 'python', 'pytorch_lightning', 'torch']
    """
    tracked = _git("ls-files", "--error-unmatch", "__init__.py")  # not a repository that contains the environment
    return {
        "eblvm_lit": __version__,
        "commit": _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") if tracked else None,
        "torch": torch.__version__,
        "pytorch_lightning": pl.__version__,
        "python": platform.python_version(),
        "host": platform.node(),
    }


def _git(*arguments: str) -> str | None:
    """The output of git in the folder of the package; None if git fails."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def device_name(device: torch.device) -> str:
    """The product name of a GPU; the kind of another device.

    Example:
        >>> device_name(torch.device("cpu"))
        'cpu'
    """
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
