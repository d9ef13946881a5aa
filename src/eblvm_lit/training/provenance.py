"""The origin of a run: its experiment and sweep, code version, and machine."""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

__all__ = ["Job", "code_version", "device_name", "environment", "this_job"]


class Job(NamedTuple):
    """The identity of a run for loggers.

    Attributes:
        kind: ``train`` or ``evaluate``.
        experiment: The name of its file in ``conf/experiment``, if any.
        sweep: The folder of its sweep, if any.
        name: The overrides of the command line.
        choices: The chosen method, data and model.
    """

    kind: Literal["train", "evaluate"]
    experiment: str | None = None
    sweep: str | None = None
    name: str | None = None
    choices: dict[str, str] = {}  # noqa: RUF012 - never modified

    @property
    def group(self) -> str | None:
        """The name of its group on dashboards: the experiment and the sweep.

        Example:
            >>> Job("train", experiment="bism_fig3", sweep="2026-01-01/10-00-00").group
            'bism_fig3 2026-01-01/10-00-00'
        """
        return " ".join(part for part in (self.experiment, self.sweep) if part) or None


def this_job(kind: Literal["train", "evaluate"]) -> Job:
    """The identity of the present run, according to Hydra; without Hydra, only its kind is known.

    Example:
        >>> this_job("evaluate").group is None
        True
    """
    if not HydraConfig.initialized():
        return Job(kind)
    hydra = HydraConfig.get()
    chosen = {name: hydra.runtime.choices.get(name) for name in ("experiment", "method", "data", "model")}
    choices = {name: str(value) for name, value in chosen.items() if value not in (None, "null")}
    experiment = choices.pop("experiment", None)
    sweep = "/".join(Path(hydra.sweep.dir).parts[-2:]) if hydra.mode == RunMode.MULTIRUN else None
    return Job(kind, experiment, sweep, " ".join(hydra.overrides.task) or None, choices)


@functools.cache
def code_version() -> dict[str, str | bool | None]:
    """Versions of the package and its main dependencies, the git commit, and whether tracked files were changed.

    Example:
        >>> sorted(code_version())
        ['changed', 'commit', 'eblvm_lit', 'pytorch_lightning', 'torch']
    """
    tracked = _git("ls-files", "--error-unmatch", "__init__.py")  # not a repository that contains the environment
    commit = _git("rev-parse", "HEAD") if tracked else None
    try:
        own = version("eblvm_lit")
    except PackageNotFoundError:  # run from the source folder without installation
        own = None
    return {
        "eblvm_lit": own,
        "commit": commit,
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")) if commit else None,
        "torch": torch.__version__,
        "pytorch_lightning": version("pytorch_lightning"),
    }


def _git(*arguments: str) -> str | None:
    """The output of git in the folder of the package; None if git fails."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def environment() -> dict[str, str | None]:
    """Machine and versions for ``status.json``; the commit ends in ``-dirty`` if tracked files were changed.

    Example:
        >>> sorted(environment())
        ['commit', 'host', 'python', 'torch']
    """
    code = code_version()
    commit = code["commit"] and code["commit"][:12] + ("-dirty" if code["changed"] else "")
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit,
    }


def device_name(device: torch.device) -> str:
    """The product name of a device of this machine.

    Example:
        >>> bool(device_name(torch.device("cpu")))
        True
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor() if device.type == "cpu" else device.type


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()  # on Linux; on other systems, Python reports it
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine() or "cpu"
