"""The base classes of draws (samples of one method) and of image sources, which give metrics their images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.methods.base import Method

__all__ = ["Draws", "ImageSource"]


class Draws(ABC):
    """The samples of one method, drawn by its generator or by the chains of a sampler.

    :func:`~eblvm_lit.draws.choice.draws_of` chooses the subclass that draws the samples of a method.

    Attributes:
        title: A few words that say how the samples are drawn.
        n_steps: The number of steps of each sample's chain; 0 without chains.
    """

    title: str
    n_steps: int = 0

    @property
    def starts(self) -> dict[str, Tensor]:
        """A dict of the tensors, besides noise, from which the chains start; it is empty for most models.

        These tensors are saved with a shared model.
        """
        return {}

    def of_means(self) -> Draws | None:
        """Return an object that draws the means E[v|h] instead of samples of p(v|h), or None if this is impossible."""
        return None

    @abstractmethod
    def draw(self, n: int, *, seed: int, on_step: Callable[[int], None] | None = None) -> Tensor:
        """Draw the first n samples.

        Args:
            n: The number of samples; up to rounding, sample i does not depend on it.
            seed: The seed of all randomness.
            on_step: A function that is called after each step with the number of samples that took it.

        Returns:
            The samples, shape (n, *event), on the method's device.

        Raises:
            ConfigError: If the chains diverge.
        """


class ImageSource(ABC):
    """A source of numbered images of a method: samples of its energy, or images of its generator.

    Example:
        >>> import torch
        >>> class Black(ImageSource):
        ...     def images(self, method, data, n):
        ...         return torch.zeros(n, *data.image_shape, dtype=torch.uint8)
        >>> from eblvm_lit.data.digits import Digits
        >>> Black().images(None, Digits(), 5).shape
        torch.Size([5, 1, 8, 8])

    Attributes:
        needs: A description of the data and the methods that the source supports, for the page of all metrics.
    """

    needs = "images"

    def supports(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the source can produce images of the method; by default, it can if the data are images."""
        return data.image_shape is not None

    @abstractmethod
    def images(self, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """Return the first n images.

        Args:
            method: The method, on any device.
            data: The method's data, already set up.
            n: The number of images; image i does not depend on it.

        Returns:
            The images, uint8, shape (n, C, H, W), on the CPU, the same in all processes.
        """
