"""A GRBM whose difference from a standard normal distribution is set by a perturbation of its parameters."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt

from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.energies.grbm import GRBM

__all__ = ["PerturbedGRBM"]


class PerturbedGRBM(GRBM):
    r"""A GRBM with randomly perturbed parameters; without the perturbation, p(v) = N(0, I).

    .. math:: W_{ij},\, b_i,\, c_j = p\, \epsilon, \quad \epsilon \sim N(0, 1), \quad \sigma = 1

    With p = 0 the visible units are standard normal and independent of the latent units. Models with the same seed
    share the numbers :math:`\epsilon` and differ only in the factor p. Reference: Bao et al. 2021, appendix F.3 and
    code.

    Args:
        v_dim: The number of visible units d.
        h_dim: The number of latent units m.
        perturbation: The scale p of the perturbation.
        perturbation_seed: The seed of the perturbation, which is independent of the run's seed.

    Example:
        >>> PerturbedGRBM(v_dim=2, h_dim=3, perturbation=0.0).score(torch.ones(1, 2))
        tensor([[-1., -1.]], grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        *,
        v_dim: PositiveInt,
        h_dim: PositiveInt,
        perturbation: NonNegativeFloat = 0.2,
        perturbation_seed: Seed = 0,
    ) -> None:
        super().__init__(v_dim=v_dim, h_dim=h_dim, learn_std=False)
        generator = keyed_generator(perturbation_seed, "perturbation")
        with torch.no_grad():
            for p in (self.W, self.b, self.c):
                p.normal_(generator=generator).mul_(perturbation)
