"""The base classes of draws, which are samples of one method, and of image sources, which metrics compare with data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.methods.base import Method

__all__ = ["Draws", "ImageSource"]


class Draws(ABC):
    """Samples of one method, by whoever draws them; :func:`~eblvm_lit.draws.choice.draws_of` decides who that is.

    Attributes:
        title: Who draws them, in a few words.
        n_steps: The steps of each sample's chain; 0 without chains.
    """

    title: str
    n_steps: int = 0

    @property
    def starts(self) -> dict[str, Tensor]:
        """What chains start from beside noise, by name, which a shared model carries; empty for most."""
        return {}

    def of_means(self) -> Draws | None:
        """The same draws, which give E[v|h] instead of v ~ p(v|h); None where there is no such mean."""
        return None

    @abstractmethod
    def draw(self, n: int, *, seed: int, on_step: Callable[[int], None] | None = None) -> Tensor:
        """The first n samples.

        Args:
            n: Their number; up to rounding, sample i does not depend on it.
            seed: Of all randomness.
            on_step: Called with the number of samples that have moved a step.

        Returns:
            Shape (n, *event), on the method's device.

        Raises:
            ConfigError: For chains that diverge.
        """


class ImageSource(ABC):
    """Gives images of a method, numbered from 0: samples of its energy, or images of its generator.

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
