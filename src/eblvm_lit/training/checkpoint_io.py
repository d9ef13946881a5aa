"""Reading and writing of checkpoint files, as plain data and atomically."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.foreign_files import check_regular
from eblvm_lit.utils.io import refuse_url, write_whole
from eblvm_lit.utils.tensor_files import load_tensors

__all__ = ["AtomicCheckpointIO", "check_restorable", "checkpoint_file", "load_checkpoint"]

# The entries that this package adds to a checkpoint, and their types.
KEYS = {"method": str, "iteration": int, "config": dict}
NUMBERS = (int, float)
# The entries of Lightning that a run needs to resume.
RESTORED = {
    **{"loops": dict, "optimizer_states": list, "global_step": int},
    **{"callbacks": dict, "lr_schedulers": list, "pytorch-lightning_version": str},
}


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
    if os.path.isdir(path):  # unlike Path.is_dir, it raises no error for a name that is too long
        file = path / "checkpoints" / f"{which}.ckpt"
        if not file.is_file():
            raise DataError(f"{path} holds no finished run: a run's folder has checkpoints/{which}.ckpt.")
        return file
    if not os.path.exists(path):
        hint = " ckpt=last is of train.py: name the folder of a run, as outputs/DATE/TIME."
        raise DataError(f"There is no checkpoint at {path}.{hint if str(path) == 'last' else ''}")
    check_regular(path, "give the file of a checkpoint, or the folder of a run.")
    return path


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, given by its file or by the folder of its run, as data: nothing in it is executed.

    Raises:
        DataError: If the file is missing, damaged, holds more than data, or is not a checkpoint of this package.
        ConfigError: If it is named by an address.
    """
    path = checkpoint_file(path)
    try:
        checkpoint = load_tensors(path)
    except Exception as error:
        # torch raises half a dozen types here, from truncated zip archives to forbidden pickles
        raise DataError(
            f"{path} is not a readable checkpoint (truncated, or not plain data): {_reason(error)}."
        ) from None
    ours = checkpoint.get("eblvm_lit") if isinstance(checkpoint, dict) else None
    if not isinstance(ours, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise DataError(f"{path} is not a checkpoint of eblvm_lit: it lacks state_dict or eblvm_lit.")
    for key, kind in KEYS.items():
        if type(ours.get(key)) is not kind or (kind is int and ours[key] < 0):
            raise DataError(f"{path} is not a checkpoint of eblvm_lit: its {key} is missing or damaged.")
    for name, value in checkpoint["state_dict"].items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise DataError(f"{path} is not a checkpoint of eblvm_lit: its state_dict holds more than tensors.")
    if not _is_choice(ours.get("compile")):
        raise DataError(f"{path} is not a checkpoint of eblvm_lit: its compile is damaged.")
    if not _holds_numbers(checkpoint.get("validation", {})):
        raise DataError(f"{path} is not a checkpoint of eblvm_lit: its validation is damaged.")
    return checkpoint


def _holds_numbers(content: Any) -> bool:
    """Whether it maps names to numbers."""
    if not isinstance(content, dict):
        return False
    return all(isinstance(name, str) and isinstance(value, float) for name, value in content.items())


def _is_choice(content: Any) -> bool:
    """Whether it is what ``compile=auto`` keeps of its choice, or nothing."""
    kinds = {"at": (int,), "max_steps": (int,), "compiled": (bool, type(None))}
    if content is None:
        return True
    return isinstance(content, dict) and all(type(content.get(key, ())) in kind for key, kind in kinds.items())


def _reason(error: Exception) -> str:
    """torch's reason, without its advice to load the file although it holds more than data."""
    text = str(error).strip()
    if "weights_only" in text or "Weights only" in text:
        found = re.search(r"(?:GLOBAL|Can only \w+ \w+ for)\s+([\w.]+)", text)
        return "it holds more than data" + (f", such as {found[1]}" if found else "")
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def check_restorable(checkpoint: dict[str, Any], path: Path, own: Mapping[str, Any]) -> None:
    """Refuse a checkpoint from which training cannot resume.

    Args:
        checkpoint: Its content.
        path: Its file, for the error.
        own: What the run itself would write: ``optimizer_states`` and ``loops``.

    Raises:
        DataError: Names what it lacks, or what is of another form than the run's own.

    Example:
        >>> check_restorable({"loops": {}, "global_step": 3}, Path("last.ckpt"), {})
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: last.ckpt cannot be resumed: its optimizer_states are missing or damaged; ...
    """
    reason = _unfit(checkpoint, own)
    if reason is not None:
        raise DataError(f"{path} cannot be resumed: {reason}; start a new run, or evaluate it with evaluate.py.")


def _unfit(checkpoint: dict[str, Any], own: Mapping[str, Any]) -> str | None:
    """Why a run cannot resume; None if it can."""
    odd = [f"its {key}" for key, kind in RESTORED.items() if type(checkpoint.get(key)) is not kind]
    if not odd and not re.fullmatch(r"[2-9]\.\d{1,3}\.\d{1,3}\S{0,20}", checkpoint["pytorch-lightning_version"]):
        odd = ["its pytorch-lightning_version"]  # of others Lightning would convert the content
    odd = odd or list(filter(None, (_differing(checkpoint[key], own[key], f"its {key}") for key in own)))
    if odd:
        return f"{odd[0]} are missing or damaged"
    iteration = checkpoint["eblvm_lit"]["iteration"]
    counted = checkpoint["loops"]["fit_loop"]["epoch_loop.manual_optimization.optim_step_progress"]
    if not iteration == checkpoint["global_step"] == counted["total"]["completed"]:
        return "its counts of iterations differ"
    states = [state for optimizer in checkpoint["optimizer_states"] for state in optimizer["state"].values()]
    moments = [value for state in states for value in state.values() if value.numel()]
    if len({moment.untyped_storage().data_ptr() for moment in moments}) < len(moments):
        return "its optimizer_states share their memory"
    return None


def _differing(found: Any, own: Any, place: str) -> str | None:
    """The place at which two nested containers have other keys, types or shapes; None if they have not."""
    if isinstance(own, dict):
        if not isinstance(found, dict) or not own.keys() <= found.keys():
            return place
        pairs = [(found[key], value, key) for key, value in own.items()]
    elif isinstance(own, list):
        if not isinstance(found, list) or len(found) != len(own):
            return place
        pairs = [(a, b, i) for i, (a, b) in enumerate(zip(found, own, strict=True))]
    elif isinstance(own, Tensor):
        fits = isinstance(found, Tensor) and found.shape == own.shape
        return None if fits and found.is_floating_point() == own.is_floating_point() else place
    else:
        numbers = type(found) in NUMBERS and type(own) in NUMBERS  # a rate may be written 1 or 1.0
        return None if numbers or type(found) is type(own) else place
    return next(filter(None, (_differing(a, b, f"{place}.{key}") for a, b, key in pairs)), None)


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
