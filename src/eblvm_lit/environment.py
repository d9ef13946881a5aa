"""What a run ran on: hardware and versions."""

from __future__ import annotations

import functools
import platform
import subprocess
from pathlib import Path

import torch

__all__ = ["commit", "device_name", "environment"]


def environment() -> dict[str, str | None]:
    """Machine and versions, as a run leaves them.

    Example:
        >>> sorted(environment())
        ['commit', 'host', 'python', 'torch']
    """
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(Path(__file__).parent),
    }


def device_name(device: torch.device) -> str:
    """The name its maker gave a device.

    Args:
        device: Of this machine.

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


@functools.cache
def commit(folder: Path) -> str | None:
    """The version of the code by git, with ``-dirty`` where it was changed since; None where it is not under git.

    Args:
        folder: Of the code.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # an installed package may lie inside of another repository
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None
