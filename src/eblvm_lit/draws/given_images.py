"""Images that are given instead of drawn from a method, for metrics of images that any program has made."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import ImageSource
from eblvm_lit.methods.base import Method

__all__ = ["GivenImages"]


class GivenImages(ImageSource):
    """A source of images that are given, whatever the method.

    Attributes:
        given: The images, uint8, shape (n, C, H, W), which the owner of the source sets; None until then.

    Example:
        >>> import torch
        >>> source = GivenImages()
        >>> source.given = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
        >>> source.images(None, None, 3).shape
        torch.Size([3, 1, 8, 8])
    """

    given: Tensor | None = None

    def supports(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether images are given."""
        return self.given is not None

    def images(self, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """Return the first n images; see :meth:`ImageSource.images`."""
        return cast(Tensor, self.given)[:n]
