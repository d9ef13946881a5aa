"""Test images with given labels, from which several figures start."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.base import Method

__all__ = ["encodes_images", "labelled_examples"]


def encodes_images(method: Method, data: ArrayDataModule) -> bool:
    """Return whether the data are images and the method has an energy E(v, h) and a posterior or an encoder."""
    energy = method.parts.energy
    joint = isinstance(energy, Energy) and energy.h_dim > 0
    return data.image_shape is not None and joint and method.parts.encoding is not None


def labelled_examples(data: ArrayDataModule, labels: Sequence[int], n: int = 1) -> Tensor:
    """Return the first n test images with each given label or, without class labels, the first test images.

    Args:
        data: The data, after ``setup``.
        labels: Values of the data's labels, such as digits.
        n: Number of images of each label.

    Returns:
        The images as floats, shape (n, len(labels), *event).

    Example:
        >>> from eblvm_lit.data.digits import Digits
        >>> data = Digits()
        >>> data.setup()
        >>> v = labelled_examples(data, [1, 7], n=3)
        >>> v.shape, bool((v[0, 0] == data.splits.test[data.labels.test == 1][0]).all())
        (torch.Size([3, 2, 64]), True)
    """
    test = data.splits.test
    found = None if data.labels is None else data.labels.test
    rows = torch.arange(n * len(labels)).view(n, -1) % len(test)
    if found is not None and found.ndim == 1:
        columns = [(found == label).nonzero().flatten()[:n] for label in labels]
        if all(len(column) == n for column in columns):
            rows = torch.stack(columns, dim=1)
    return data.as_float(test[rows.flatten()]).unflatten(0, rows.shape)
