"""Where images that a model has drawn come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pytorch_lightning import LightningModule
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule

__all__ = ["ImageSource"]


class ImageSource(ABC):
    """Images of a model, as many as are asked for."""

    @abstractmethod
    def images(self, method: LightningModule, data: ArrayDataModule, n: int) -> Tensor:
        """The first n images of a method trained on these data, uint8, shape (n, C, H, W)."""
