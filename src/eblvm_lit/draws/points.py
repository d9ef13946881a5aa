"""Samples of a model of points, for metrics that compare sets of samples with data."""

from __future__ import annotations

from typing import cast

import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import ImageSource
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.chain_samples import ChainSamples
from eblvm_lit.samplers.gibbs import Gibbs
from eblvm_lit.samplers.langevin import Langevin

__all__ = ["PointSamples"]


class PointSamples(ImageSource):
    r"""Draws v by the run's sampler, or by Gibbs sampling where p(h|v) and p(v|h) are known, or by Langevin dynamics.

    They are the samples of the figure ``samples``, as floats. All n are drawn together. Langevin chains start
    uniform in the box of the training examples.

    Args:
        n_steps: Gibbs sweeps, or steps of Langevin dynamics.
        step_size: Of Langevin dynamics; the default fits models that are smooth on a scale of 0.05.
        sampler: The run's sampler, unless it is for images of deep models alone.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.toy import Checkerboard
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)), seed=0, device="cpu")
        >>> PointSamples(n_steps=5).images(method, Checkerboard(), 7).shape
        torch.Size([7, 2])
    """

    def __init__(
        self, *, n_steps: NonNegativeInt = 1000, step_size: PositiveFloat = 1e-3, sampler: ChainSamples | None = None
    ) -> None:
        self.gibbs = Gibbs(n_steps=n_steps)
        self.langevin = Langevin(n_steps=n_steps, step_size=step_size)
        self.sampler = None if sampler is not None and sampler.deep_images_only else sampler

    def supports(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether the data are no images and one of the samplers fits the model."""
        energy = method.parts.energy
        moves = isinstance(energy, MarginalEnergy) or (isinstance(energy, Energy) and energy.continuous)
        return data.image_shape is None and moves

    def images(self, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """n points, float32, shape (n, *event), on the CPU."""
        energy = cast(Energy, method.parts.energy)
        generator = keyed_generator(method.seed, "point samples", device=method.device)
        if self.sampler is not None:
            known = {"posterior": method.parts.posterior, "examples": data.as_float(data.splits.train)}
            return self.sampler.sample(energy, n, generator, **known).float().cpu()
        if Gibbs.supports(energy):
            return self.gibbs.sample(energy, n, generator).float().cpu()
        examples = data.as_float(data.splits.train).to(next(energy.parameters()))
        low = examples.amin(0)
        high = examples.amax(0)
        with torch.enable_grad():
            return self.langevin.sample(energy, n, generator, low=low, high=high).detach().float().cpu()
