"""The kind of a data set, which follows from the shape of an example and determines a run's default model."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["kind_of"]


def kind_of(shape: Sequence[int]) -> str:
    """Return the option of the config group ``kind`` for examples of shape (d,) or (C, H, W).

    ====================================  ================  ==================================
    shape                                 kind              model
    ====================================  ================  ==================================
    (d,) with d ≤ 3                       ``points``        multilayer perceptron F(v)
    (d,) with d > 3                       ``vectors``       GRBM
    (C, H, W), multiples of 8 up to 32    ``small_images``  residual network
    (C, H, W), multiples of 16 above      ``large_images``  residual network at half the size
    (C, H, W), other sizes                ``odd_images``    fully connected network
    ====================================  ================  ==================================

    Example:
        >>> [kind_of(shape) for shape in [(2,), (64,), (3, 32, 32), (3, 64, 64), (1, 28, 28)]]
        ['points', 'vectors', 'small_images', 'large_images', 'odd_images']
    """
    if len(shape) == 1:
        return "points" if shape[0] <= 3 else "vectors"
    _, height, width = shape
    if height % 8 == width % 8 == 0 and max(height, width) <= 32:
        return "small_images"
    return "large_images" if height % 16 == width % 16 == 0 else "odd_images"
