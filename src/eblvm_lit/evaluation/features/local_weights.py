"""Finding and reading files of pretrained weights, whose SHA-256 is checked before anything in them is unpickled."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.tensor_files import DTYPES, check_tensors

__all__ = ["as_tensors", "find_local", "read_checked"]


def find_local(weights: str | None, cache_dir: str | Path, url: str, network: str) -> Path:
    """A file that the user has put there: where they say, or in ``cache_dir``, or in the folder of torch's hub.

    Args:
        weights: The user's own file, or None.
        cache_dir: Where it is looked for first.
        url: Where it comes from; its last part is the name of the file.
        network: The network, for the error.

    Raises:
        DataError: It is not there.

    Example:
        >>> find_local(None, "nowhere", "https://example.org/weights.pth", "DINOv2")
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: DINOv2 needs its weights: put the file https://example.org/weights.pth at ...
    """
    if weights is not None:
        path = Path(weights).expanduser()
        if not path.is_file():
            raise DataError(f"There is no file {path} with the weights of {network}: correct its weights=... .")
        return path
    name = url.rsplit("/", 1)[-1]
    target = Path(cache_dir).expanduser().absolute() / name
    for path in (target, Path(torch.hub.get_dir()) / "checkpoints" / name):
        if path.is_file():
            return path
    raise DataError(f"{network} needs its weights: put the file {url} at {target}, or name another by weights=... .")


def read_checked(path: Path, sha256: str | None, what: str, otherwise: str) -> tuple[bytes, str]:
    """Read a file, and refuse one with another SHA-256.

    Args:
        path: The file.
        sha256: The SHA-256 that it must have; None for any.
        what: What it should be, for the error.
        otherwise: What to do if it is not.

    Returns:
        Its bytes and its SHA-256.

    Raises:
        DataError: It has another SHA-256.

    Example:
        >>> read_checked(Path(__file__), "0" * 64, "the file of weights", "delete it")
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: .../local_weights.py is not the file of weights (its SHA-256 is ... instead of ...
    """
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise DataError(
            f"{path} is not {what} (its SHA-256 is {found[:8]}... instead of {sha256[:8]}...): {otherwise}."
        )
    return content, found


def as_tensors(content: bytes, path: Path) -> dict[str, Any]:
    """The state of a network, as plain tensors; no code in it is executed.

    Args:
        content: Of the file.
        path: Its name, for errors.

    Raises:
        DataError: It is damaged or holds more than tensors.
        ConfigError: It holds something else than a state.
    """
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        check_tensors(state, (*DTYPES, torch.float16, torch.bfloat16))
    except Exception as error:  # from truncated archives to forbidden pickles: half a dozen types
        raise DataError(f"{path} is damaged or holds more than tensors: it is not read.") from error
    if not isinstance(state, dict):
        raise ConfigError(f"{path} holds no state of a network.")
    return state
