"""Functions that check the shapes of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from eblvm_lit.errors import ConfigError

__all__ = ["halvings", "image_shape"]


def image_shape(v_shape: Sequence[int], factor: int) -> tuple[int, int, int]:
    """Check the shape of an image, and return it as the tuple (C, H, W).

    Args:
        v_shape: The channels, height and width of the image.
        factor: The number by which a network divides the resolution.

    Raises:
        ConfigError: If the size is open (None), or if ``factor`` does not divide the height and the width.

    Example:
        >>> image_shape([3, 28, 28], 8)
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: v_shape [3, 28, 28] must have a height and a width that are multiples of 8: ...
    """
    shape = tuple(v_shape)
    if None in shape:  # images from a folder that are not resized have no common size
        raise ConfigError(f"v_shape {list(shape)} does not say how large an image is: set data.size.")
    if shape[1] % factor or shape[2] % factor:
        raise ConfigError(
            f"v_shape {list(shape)} must have a height and a width that are multiples of {factor}: "
            "pad or resize the images, or choose a network that fits them."
        )
    return cast("tuple[int, int, int]", shape)


def halvings(v_shape: Sequence[int], last: int = 4) -> int:
    """Compute how many times a square image must be halved until its side has ``last`` pixels.

    Args:
        v_shape: The channels, height and width of the image.
        last: The side in pixels after the last halving.

    Raises:
        ConfigError: Unless height = width = last 2^n with n >= 1.

    Example:
        >>> halvings([3, 32, 32]), halvings([3, 128, 128])
        (3, 5)
        >>> halvings([3, 28, 28])
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: v_shape [3, 28, 28] fits no such network: height and width must be equal, ...
    """
    _, height, width = image_shape(v_shape, 1)
    n = (height // last).bit_length() - 1
    if height != width or n < 1 or height != last * 2**n:
        raise ConfigError(
            f"v_shape {list(v_shape)} fits no such network: height and width must be equal, {2 * last}, {4 * last}, "
            f"{8 * last} or another doubling of it: pad or resize the images."
        )
    return n
