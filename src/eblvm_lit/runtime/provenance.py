"""Where a run comes from: its experiment and sweep, its code, its machine."""

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
    """A run among others.

    Attributes:
        kind: ``train`` or ``evaluate``.
        experiment: The file of ``conf/experiment``, if it is one.
        sweep: The sweep it belongs to, if it does: the folder of its jobs.
        name: What was chosen for it on the command line.
        choices: Its method, data and model, by the names of their files.
    """

    kind: Literal["train", "evaluate"]
    experiment: str | None = None
    sweep: str | None = None
    name: str | None = None
    choices: dict[str, str] = {}  # noqa: RUF012 - never written to

    @property
    def group(self) -> str | None:
        """What it is shown together with: its experiment, and in it its sweep.

        Example:
            >>> Job("train", experiment="bism_fig3", sweep="2026-01-01/10-00-00").group
            'bism_fig3 2026-01-01/10-00-00'
        """
        return " ".join(part for part in (self.experiment, self.sweep) if part) or None


def this_job(kind: Literal["train", "evaluate"]) -> Job:
    """What Hydra knows of the run in this process; nothing, where it was not Hydra that started it.

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
    """The package's version, and the commit it is of where it is a clone: with ``changed`` if it has been edited.

    Example:
        >>> sorted(code_version())
        ['changed', 'commit', 'eblvm_lit', 'pytorch_lightning', 'torch']
    """
    tracked = _git("ls-files", "--error-unmatch", "__init__.py")  # not some other repository we are installed below
    commit = _git("rev-parse", "HEAD") if tracked else None
    try:
        own = version("eblvm_lit")
    except PackageNotFoundError:  # run from its source, not installed
        own = None
    return {
        "eblvm_lit": own,
        "commit": commit,
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")) if commit else None,
        "torch": torch.__version__,
        "pytorch_lightning": version("pytorch_lightning"),
    }


def _git(*arguments: str) -> str | None:
    """What git says in the package's folder; None where it says no."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def environment() -> dict[str, str | None]:
    """Machine and versions, as ``status.json`` records them; the commit ends in ``-dirty`` where files were edited.

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
        lines = Path("/proc/cpuinfo").read_text().splitlines()  # Linux; elsewhere Python knows it
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine() or "cpu"
