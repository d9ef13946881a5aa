"""Write checkpoint files atomically, read them as plain data, and load them into a method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from pytorch_lightning.plugins.io import TorchCheckpointIO

from eblvm_lit import __version__
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.methods.base import PRIOR_STATISTICS, Method
from eblvm_lit.utils.io import write_whole
from eblvm_lit.utils.moved import with_present_names
from eblvm_lit.utils.untrusted import read_tensors, refuse_endless

__all__ = [
    "AVERAGES",
    "AtomicCheckpointIO",
    "checkpoint_file",
    "copy_checkpoint",
    "load_checkpoint",
    "restore",
    "tested_checkpoint",
]

# The key of a checkpoint under which callbacks=ema stores the moving averages, as a dict with the keys of state_dict.
AVERAGES = "averages"


def checkpoint_file(path: str | Path, which: str = "last") -> Path:
    """Return the path of a checkpoint, given its file or the folder of its run.

    Args:
        path: A checkpoint, or the folder of a run.
        which: The checkpoint of a folder, ``last`` or ``best``.

    Raises:
        DataError: If there is no such checkpoint.

    Example:
        >>> checkpoint_file("nowhere")
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: There is no checkpoint at nowhere; ...
    """
    file = Path(path) / "checkpoints" / f"{which}.ckpt" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DataError(f"There is no checkpoint at {file}; name a file, or the folder of a run.")
    return file


def tested_checkpoint(path: str | Path) -> Path:
    """Return the path of the checkpoint to which the final metrics of a run belong, given the folder of the run.

    It is ``best`` if the run was configured with ``test_checkpoint=best`` and has come to its first validation, and
    otherwise ``last``. The path of a file is returned unchanged.

    Raises:
        DataError: If there is no such checkpoint.
    """
    settings = Path(path) / "config.yaml"
    is_best = settings.is_file() and OmegaConf.load(settings).get("test_checkpoint") == "best"
    return checkpoint_file(path, "best" if is_best and (Path(path) / "checkpoints" / "best.ckpt").is_file() else "last")


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, given its file or the folder of its run, without executing code that it may contain.

    Raises:
        DataError: If there is no such file, or if it is damaged, contains more than data, or was written by another
            program or version.
    """
    path = checkpoint_file(path)
    checkpoint = read_tensors(path)
    ours = checkpoint.get("eblvm_lit") if isinstance(checkpoint, dict) else None
    if not isinstance(ours, dict):
        raise DataError(f"{path} is not a checkpoint of eblvm_lit.")
    refuse_endless(ours, str(path))
    version, own = (".".join(str(text).split(".")[:2]) for text in (ours.get("version", "0.2"), __version__))
    if version != own:
        raise DataError(f"{path}: checkpoints of version {version} cannot be read by {own}; use that version.")
    ours["config"] = with_present_names(ours.get("config"))
    ours["method"] = with_present_names({"_target_": ours.get("method")})["_target_"]
    return checkpoint


def copy_checkpoint(source: Path, target: Path, config: Mapping[str, Any]) -> None:
    """Copy a checkpoint into the folder of a run that resumes from it, with the configuration of this run.

    The configuration of a checkpoint says how its model is sampled and evaluated, which may differ between the runs.

    Args:
        source: The checkpoint from which the run resumes.
        target: The file to write, which may be ``source`` itself.
        config: The configuration of the run that resumes.

    Raises:
        DataError: If the checkpoint cannot be read, or the copy cannot be written.
    """
    content = load_checkpoint(source)
    content["eblvm_lit"]["config"] = dict(config)
    write_whole(target, lambda file: torch.save(content, file))


def restore(method: Method, checkpoint: Mapping[str, Any], path: str | Path, weights: str = "raw") -> int:
    """Load a checkpoint's parameters and buffers into a method, after converting the method to their dtype.

    A shared model lacks the buffers that only training needs; these buffers keep their current values.

    Args:
        method: The method.
        checkpoint: The content of the checkpoint.
        path: The file of the checkpoint, for messages.
        weights: ``raw`` for the parameters, ``ema`` for their moving averages.

    Returns:
        The iteration of the checkpoint.

    Raises:
        ConfigError: If the checkpoint is of another method or other sizes, or if it has no averages and ``weights`` is
            ``ema``.
    """
    found = checkpoint["eblvm_lit"]
    state = checkpoint["state_dict"]
    if found["method"] != (name := torch.typename(type(method))):
        raise ConfigError(f"{path} was written by {found['method']}, but this run is a {name}.")
    if weights == "ema":
        if AVERAGES not in checkpoint:
            raise ConfigError(f"{path} contains no averages of parameters: train with callbacks=ema, or use raw ones.")
        state = {**state, **checkpoint[AVERAGES]}
    if rows := [len(state[name]) for name in method.per_example if name in state]:
        method.keep_examples(rows[0])
    method.to(next((value.dtype for value in state.values() if value.is_floating_point()), torch.float32))
    try:
        unshared = {name: value for name, value in method.state_dict().items() if name in method.unshared_buffers()}
        method.load_state_dict({**unshared, **state})
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip().rstrip(".")
        raise ConfigError(f"{path} contains a model of other sizes than this run's ({reason}).") from None
    if weights == "raw" and PRIOR_STATISTICS in checkpoint:
        method.load_prior_statistics(checkpoint[PRIOR_STATISTICS])
    return found["iteration"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically: to a temporary file, which is flushed to disk and then renamed."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:  # noqa: ARG002
        """Save a checkpoint; if that fails, an existing file of the same name stays unchanged.

        Raises:
            DataError: If the file cannot be written.
        """
        write_whole(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        """Load a checkpoint as plain data; see :func:`load_checkpoint`."""
        return load_checkpoint(path)
