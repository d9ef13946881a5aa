"""The lower level: the fit of q(h|v; phi) to p(h|v; theta), and the base of methods whose loss needs that q."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import ConditionalEnergy, Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import DistributionParams, Posterior

__all__ = ["LossWithPosterior", "LowerNoise", "PosteriorFit", "TruePosterior"]

LowerNoise = Literal["fresh", "shared"]


class PosteriorFit:
    r"""G, a divergence of q(h|v; phi) from p(h|v; theta), which K steps on phi descend with fresh noise in each.

    .. math:: G(\theta, \phi) = E_v\, w(v)\, D(q(h|v; \phi), p(h|v; \theta))

    v are the points at which the upper level needs q: data, perturbed as its objective perturbs them. Reference: Bao
    et al. 2020, Algorithm 1; Bao et al. 2021, section 3.

    Args:
        energy: The model.
        posterior: q.
        divergence: D.
        n_steps: K.
        objective: Perturbs the data and gives the weight w; data are left as they are if not given.
        view: The model as a function of theta; ``bind(energy, theta)`` if not given.
        lower_noise: ``fresh``, or ``shared``: all steps use the upper level's perturbed data; see :meth:`share`.

    Raises:
        ConfigError: For a posterior that fits neither the model nor the divergence.

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
        """Noise of n evaluations of G; where the points are shared, of its latents alone."""
        objective = self.objective
        data = {}
        if self.lower_noise == "fresh" and objective is not None and objective.perturbs:
            data = objective.noise(v, (n,), generator)
        return {"data": data, "latent": self.posterior.noise((n, self.divergence.n_particles), v, generator)}

    def points(self, v: Tensor, noise: Any, i: int) -> tuple[Tensor, Tensor | float]:
        """Where G is evaluated with the i-th draw of noise, and the weight of each point there."""
        if "points" in noise:
            return noise["points"], noise["weight"]
        if self.objective is None:
            return v, 1.0
        data = tree_map(lambda x: x[i], noise["data"])
        weight = 1.0 if self.objective.lower_weight is None else self.objective.lower_weight(data)
        return self.objective.perturb(v, data), weight

    def share(self, theta: Params, v: Tensor, noise: dict[str, Any]) -> tuple[Params, dict[str, Any]]:
        """theta and the noise of an iteration as they are; with ``lower_noise=shared`` one minibatch for all levels.

        The noise of each level then has the upper level's perturbed ``points`` and their ``weight``, and theta has
        what the energy computes of the points alone.
        """
        if self.lower_noise == "fresh":
            return theta, noise
        points, weight = self.points(v, {"data": tree_map(lambda x: x.unsqueeze(0), noise["upper"]["data"])}, 0)
        shared = {"points": points, "weight": weight}
        return self.energy.share_features(theta, points), {name: {**own, **shared} for name, own in noise.items()}

    def loss(self, theta: Params, phi: Params, v: Tensor, noise: Any, i: int) -> Tensor:
        """G per example with the i-th draw of noise, shape (B,)."""
        points, weight = self.points(v, noise, i)
        energy = bind(self.energy, theta) if self.view is None else self.view(theta)
        return weight * self.divergence.loss(energy, bind(self.posterior, phi), points, noise["latent"][i])

    def information_product(self, phi: Params, w: Params, v: Tensor, noise: Any) -> Params:
        r"""The Fisher information of q times a vector: :math:`E_v [J^\top \mathcal{I} J w]`, J the Jacobian in phi."""
        points, weight = self.points(v, noise, 0)
        weight = torch.as_tensor(weight, dtype=v.dtype, device=v.device).expand(len(v)).unsqueeze(-1) / len(v)

        def q_params(phi: Params) -> DistributionParams:
            return bind(self.posterior, phi).distribution_params(points)

        at, slope = torch.func.jvp(q_params, (phi,), (w,))[:2]
        information = self.posterior.information_given(at)
        cotangent = tuple(weight * i * s for i, s in zip(information, slope, strict=True))
        return torch.func.vjp(q_params, phi)[1](cotangent)[0]


class TruePosterior:
    r"""p(h|v) instead of q, :math:`\log p(h|v) = F(v) - E(v, h)`.

    Args:
        energy: The model.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> p, v = TruePosterior(GRBM(v_dim=2, h_dim=3)), torch.zeros(5, 2)
        >>> h, log_p = p.rsample_and_log_prob(v, p.noise((7,), v, torch.Generator()))
        >>> h.shape, log_p.shape
        (torch.Size([7, 5, 3]), torch.Size([7, 5]))
    """

    def __init__(self, energy: ConditionalEnergy) -> None:
        self.energy = energy

    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Noise for one draw, shape (*shape, B, H)."""
        return self.energy.latent_noise((*shape, len(v)), v, generator)

    def rsample_and_log_prob(self, v: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """h ~ p(h|v), shape (*L, B, H), and log p(h|v), shape (*L, B)."""
        h = self.energy.draw_latent(v, noise)
        return h, self.energy.free_energy(v) - self.energy.energy(v, h)

    sample_and_log_prob = rsample_and_log_prob  # h are bits, or real


class LossWithPosterior(LossMethod):
    """A loss of E(v, h) at latents of q(h|v; phi): an iteration is K steps on phi, then one down the loss at that phi.

    A posterior that is null stands for p(h|v) itself; then the iteration is the step down the loss alone. A subclass
    calls :meth:`keep_posterior` in its constructor.
    """

    posterior: Posterior | None
    divergence: Divergence | None

    def keep_posterior(
        self,
        posterior: Posterior | None,
        divergence: Divergence | None,
        n_lower_steps: int,
        lower_optimizer: Optimizer | None = None,
        objective: Objective | None = None,
        lower_noise: LowerNoise = "fresh",
    ) -> None:
        """Keep q, its divergence from p, K, and the rule of the lower level, which is the upper one's if not given.

        Raises:
            ConfigError: For a posterior without a divergence, neither a posterior nor p(h|v), or parts that do not fit.
        """
        if (posterior is None) != (divergence is None):
            raise ConfigError("A posterior needs a divergence to be fitted by: give both, or null for both (p(h|v)).")
        self.posterior = posterior
        self.divergence = divergence
        self.n_lower_steps = 0
        self.lower_optimizer = lower_optimizer or self.optimizer
        if posterior is not None and divergence is not None:
            self.n_lower_steps = n_lower_steps
            self.fit = PosteriorFit(
                energy=self.energy,
                posterior=posterior,
                divergence=divergence,
                n_steps=n_lower_steps,
                objective=objective,
                view=self.energy_at,
                lower_noise=lower_noise,
            )
        elif not isinstance(self.energy, ConditionalEnergy):
            name = type(self.energy).__name__
            raise ConfigError(f"{name} has no p(h|v) to draw from: give a posterior and a divergence.")

    @property
    def level(self) -> str:
        """The upper level, where there is a posterior to fit."""
        return super().level if self.posterior is None else "upper"

    def networks(self) -> dict[str, nn.Module]:
        """Those of the loss, and the posterior if there is one."""
        return super().networks() if self.posterior is None else {**super().networks(), "phi": self.posterior}

    def param_groups(self) -> dict[str, ParamGroup]:
        """phi in the lower level, if there is a posterior, then what the loss moves."""
        groups = super().param_groups()
        return groups if self.posterior is None else {"lower": ParamGroup("phi", self.lower_optimizer), **groups}

    @property
    def parts(self) -> MethodParts:
        """Those of the loss, the posterior and its divergence."""
        return super().parts._replace(posterior=self.posterior, divergence=self.divergence)

    def lower_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of the K lower steps."""
        return self.fit.noise(v, self.n_lower_steps, generator)

    def lower_points(self, v: Tensor, noise: dict[str, Any], k: int) -> Tensor:
        """Where the k-th lower step fits q: the data."""
        return v

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of the K lower steps and of the loss."""
        lower = {} if self.posterior is None else {"lower": self.lower_noise(v, generator)}
        return {**lower, **super().draw_noise(v, generator)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """K steps on phi, then one down the loss at that phi."""
        for k in range(self.n_lower_steps):
            points = self.lower_points(v, noise["lower"], k)
            lower_loss = partial(self.fit.loss, state.theta, v=points, noise=noise["lower"], i=k)
            state = self.descend(state, "lower", lower_loss)
        return super().iteration(state, v, noise)

    def live_posterior(self) -> Any:
        """q(h|v), or p(h|v) as a :class:`TruePosterior`."""
        return TruePosterior(cast(ConditionalEnergy, self.energy)) if self.posterior is None else self.posterior

    def posterior_at(self, state: TrainState) -> Any:
        """q(h|v; phi), or p(h|v; theta) as a :class:`TruePosterior`; a constant to the gradient of the loss."""
        if self.posterior is None:
            return TruePosterior(cast(ConditionalEnergy, self.energy_at(tree_map(Tensor.detach, state.theta))))
        return bind(self.posterior, state.phi)
