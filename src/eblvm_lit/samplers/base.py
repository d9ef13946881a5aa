"""The contract of samplers of a model's visible variables."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy

__all__ = ["Sampler"]


class Sampler(ABC):
    """Draws v of a model p(v, h) by Markov chains.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.langevin import Langevin
        >>> sampler, model = Langevin(n_steps=10, step_size=0.01), GaussianLatentModel(v_dim=2, h_dim=3)
        >>> sampler.sample(model, 5, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 2])
    """

    @abstractmethod
    def sample(self, energy: Energy, n: int, generator: torch.Generator) -> Tensor:
        """The last v of n independent chains.

        Args:
            energy: The model; its device and type are those of the samples.
            n: Number of chains.
            generator: Source of all randomness, on the energy's device.

        Returns:
            Shape (n, *event).

        Raises:
            ConfigError: For a model that this sampler cannot draw from.
        """
