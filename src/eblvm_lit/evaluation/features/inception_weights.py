"""Finding, downloading and reading the weights of the Inception network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from eblvm_lit.core.ranks import first_rank_first
from eblvm_lit.errors import DataError
from eblvm_lit.evaluation.features.local_weights import as_tensors, read_checked

__all__ = ["FILE_NAME", "SHA256", "find_weights", "read_weights"]

FILE_NAME = "weights-inception-2015-12-05-6726825d.pth"
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"


def find_weights(weights: str | None, cache_dir: str | Path, sha256: str | None) -> Path:
    """The file: where the user says, or in ``cache_dir``, or in the folder of torch's hub, or downloaded.

    Args:
        weights: The user's own file, or None.
        cache_dir: Where it is looked for first, and downloaded to, by the first process alone.
        sha256: The SHA-256 that a download must have.

    Raises:
        DataError: It is not found and cannot be downloaded.

    Example:
        >>> find_weights("nowhere.pth", "outputs/cache", None)
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: There is no file nowhere.pth with the weights of the FID network: ...
    """
    if weights is not None:
        path = Path(weights).expanduser()
        if not path.is_file():
            raise DataError(f"There is no file {path} with the weights of the FID network: correct its weights=... .")
        return path
    return first_rank_first(lambda: _find_or_fetch(Path(cache_dir).expanduser().absolute() / FILE_NAME, sha256))


def _find_or_fetch(target: Path, sha256: str | None) -> Path:
    for path in (target, Path(torch.hub.get_dir()) / "checkpoints" / FILE_NAME):
        if path.is_file():
            return path
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # it gets its name only when it is complete and its SHA-256 is right
        torch.hub.download_url_to_file(URL_INCEPTION_V3, str(target), hash_prefix=sha256)
    except Exception as error:  # download errors have no common base class
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"FID needs the weights of its network, which could not be downloaded ({reason}): "
            f"put the file {URL_INCEPTION_V3} at {target}."
        ) from error
    return target


def read_weights(path: Path, sha256: str | None) -> tuple[dict[str, Any], str]:
    """Read a file of weights as plain tensors; no code in it is executed.

    Args:
        path: The file.
        sha256: The SHA-256 that it must have; None for other weights.

    Returns:
        The state of the network, and the file's SHA-256.

    Raises:
        DataError: It has another SHA-256, or holds more than tensors.

    Example:
        >>> read_weights(Path(__file__), SHA256)
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: .../inception_weights.py is not the file of weights that FID is defined by ...
    """
    content, found = read_checked(
        path,
        sha256,
        "the file of weights that FID is defined by",
        "delete it, and it is fetched anew, or set sha256=null for weights of your own",
    )
    return as_tensors(content, path), found
