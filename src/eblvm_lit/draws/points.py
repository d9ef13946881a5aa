"""Samples of a model of points (vectors that are not images), for metrics that compare samples with data."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import Draws, ImageSource
from eblvm_lit.draws.choice import DrawnAsTheRun
from eblvm_lit.methods.base import Method

__all__ = ["PointSamples"]


class PointSamples(DrawnAsTheRun, ImageSource):
    r"""A source of samples for data that are not images; the run's figure ``samples`` shows the same samples.

    Args:
        sampler: The run's sampler; see :func:`~eblvm_lit.draws.choice.draws_of`.
        langevin: The Langevin steps that sample a learnt prior of latents; used only for a model that has one.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.toy import Checkerboard
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.samplers.gibbs import Gibbs
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)), seed=0, device="cpu")
        >>> PointSamples(sampler=Gibbs(n_steps=5)).images(method, Checkerboard(), 7).shape
        torch.Size([7, 2])
    """

    needs = "vectors that are not images, and a model or a generator that can be sampled"

    def supports(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the data are not images and samples can be drawn from the model."""
        return data.image_shape is None and self.draws(method, data) is not None

    def images(self, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """Draw n points, float32, shape (n, *event), on the CPU."""
        return cast(Draws, self.draws(method, data)).draw(n, seed=method.seed).float().cpu()
