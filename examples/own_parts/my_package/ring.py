"""A data set: points around a circle."""

import math

import torch
from torch import Tensor

from eblvm_lit.data.toy import ToyDataModule


class Ring(ToyDataModule):
    """Points at uniform angles, and at distances from the origin drawn from N(1, 0.1^2); splits of shape (n, 2)."""

    sample_name = "ring"  # the random numbers depend on this name and on sample_seed
    bounds = ((-1.6, 1.6), (-1.6, 1.6))  # the window of figures

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n points, shape (n, 2), float32."""
        angle = 2 * math.pi * torch.rand(n, 1, generator=generator)
        radius = 1 + 0.1 * torch.randn(n, 1, generator=generator)
        return radius * torch.cat([angle.cos(), angle.sin()], dim=1)
