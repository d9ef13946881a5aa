"""Whose a checkpoint is, and whether a method can go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from eblvm_lit.errors import ConfigError

__all__ = ["check_resumable", "class_name", "counted_in_blocks"]


def class_name(method: nn.Module) -> str:
    """What checkpoints call a method.

    Example:
        >>> class_name(nn.Linear(1, 1))
        'torch.nn.modules.linear.Linear'
    """
    return f"{type(method).__module__}.{type(method).__qualname__}"


def check_resumable(method: nn.Module, checkpoint: Mapping[str, Any], path: Path) -> int:
    """Refuse a checkpoint of something else.

    Args:
        method: What would go on from it, or be evaluated with its parameters.
        checkpoint: Its content.
        path: Its file, for the sentence.

    Returns:
        The iteration it was written at.

    Raises:
        ConfigError: If method or parameters differ.

    Example:
        >>> small, large = nn.Linear(1, 1), nn.Linear(1, 2)
        >>> found = {"method": class_name(small), "iteration": 7}
        >>> checkpoint = {"eblvm_lit": found, "state_dict": small.state_dict()}
        >>> check_resumable(small, checkpoint, Path("last.ckpt"))
        7
        >>> check_resumable(large, checkpoint, Path("last.ckpt"))
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: last.ckpt holds a model of other sizes than this run's (bias, weight).
    """
    name, found = class_name(method), checkpoint["eblvm_lit"]
    if found["method"] != name:
        raise ConfigError(f"{path} was written by {found['method']}, but this run is a {name}.")
    shapes = {key: tuple(value.shape) for key, value in method.state_dict().items()}
    stored = {key: tuple(value.shape) for key, value in checkpoint["state_dict"].items()}
    if shapes != stored:
        differing = sorted(key for key in shapes.keys() | stored.keys() if shapes.get(key) != stored.get(key))
        raise ConfigError(f"{path} holds a model of other sizes than this run's ({', '.join(differing)}).")
    return found["iteration"]


def counted_in_blocks(checkpoint: dict[str, Any], block: int) -> None:
    """Set Lightning's counts of calls to what they are in blocks of this size.

    A run in other blocks, or one that was stopped in the middle of one, has made others.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    done = checkpoint["eblvm_lit"]["iteration"] // block
    for counts in (progress["total"], progress["current"]):
        later = counts["ready"] - done
        counts.update({name: counts[name] - later for name in ("ready", "started", "processed", "completed")})
