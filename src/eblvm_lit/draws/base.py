"""The base class of image sources, which give the images that metrics compare with data."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.methods.base import Method

__all__ = ["ImageSource"]


class ImageSource(ABC):
    """Images of a method, numbered from 0: samples of its energy, or images of its generator.

    Example:
        >>> import torch
        >>> class Black(ImageSource):
        ...     def images(self, method, data, n):
        ...         return torch.zeros(n, *data.image_shape, dtype=torch.uint8)
        >>> from eblvm_lit.data.digits import Digits
        >>> Black().images(None, Digits(), 5).shape
        torch.Size([5, 1, 8, 8])
    """

    def supports(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether it can give images of the method; by default, whether the data are images."""
        return data.image_shape is not None

    @abstractmethod
    def images(self, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """The first n images.

        Args:
            method: The method, on some device.
            data: Its data, set up.
            n: Number of images; image i does not depend on it.

        Returns:
            uint8, shape (n, C, H, W), on the CPU, the same in all processes.
        """
