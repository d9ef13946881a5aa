"""A mixture of normal distributions with noise of any level, whose energy, density and log Z are known."""

import math

import torch

from eblvm_lit.core.noise_levels import NoiseRange, split_level
from eblvm_lit.energies.base import VisibleEnergy
from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy


class Zero(VisibleEnergy):
    """An energy F' that is 0 for all of its inputs.

    The inputs are a scaled point and its noise level. With F' = 0 a model has the density of its reference, which is
    that of noised normal data.
    """

    def __init__(self, n_inputs=3):
        super().__init__()
        self.event_shape = (n_inputs,)
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def free_energy(self, v):
        return 0.0 * v.sum(1)


class KnownMixture(NoiseConditionalFreeEnergy):
    """The energy F(v~, t) = offset - log sum_k p_k N(v~; m_k, (std^2 + t) I) of a noised point v~ at noise level t.

    offset: A number or a function of log t. As the mixture is normalised, log Z(t) is minus the offset.
    """

    def __init__(self, centres, weights, std=0.3, offset=0.0, noise_range=None):
        dim = len(centres[0])
        noise_range = noise_range or NoiseRange(std=1.4, smallest=1e-3)
        super().__init__(energy=Zero(dim + 1), v_shape=[dim], noise_range=noise_range)
        self.register_buffer("centres", torch.as_tensor(centres, dtype=torch.get_default_dtype()))
        self.register_buffer("weights", torch.as_tensor(weights, dtype=torch.get_default_dtype()))
        self.std = std
        self.offset = offset

    def components(self, v, level):
        """Compute log p_k N(v; m_k, std^2 + t), shape (B, K), where the noise level t is a number or has shape (B,)."""
        variance = self.std**2 + torch.as_tensor(level).view(-1, 1)
        squares = (v.unsqueeze(1) - self.centres).square().sum(-1)
        return self.weights.log() - squares / (2 * variance) - 0.5 * v.shape[1] * (2 * math.pi * variance).log()

    def free_energy(self, v):
        x, log_level = split_level(v)
        offset = self.offset(log_level) if callable(self.offset) else self.offset
        return offset - self.components(x, log_level.exp()).logsumexp(1)

    def sample(self, n, level, generator):
        """Draw n points of the mixture with noise of one level."""
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        noise = torch.randn(n, self.centres.shape[1], generator=generator, dtype=self.centres.dtype)
        return self.centres[which] + math.sqrt(self.std**2 + level) * noise
