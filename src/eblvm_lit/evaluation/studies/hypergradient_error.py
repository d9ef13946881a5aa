"""The error, during training, of the hypergradient that a bi-level method uses."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, cast

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import Params, bind, grad
from eblvm_lit.core.tensors import flatten, tree_map
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.energies.quadrature import QuadratureMarginal
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.evaluation.latent_distributions import posterior_divergences
from eblvm_lit.evaluation.studies.hypergradient_bias import HypergradientBias
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.bism import BiSM
from eblvm_lit.methods.state import TrainState
from eblvm_lit.scores.exact import ExactScore
from eblvm_lit.utils.quantities import Quantity

__all__ = ["HypergradientError"]

log = logging.getLogger(__name__)

ROWS = 20  # number of examples whose marginals are computed by quadrature at a time
N_TERMS = 100  # number of conjugate-gradient steps for the exact hypergradient


class HypergradientError(
    Metric,
    emits={
        name + suffix: Quantity(way, "", meaning)
        for name, way, meaning in (
            ("hypergradient_cosine", 1, "the cosine of the angle to an exact gradient"),
            ("hypergradient_error", -1, "the relative distance from an exact gradient"),
            ("hypergradient_noise", 0, "the spread of single estimates, relative to an exact gradient"),
        )
        for suffix in ("", "_lower")
    },
):
    r"""The error of a bi-level method's current hypergradient relative to each of two exact gradients.

    .. math:: \bar g = \frac{1}{R} \sum_r g_r, \quad
        \mathrm{cosine} = \frac{\bar g^\top g^*}{\|\bar g\| \|g^*\|}, \quad
        \mathrm{error} = \frac{\|\bar g - g^*\|}{\|g^*\|}, \quad
        \mathrm{noise} = \frac{\sqrt{\frac{1}{R} \sum_r \|g_r - \bar g\|^2}}{\|g^*\|}

    The g_r are R estimates at the run's current theta, phi and optimizer states, on one minibatch and in float64. They
    share one draw of the data's noise; each has new latents. There are two references g*, with the same
    examples and noise:

    - ``hypergradient_cosine`` and ``hypergradient_error``: the gradient of J with the exact marginal score, of which
      the bi-level problem is an approximation. If the family of q does not contain p(h|v), even the exact hypergradient
      differs from this reference.
    - ``hypergradient_cosine_lower`` and ``hypergradient_error_lower``, if ``n_reference_steps`` > 0: the exact
      hypergradient of the bi-level problem, computed by the implicit function theorem at the phi that minimises the
      exact KL(q || p).

    The first reference exists for models whose marginal is known in closed form, by enumeration, or by quadrature over
    one or two latents; without it the metric returns nothing. The second needs a closed form of KL(q || p).

    A hypergradient may depend on the states of the optimizers, which exist only during training. So the metric is
    computed at validations, and returns nothing for the test split.

    Args:
        batch_size: Number of training examples in the minibatch.
        n_repeats: The number R of estimates.
        n_reference_steps: Largest number of L-BFGS iterations to the optimal phi; 0 leaves the second reference out.
        half_width: Half the width of the grid of latents in a quadrature.
        n_nodes: Number of nodes of that grid along each axis.

    Example:
        >>> HypergradientError(batch_size=100, n_repeats=2).n_repeats
        2
    """

    needs = "BiSM, and a marginal in closed form, by enumeration or by quadrature"

    def __init__(
        self,
        *,
        batch_size: PositiveInt = 1000,
        n_repeats: PositiveInt = 16,
        n_reference_steps: NonNegativeInt = 0,
        half_width: PositiveFloat = 8.0,
        n_nodes: PositiveInt = 121,
    ) -> None:
        self.batch_size = batch_size
        self.n_repeats = n_repeats
        self.n_reference_steps = n_reference_steps
        self.half_width = half_width
        self.n_nodes = n_nodes

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        return isinstance(method, BiSM)

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Compute the cosines, the relative errors and the noise of the hypergradient; see :meth:`Metric.evaluate`."""
        method = cast(BiSM, method)
        if split != "val" or method.current_state is None:
            return {}
        v = data.as_float(data.splits.train).to(method.device)
        v = v[torch.randperm(len(v), generator=generator, device=v.device)[: self.batch_size]].double()
        state = cast(TrainState, tree_map(_double, method.current_state._replace(in_place=False)))
        noise = method.objective.noise(v, (), generator)
        points = method.objective.perturb(v, noise)
        if not self.has_marginal(bind(method.energy, state.theta), points):
            return {}

        estimates = self.estimates(method, state, v, noise, generator)
        found = self.compare(estimates, self.marginal_reference(method, state.theta, points, noise))
        known = posterior_divergences(method.energy, method.posterior, v[:1].to(method.dtype)) is not None
        if self.n_reference_steps > 0 and known:
            found |= self.compare(estimates, self.lower_reference(method, state, v, noise, generator), "_lower")
        return found

    def marginal_reference(self, method: BiSM, theta: Params, points: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """Compute the flattened gradient of the objective J with respect to theta, using the exact marginal score."""

        def loss(theta: Params, points: Tensor, noise: dict[str, Tensor]) -> Tensor:
            score = ExactScore(self.marginal(bind(method.energy, theta)))
            return method.objective.loss(score, points, noise).sum() / n

        # With quadrature, only a few examples at a time fit into memory. Objectives that compare pairs of examples need
        # all examples at once, so they work only for models without quadrature.
        n = len(points)
        rows = len(points) if isinstance(method.energy, MarginalEnergy) else ROWS
        total = torch.zeros_like(flatten(theta))
        for own in torch.arange(n, device=points.device).split(rows):
            total = total + flatten(grad(loss)(theta, points[own], {name: x[own] for name, x in noise.items()}))
        return total

    def marginal(self, energy: Energy) -> MarginalEnergy:
        """Return the model with an exact marginal, computed by quadrature over the latents if it is not tractable."""
        if isinstance(energy, MarginalEnergy):
            return energy
        return QuadratureMarginal(energy=energy, half_width=self.half_width, n_nodes=self.n_nodes)

    def has_marginal(self, energy: Energy, points: Tensor) -> bool:
        """Return whether the marginal can be computed, in closed form or on a grid that covers p(h|v) at all points."""
        if isinstance(energy, MarginalEnergy) or not energy.continuous or energy.h_dim > 2:
            return isinstance(energy, MarginalEnergy)
        try:
            cast(QuadratureMarginal, self.marginal(energy)).check(points, tolerance=1e-3)
        except ConfigError as error:  # do not stop the training, because the grid may fit at the next validation
            log.warning("hypergradient_error is not computed here. %s", error)
            return False
        return True

    def estimates(
        self, method: BiSM, state: TrainState, v: Tensor, noise: dict[str, Any], generator: torch.Generator
    ) -> Tensor:
        """Estimate the hypergradient R times; the result has shape (R, number of parameters)."""
        found = []
        for _ in range(self.n_repeats):
            drawn = method.draw_noise(v, generator)
            drawn["upper"]["data"] = noise
            problem = method.bilevel_problem(state, v, method.fit.share(state.theta, v, drawn)[1])
            found.append(flatten(method.hypergradient(problem, state.theta, state.phi, state.buffers).gradient))
        return torch.stack(found)

    @staticmethod
    def compare(estimates: Tensor, reference: Tensor, suffix: str = "") -> dict[str, float]:
        """Compute the cosine and the relative error of the mean of R estimates against a reference, and their noise.

        ``estimates`` has shape (R, n), and ``reference`` has shape (n,).

        Example:
            >>> estimates = torch.tensor([[2.0, 0.0], [2.0, 2.0]])
            >>> HypergradientError.compare(estimates, torch.tensor([2.0, 0.0]))["hypergradient_error"]
            0.5
        """
        mean = estimates.mean(0)
        size = torch.linalg.vector_norm(reference)
        return {
            f"hypergradient_cosine{suffix}": float(torch.nn.functional.cosine_similarity(mean, reference, dim=0)),
            f"hypergradient_error{suffix}": float(torch.linalg.vector_norm(mean - reference) / size),
            f"hypergradient_noise{suffix}": float((estimates - mean).square().sum(-1).mean().sqrt() / size),
        }

    def lower_reference(
        self, method: BiSM, state: TrainState, v: Tensor, noise: dict[str, Any], generator: torch.Generator
    ) -> Tensor:
        """Compute the flattened implicit hypergradient at the phi that minimises the exact KL divergence."""
        study = HypergradientBias(n_reference_steps=self.n_reference_steps, n_terms=N_TERMS)
        latents = method.posterior.noise((self.n_repeats,), v, generator)
        problem = study.problem(method, v, {"data": noise, "latent": latents})
        if not method.posterior.continuous:
            points = method.objective.perturb(v, noise)
            problem = problem._replace(lower=partial(self.bits_lower, method, points))
        return flatten(study.reference(problem, state.theta, state.phi)[1])

    @staticmethod
    def bits_lower(method: BiSM, points: Tensor, theta: Params, phi: Params, i: int) -> Tensor:  # noqa: ARG004 - exact
        """Compute KL(q || p) + F, the mean energy under q minus the entropy of q, for independent binary latents.

        As the energy E is linear in each latent, its mean under q is its value at the means of the latents.
        """
        logits = bind(method.posterior, phi).distribution_params(points)[0]
        energy = bind(method.energy, theta).energy(points, logits.sigmoid())
        entropy = (torch.nn.functional.softplus(logits) - logits.sigmoid() * logits).sum(-1)
        return (energy - entropy).mean()


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x.clone()
