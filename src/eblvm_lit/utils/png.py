"""Export of images as PNG files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torchvision.io import write_png

from eblvm_lit.errors import ConfigError

__all__ = ["export_png"]


def export_png(images: Tensor, folder: str | Path) -> list[Path]:
    """Write one file per image: ``000000.png`` and so on.

    Args:
        images: uint8, shape (n, 1 or 3, H, W), as an :class:`ImageSource` returns them.
        folder: The output folder, which is created.

    Returns:
        The files, in the order of the images.

    Raises:
        ConfigError: If the images have another type or shape, or cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in export_png(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), folder)]
        ['000000.png', '000001.png']
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ConfigError(f"PNG files are of uint8 (n, 1 or 3, H, W), not {images.dtype} {tuple(images.shape)}.")
    paths = [Path(folder) / f"{i:06d}.png" for i in range(len(images))]
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for image, path in zip(images, paths, strict=True):
            write_png(image.cpu().contiguous(), str(path))
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"Images cannot be written to {folder}: {str(error).splitlines()[0]}.") from error
    return paths
