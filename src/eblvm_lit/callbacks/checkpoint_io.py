"""Reading and writing of checkpoint files, as plain data and atomically."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.io import refuse_url, write_whole

__all__ = ["AtomicCheckpointIO", "check_restorable", "checkpoint_file", "load_checkpoint"]

# The entries that this package adds to a checkpoint, and their types.
KEYS = {"method": str, "iteration": int, "config": dict}
# The entries of Lightning that a run needs to resume.
RESTORED = {"loops": dict, "optimizer_states": list, "global_step": int}


def checkpoint_file(path: str | Path, which: str = "last") -> Path:
    """The checkpoint that a file or the folder of a run stands for.

    Args:
        path: A checkpoint, or the folder of a run.
        which: ``last`` or ``best``, of a folder.

    Raises:
        DataError: If there is none.
        ConfigError: If it is an address.

    Example:
        >>> checkpoint_file("https://example.org/last.ckpt")
        Traceback (most recent call last):
        eblvm_lit.errors.ConfigError: ckpt=https://example.org/last.ckpt is an address, ...
    """
    refuse_url("ckpt", path)
    path = Path(path)
    if path.is_dir():
        file = path / "checkpoints" / f"{which}.ckpt"
        if not file.is_file():
            raise DataError(f"{path} holds no finished run: a run's folder has checkpoints/{which}.ckpt.")
        return file
    if not path.is_file():
        raise DataError(f"There is no checkpoint at {path}.")
    return path


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, given by its file or by the folder of its run, as data: nothing in it is executed.

    Raises:
        DataError: If the file is missing, damaged, holds more than data, or is not a checkpoint of this package.
        ConfigError: If it is named by an address.
    """
    path = checkpoint_file(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises half a dozen types here, from truncated zip archives to forbidden pickles
        raise DataError(
            f"{path} is not a readable checkpoint (truncated, or not plain data): {_reason(error)}."
        ) from None
    ours = checkpoint.get("eblvm_lit") if isinstance(checkpoint, dict) else None
    if not isinstance(ours, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise DataError(f"{path} is not a checkpoint of eblvm_lit: it lacks state_dict or eblvm_lit.")
    for key, kind in KEYS.items():
        if not isinstance(ours.get(key), kind):
            raise DataError(f"{path} is not a checkpoint of eblvm_lit: its {key} is missing or damaged.")
    for name, value in checkpoint["state_dict"].items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise DataError(f"{path} is not a checkpoint of eblvm_lit: its state_dict holds more than tensors.")
    if not _holds_numbers(checkpoint.get("validation", {})):
        raise DataError(f"{path} is not a checkpoint of eblvm_lit: its validation is damaged.")
    return checkpoint


def _holds_numbers(content: Any) -> bool:
    """Whether it maps names to numbers."""
    if not isinstance(content, dict):
        return False
    return all(isinstance(name, str) and isinstance(value, float) for name, value in content.items())


def _reason(error: Exception) -> str:
    """torch's reason, without its advice to load the file although it holds more than data."""
    text = str(error).strip()
    if "weights_only" in text or "Weights only" in text:
        found = re.search(r"(?:GLOBAL|Can only \w+ \w+ for)\s+([\w.]+)", text)
        return "it holds more than data" + (f", such as {found[1]}" if found else "")
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def check_restorable(checkpoint: dict[str, Any], path: Path) -> None:
    """Refuse a checkpoint from which training cannot resume.

    Raises:
        DataError: Names what it lacks.

    Example:
        >>> check_restorable({"loops": {}, "global_step": 3}, Path("last.ckpt"))
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: last.ckpt cannot be resumed: its optimizer_states are missing or damaged; ...
    """
    for key, kind in RESTORED.items():
        if not isinstance(checkpoint.get(key), kind):
            raise DataError(
                f"{path} cannot be resumed: its {key} are missing or damaged; start a new run, or evaluate it with "
                "evaluate.py."
            )


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a temporary file, flushes it to the disk and renames it: a checkpoint is complete or absent."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Save; if that fails, the file that was there is unchanged.

        Raises:
            DataError: If it cannot be written.
        """
        if storage_options is not None:
            raise ConfigError("Checkpoints are local files: storage_options is not supported.")
        write_whole(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        """Load plain data; see :func:`load_checkpoint`."""
        return load_checkpoint(path)
