"""A hypergradient that fixes phi and differentiates through natural-gradient steps, which refine q(h|v) at each v."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import Params, bind, detached, grad_and_value
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.energies.base import Energy
from eblvm_lit.hypergradients.base import BilevelProblem, Hypergradient, HypergradientStep
from eblvm_lit.posteriors.base import DistributionParams, LatentEnergy, Posterior

__all__ = ["FixedPoint"]


class FixedPoint(Hypergradient):
    r"""The gradient of J through natural-gradient steps on q(h|v), which make q depend on theta although phi is fixed.

    .. math:: \lambda^*(v) = T(\lambda^*(v); v, \theta), \quad
        T(\lambda; v, \theta) = -\nabla_m E_{q_\lambda}[E(v, h; \theta)]
    .. math:: \frac{dJ}{d\theta} \approx \frac{d}{d\theta} J(\theta, q_{\tilde\lambda}), \quad
        \tilde\lambda(v; \theta) = T(\lambda_\phi(v); v, \theta)

    :math:`\lambda` are the natural parameters of q(h|v), and m its mean parameters. At each v the optimal natural
    parameters are a fixed point of T, which the network's output :math:`\lambda_\phi(v)` approximates. One step of T
    makes the natural parameters depend on theta, without unrolling phi and without a Hessian of G. The score's
    derivative in v also goes through T.

    For a GRBM, T maps to the exact posterior. With ``value="step"`` and ``step_size=1`` the hypergradient is then
    exact for every phi; a smaller step leaves the fraction :math:`(1 - \alpha)^n` of the distance of lambda to
    lambda*, and with ``value="phi"`` the hypergradient is exact only at phi*. For other models the error at phi* is of
    order :math:`\rho^n`, where n is the number of steps and :math:`\rho` is the contraction factor of T at phi*. For a
    Gaussian q with ``precision="fixed"`` the steps do not correct a wrong precision of phi: the error that it causes
    stays, whatever the number of steps. If q's family does not contain the posterior, lambda* belongs to the best q of
    the family. References: Khan and Rue 2021 (the step); Bolte, Pauwels and Vaiter 2023 (its derivative).

    Args:
        n_steps: The number n of natural-gradient steps.
        value: ``step`` evaluates J at the refined :math:`\tilde\lambda`. ``phi`` evaluates J at :math:`\lambda_\phi`
            and uses the steps only for the derivative in theta.
        step_size: The size alpha of each step: 1 applies T itself, and a smaller value damps T if it does not contract.
        n_particles: The number of latents drawn from q to estimate the expectation in each step. 0 evaluates the
            derivative of E at the mean of q instead, which is exact for an energy that is linear in each binary
            latent, or quadratic in Gaussian latents.
        precision: For a Gaussian q, ``fixed`` leaves its precision P at the value that phi gives, and ``stepped`` also
            moves P, by a step that keeps it positive: to P (1 + x + x^2 / 2), where T would give P (1 + x).

    Example:
        >>> import torch
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.bism import BiSM
        >>> from eblvm_lit.objectives.dsm import DSM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> bidsm = BiSM(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3),
        ...     objective=DSM(noise_std=0.1), divergence=KL(), hypergradient=FixedPoint(), optimizer=Adam(lr=1e-3))
        >>> bidsm.title
        'BiDSM: bi-level denoising score matching, K = 5, fixed-point hypergradient of 1 step'
    """

    n_draws = 0

    def __init__(
        self,
        *,
        n_steps: PositiveInt = 1,
        value: Literal["step", "phi"] = "step",
        step_size: PositiveFloat = 1.0,
        n_particles: NonNegativeInt = 0,
        precision: Literal["fixed", "stepped"] = "fixed",
    ) -> None:
        self.n_steps = n_steps
        self.value = value
        self.step_size = step_size
        self.n_particles = n_particles
        self.precision = precision
        self.n_latents = n_steps * n_particles

    @property
    def title(self) -> str:
        """Return a short name of the hypergradient, with the number of steps."""
        return f"fixed-point hypergradient of {self.n_steps} step{'s' if self.n_steps > 1 else ''}"

    def steps(
        self, posterior: Posterior, energy: LatentEnergy, q_params: DistributionParams, noise: Tensor
    ) -> DistributionParams:
        """Return the distribution parameters of q(h|v) after n natural-gradient steps."""
        for i in range(self.n_steps):
            particles = noise[i * self.n_particles : (i + 1) * self.n_particles] if self.n_particles else None
            q_params = posterior.natural_gradient_step(
                q_params, energy, particles, step_size=self.step_size, move_precision=self.precision == "stepped"
            )
        return q_params

    def __call__(
        self, problem: BilevelProblem, theta: Params, phi: Params, state: Mapping[str, Tensor] | None = None
    ) -> HypergradientStep:
        """Compute the upper loss J, and its gradient with respect to theta through the natural-gradient steps.

        J is evaluated at the refined posterior or, if ``value="phi"``, at phi.
        """
        posterior = cast(Posterior, problem.posterior)
        noise = cast(Tensor, problem.latent_noise)
        constant_energy = bind(cast(Energy, problem.energy), detached(theta))

        def refine(v: Tensor, energy: LatentEnergy, q_params: DistributionParams) -> DistributionParams:
            refined = self.steps(posterior, energy, q_params, noise)
            if self.value == "step":
                return refined
            # Steps at theta and steps at a constant copy of theta have the same result, so the difference of the two
            # results is zero. Its derivative with respect to theta is the derivative of the steps at theta. Adding the
            # difference to q's parameters therefore keeps their values and adds this derivative.
            constant = self.steps(posterior, constant_energy.at(v), q_params, noise)
            return tree_map(lambda q, moved, same: q + (moved - same), q_params, refined, constant)

        grads, value = grad_and_value(lambda own: problem.upper(own, phi, refine))(theta)
        return HypergradientStep(value, grads, {})
