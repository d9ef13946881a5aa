"""The values of v themselves as features, for points of the plane and other small vectors."""

from __future__ import annotations

import math

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.evaluation.features.base import FeatureExtractor, Features, Titles

__all__ = ["RawValues"]


class RawValues(FeatureExtractor):
    """The flattened values of each example as its features; uint8 images are divided by 255.

    Args:
        batch_size: Number of examples converted at a time.

    Example:
        >>> RawValues().extract(torch.full((2, 1, 1, 3), 255, dtype=torch.uint8)).rows
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """

    name = "raw"
    titles = Titles("fd_raw", "kd_raw", "raw_score", "_raw")
    resize = "none"
    classifies = False
    fingerprint = "raw"  # the fingerprint is a constant, because there are no weights

    def __init__(self, *, batch_size: PositiveInt = 1000) -> None:
        self.batch_size = batch_size

    def prepare(self, data: ArrayDataModule) -> None:
        """Set the number of features to the number of values in an example."""
        self.dim = math.prod(data.event_shape if data.image_shape is None else data.image_shape)

    def extract(self, images: Tensor) -> Features:
        """Return the values as features (B, D); see :meth:`FeatureExtractor.extract`."""
        rows = images.flatten(1).float()
        return Features(rows / 255 if images.dtype == torch.uint8 else rows, None)
