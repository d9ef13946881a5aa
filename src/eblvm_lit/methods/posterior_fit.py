"""The lower level of a method, which fits q(h|v; phi) to p(h|v; theta)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.objectives.base import Objective
from eblvm_lit.posteriors.base import DistributionParams, Posterior

__all__ = ["LowerNoise", "PosteriorFit"]

LowerNoise = Literal["fresh", "shared"]


class PosteriorFit:
    r"""The lower level: K steps on phi that minimise the loss G, a divergence of q(h|v; phi) from p(h|v; theta).

    .. math:: G(\theta, \phi) = E_v\, w(v)\, D(q(h|v; \phi), p(h|v; \theta))

    v are the points at which the upper level needs q, which are data that the objective has perturbed. Each step draws
    new latents. Reference: Bao et al. 2020, Algorithm 1; Bao et al. 2021, section 3.

    Args:
        energy: The model.
        posterior: The posterior q.
        divergence: The divergence D.
        n_steps: The number K of steps on phi in each iteration.
        objective: The objective that perturbs the data and gives the weight w; without one the data are not perturbed
            and the weights are one.
        view: A function that returns the model for given parameters theta; ``bind(energy, theta)`` if not given.
        lower_noise: ``fresh`` to perturb the data with new noise in each step, or ``shared`` to use the upper level's
            perturbed data in all steps, see :meth:`share`.

    Raises:
        ConfigError: If the posterior is incompatible with the model or the divergence.

    Example:
        >>> from eblvm_lit.core.functional import params_of
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3)
        >>> fit = PosteriorFit(energy=p, posterior=q, divergence=KL(), n_steps=5)
        >>> v = torch.zeros(7, 2)
        >>> fit.loss(params_of(p), params_of(q), v, fit.noise(v, 5, torch.Generator()), 0).shape
        torch.Size([7])
    """

    def __init__(
        self,
        *,
        energy: Energy,
        posterior: Posterior,
        divergence: Divergence,
        n_steps: int,
        objective: Objective | None = None,
        view: Callable[[Params], Energy] | None = None,
        lower_noise: LowerNoise = "fresh",
    ) -> None:
        if energy.h_dim == 0:
            raise ConfigError(
                f"{type(energy).__name__} has no latents, so there is no posterior to fit: use method=mdsm, dsm or cd, "
                "or a model with latents."
            )
        if posterior.continuous != energy.continuous:
            kinds = {True: "continuous", False: "binary"}
            raise ConfigError(
                f"{type(posterior).__name__} has {kinds[posterior.continuous]} latents, "
                f"{type(energy).__name__} has {kinds[energy.continuous]} ones: choose a posterior that fits the model."
            )
        divergence.check(posterior)
        self.posterior = posterior
        self.divergence = divergence
        self.objective = objective
        self.n_steps = n_steps
        self.lower_noise = lower_noise
        self.energy = energy
        self.view = view

    def noise(self, v: Tensor, n: int, generator: torch.Generator) -> dict[str, Any]:
        """Draw the noise for n evaluations of the lower loss G: noise for the latents and noise for the data.

        The noise that perturbs the data is only drawn if ``lower_noise`` is ``fresh`` and the objective perturbs the
        data.
        """
        objective = self.objective
        data = {}
        if self.lower_noise == "fresh" and objective is not None and objective.perturbs:
            data = objective.noise(v, (n,), generator)
        return {"data": data, "latent": self.posterior.noise((n, self.divergence.n_particles), v, generator)}

    def points(self, v: Tensor, noise: Any, i: int) -> tuple[Tensor, Tensor | float]:
        """Return the points at which the lower loss G is evaluated with the i-th draw of noise, and their weights."""
        if "points" in noise:
            return noise["points"], noise["weight"]
        if self.objective is None:
            return v, 1.0
        data = tree_map(lambda x: x[i], noise["data"])
        weight = 1.0 if self.objective.lower_weight is None else self.objective.lower_weight(data)
        return self.objective.perturb(v, data), weight

    def share(self, theta: Params, v: Tensor, noise: dict[str, Any]) -> tuple[Params, dict[str, Any]]:
        """Share the upper level's perturbed data with the lower level, if ``lower_noise`` is ``shared``.

        The noise of each level then also contains the upper level's perturbed ``points`` and their ``weight``, and the
        returned theta also contains the energy's features of these points. With ``lower_noise="fresh"`` theta and the
        noise are returned unchanged.
        """
        if self.lower_noise == "fresh":
            return theta, noise
        points, weight = self.points(v, {"data": tree_map(lambda x: x.unsqueeze(0), noise["upper"]["data"])}, 0)
        shared = {"points": points, "weight": weight}
        return self.energy.share_features(theta, points), {name: {**own, **shared} for name, own in noise.items()}

    def loss(self, theta: Params, phi: Params, v: Tensor, noise: Any, i: int) -> Tensor:
        """Compute the lower loss G for each example with the i-th draw of noise, shape (B,)."""
        points, weight = self.points(v, noise, i)
        energy = bind(self.energy, theta) if self.view is None else self.view(theta)
        return weight * self.divergence.loss(energy, bind(self.posterior, phi), points, noise["latent"][i])

    def information_product(self, phi: Params, w: Params, v: Tensor, noise: Any) -> Params:
        r"""Multiply the Fisher information of q by a vector w that has the same structure as phi.

        The product is :math:`E_v [J^\top \mathcal{I} J w]`, where J is the Jacobian of q's distribution parameters in
        phi and :math:`\mathcal{I}` is the Fisher information about them.
        """
        points, weight = self.points(v, noise, 0)
        weight = torch.as_tensor(weight, dtype=v.dtype, device=v.device).expand(len(v)).unsqueeze(-1) / len(v)

        def q_params(phi: Params) -> DistributionParams:
            return bind(self.posterior, phi).distribution_params(points)

        at, slope = torch.func.jvp(q_params, (phi,), (w,))[:2]
        information = self.posterior.information_given(at)
        cotangent = tuple(weight * i * s for i, s in zip(information, slope, strict=True))
        return torch.func.vjp(q_params, phi)[1](cotangent)[0]
