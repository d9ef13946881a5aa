"""The Frey faces: 1965 video frames of one face, each of 28 x 20 grey values."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.errors import DataError

__all__ = ["FACES", "FreyFace"]

FACES = "frey_rawface.mat"
FACES_URL = f"https://cs.nyu.edu/~roweis/data/{FACES}"
KEY = "ff"
SHA256 = {"265a83a23adb081755cd3de375509828e690324d1d60f076b8ecebc840d59c64"}
SIZES = (1400, 300, 265)
TRAIN_MEAN = 0.6049
TRAIN_STD = 0.1763


@dataclass(kw_only=True, eq=False)
class FreyFace(ArrayDataModule):
    """The Frey faces as flat vectors, divided into splits in the order of the file.

        v = x / 255 in [0, 1]^560, or (x / 255 − 0.6049) / 0.1763 if standardised

    Reference: Bao et al. 2020 (BiSM), Frey face experiments; data by B. Frey and S. Roweis. Splits are of
    shape (1400, 560), (300, 560) and (265, 560), float32; a vector is 28 rows of 20 pixels.

    Args:
        root: Folder that contains ``frey_rawface.mat``.
        batch_size: Number of examples in a training batch.
        eval_batch_size: Number of examples in a validation or test batch.
        seed: Seed of the order of the training batches.
        standardise: Whether to subtract the mean of the training split and divide by its standard deviation; both are
            scalars over all pixels.

    Raises:
        DataError: Raised by ``setup`` if the file is missing, damaged or not the Frey faces.

    Example:
        >>> data = FreyFace(root="nowhere")
        >>> data.event_shape, data.image_shape
        ((560,), (1, 28, 20))
        >>> data.setup()
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: .../nowhere/frey_rawface.mat is missing: put ...
    """

    event_shape = (560,)
    image_shape = (1, 28, 20)

    root: str | Path
    standardise: bool = False

    def load(self) -> Splits:
        """Read the faces from their file and divide them into splits in the order of the file."""
        v = torch.from_numpy(read_faces(Path(self.root))).float() / 255
        if self.standardise:
            v = (v - TRAIN_MEAN) / TRAIN_STD
        return Splits(*v.split(SIZES))

    def as_bytes(self, batch: torch.Tensor) -> torch.Tensor:
        """Convert vectors back to uint8 grey values, rounded and clamped; undo the standardisation, if any."""
        return super().as_bytes(batch * TRAIN_STD + TRAIN_MEAN if self.standardise else batch)


def read_faces(root: Path) -> np.ndarray:
    """Read the bytes of the faces, one image per row, from ``root/frey_rawface.mat``.

    Args:
        root: Folder that contains the file.

    Returns:
        The images, uint8, shape (1965, 560), C-contiguous.

    Raises:
        DataError: If the file is missing, or has another SHA-256 digest.

    Example:
        >>> read_faces(Path("nowhere"))
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: .../nowhere/frey_rawface.mat is missing: ...
    """
    path = root.expanduser().absolute() / FACES
    if not path.is_file():
        raise DataError(f"{path} is missing: put {FACES_URL} there or set data.root to the folder that contains it.")
    content = path.read_bytes()
    # Check the digest before scipy reads the file: scipy trusts types and sizes in a damaged file, and may crash with a
    # segmentation fault.
    if hashlib.sha256(content).hexdigest() not in SHA256:
        raise DataError(f"{path} is damaged or a different file, as its SHA-256 sum shows: put {FACES_URL} there.")
    from scipy.io import loadmat  # imported here, because the import is slow

    return loadmat(io.BytesIO(content))[KEY].T.copy()  # a copy, because torch needs writable memory
