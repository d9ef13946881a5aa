"""The error of approximate hypergradients of bi-level score matching, as a metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import torch
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import Params, bind, grad, grad_and_value, params_of
from eblvm_lit.core.tensors import flatten, tree_map
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.evaluation.base import ExampleMetric
from eblvm_lit.evaluation.latent_distributions import posterior_divergences
from eblvm_lit.evaluation.studies.hypergradient_bias_table import HypergradientBiasTable
from eblvm_lit.evaluation.studies.whitened_descent import WhitenedDescent
from eblvm_lit.hypergradients.base import BilevelProblem
from eblvm_lit.hypergradients.implicit import Implicit, hessian_product, mixed_product
from eblvm_lit.hypergradients.unroll import Unroll
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.bism import BiSM
from eblvm_lit.optimizers.sgd import SGD
from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
from eblvm_lit.scores.exact import ExactScore
from eblvm_lit.utils.quantities import Quantity

__all__ = ["HypergradientBias"]


def _distance(a: Params, b: Params) -> float:
    return float(torch.linalg.vector_norm(flatten(tree_map(torch.sub, a, b))))


def _norm(a: Params) -> float:
    return float(torch.linalg.vector_norm(flatten(a)))


class HypergradientBias(
    ExampleMetric,
    emits={  # neither higher nor lower is better, because the numbers are points of curves
        "optimum_kl": Quantity(0, "nats", "KL(q || p) at the best phi"),
        "hypergradient_bias_*": Quantity(0, "", "the relative error of the hypergradient for one N and K"),
        "phi_distance_*": Quantity(0, "", "the distance of phi from the best phi after K steps"),
    },
):
    r"""The relative error of BiSM's hypergradient for K lower-level steps and N unrolled steps.

    .. math:: \| dJ(\theta, \hat\phi^N(\theta)) / d\theta - dJ(\theta, \phi^*(\theta)) / d\theta \| \;/\;
        \| dJ(\theta, \phi^*(\theta)) / d\theta \|

    The study uses one minibatch and one fixed draw of noise, in float64. Its lower level is the exact
    KL(q(h|v) || p(h|v)), not an estimate. So both levels are deterministic functions, and the lower level has its
    optimum at q = p, or as close to it as q can be. (With a fixed draw of latents instead of the exact KL, phi would be
    fitted to that draw.) The minibatch must have more examples than v has dimensions; otherwise the optimum is not
    unique, and the hypergradient is not defined.

    K steps of gradient descent lead to phi^0; they start at the run's current phi or at a uniform posterior. N further
    steps, unrolled, give the hypergradient. phi* is the lower optimum, and the reference is the implicit hypergradient
    at phi*. For a GRBM with the linear Bernoulli posterior both are known in closed form: the true posterior, and the
    gradient of score matching with the exact marginal. Reference: Bao et al. 2020, Fig. 1 and Theorem 2.

    In the theorem the bias decreases at the rate of the descent, 1 - mu / L, where mu and L are the smallest and the
    largest eigenvalue of the Hessian. On images plain gradient descent is too slow to show this rate: the mean image by
    itself makes L thousands of times larger than mu. With ``whiten`` the descent uses coordinates of phi in which the
    inputs (v, 1) of a linear Bernoulli posterior are white and the mean curvature q (1 - q) of each latent is one. The
    theorem holds in any coordinates.

    Args:
        n_unrolls: The values of N, the number of unrolled steps.
        n_lower_steps: The values of K, the number of steps before.
        start: The posterior at which the K steps begin: ``live``, the run's current phi, so close to phi* that K
            changes little; or ``uniform``, phi = 0, where a linear Bernoulli posterior is 1/2 for every v.
        batch_size: Number of examples in the minibatch, more than v has dimensions.
        step_size: Step size of the gradient descent, in units of 1 / L at phi*. Close to phi* a step size of 1 is the
            fastest; far from it, where the curvature may be larger, the descent may need a smaller one.
        n_series: Largest N for which the bias is also computed with phi^0 = phi*, the limit of large K.
        n_reference_steps: Largest number of L-BFGS iterations to phi* if that is not known in closed form.
        n_terms: Number of conjugate-gradient steps for the reference hypergradient in the same case.
        whiten: Whether the descent uses whitened coordinates.

    Attributes:
        table: The results of the last evaluation; None before the first.
    """

    needs = "BiSM, and a divergence of q(h|v) from p(h|v) in closed form, as for a GRBM"
    collective = True  # every process computes the table, because the process that draws the figure needs it

    def __init__(
        self,
        *,
        n_unrolls: Sequence[NonNegativeInt] = (0, 1, 2, 5, 10, 20, 50),
        n_lower_steps: Sequence[NonNegativeInt] = (0, 5, 20, 100),
        start: Literal["live", "uniform"] = "live",
        batch_size: PositiveInt = 1400,
        step_size: PositiveFloat = 1.0,
        n_series: PositiveInt = 500,
        n_reference_steps: NonNegativeInt = 300,
        n_terms: PositiveInt = 200,
        whiten: bool = False,
    ) -> None:
        self.n_unrolls = sorted(set(n_unrolls))
        self.n_lower_steps = sorted(set(n_lower_steps))
        self.batch_size = batch_size
        self.n_reference_steps = n_reference_steps
        self.n_terms = n_terms
        self.start = start
        self.step_size = step_size
        self.n_series = n_series
        self.whiten = whiten
        self.table: HypergradientBiasTable | None = None

    @staticmethod
    def draw(method: BiSM, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the noise of the data and the noise of the latents, which the whole study uses."""
        return {
            "data": method.objective.noise(v, (), generator),
            "latent": method.posterior.noise((method.n_particles,), v, generator),
        }

    def problem(self, method: BiSM, v: Tensor, noise: dict[str, Any]) -> BilevelProblem:
        """Return the bi-level problem for one minibatch and one draw of noise; the caller adds the optimizer."""
        points = method.objective.perturb(v, noise["data"])

        def lower(theta: Params, phi: Params, i: int) -> Tensor:  # noqa: ARG001 - exact: draws no noise
            found = posterior_divergences(bind(method.energy, theta), bind(method.posterior, phi), points)
            return cast(dict[str, Tensor], found)["posterior_kl"].mean()

        def upper(theta: Params, phi: Params) -> Tensor:
            return method.upper_loss(theta, phi, v, noise).mean()

        return BilevelProblem(upper=upper, lower=lower, optimizer=cast(SGD, None), state={}, lr=0.0)

    def _descent(self, method: BiSM, points: Tensor, phi: Params) -> SGD:
        """Return the optimizer of the lower-level problem; the caller chooses its step size."""
        if not self.whiten:
            return SGD(lr=1.0)
        q = bind(cast(BernoulliPosterior, method.posterior), phi).mean(points)
        return WhitenedDescent(lr=1.0, inputs=points, curvature=(q * (1 - q)).mean(0), prefix="linear.")

    def _descend(self, problem: BilevelProblem, theta: Params, phi: Params, n: int) -> Params:
        """Minimise the lower-level loss by n gradient descent steps from phi, and return the new phi."""
        for _ in range(n):
            grads = grad(problem.lower, argnums=1)(theta, phi, 0)
            phi, _ = problem.optimizer.update(phi, grads, problem.state, problem.lr)
        return phi

    def reference(self, problem: BilevelProblem, theta: Params, phi: Params) -> tuple[Params, Params]:
        """Compute the lower-level optimum phi* by L-BFGS, and the implicit hypergradient at phi*."""
        best = {name: value.clone().requires_grad_() for name, value in phi.items()}
        optimizer = torch.optim.LBFGS(
            list(best.values()),
            max_iter=self.n_reference_steps,
            tolerance_grad=1e-9,
            tolerance_change=0.0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            grads, value = grad_and_value(problem.lower, argnums=1)(theta, tree_map(Tensor.detach, best), 0)
            for name, leaf in best.items():
                leaf.grad = grads[name]
            return value

        optimizer.step(closure)
        best = tree_map(Tensor.detach, best)
        return best, Implicit(n_terms=self.n_terms)(problem, theta, best).gradient

    @staticmethod
    def exact_reference(
        method: BiSM, v: Tensor, noise: dict[str, Any], theta: Params, phi: Params
    ) -> tuple[Params, Params]:
        """Compute the optimum phi* and its hypergradient in closed form.

        This is possible for a GRBM with a linear Bernoulli posterior.
        """
        model = cast(GRBM, method.energy)
        points = method.objective.perturb(v, noise["data"])
        energy = bind(model, theta)
        bias = energy.latent_logits(points.new_zeros(1, points.shape[1]))[0]
        weight = (energy.latent_logits(torch.eye(points.shape[1], dtype=points.dtype, device=points.device)) - bias).T
        best = dict(zip(phi, (weight, bias), strict=True))

        def objective(theta: Params) -> Tensor:
            return method.objective.loss(ExactScore(bind(model, theta)), points, noise["data"]).mean()

        return best, grad(objective)(theta)

    def _largest_eigenvalue(self, problem: BilevelProblem, theta: Params, phi: Params) -> float:
        """Compute the largest eigenvalue of the preconditioned lower-level Hessian by power iteration."""
        w = tree_map(torch.ones_like, phi)
        for _ in range(30):
            size = _norm(w)
            w = cast(SGD, problem.optimizer).metric(tree_map(lambda x, size=size: x / size, w))
            w = hessian_product(problem, theta, phi, w)
        return _norm(w)

    def _series(self, problem: BilevelProblem, theta: Params, best: Params) -> Iterator[tuple[int, Params]]:
        """Yield the hypergradient of N steps unrolled from the optimum phi*, for several N up to ``n_series``.

        The hypergradient is computed as a series. Each item is a pair of N and the hypergradient.
        """
        (direct, term), _ = grad_and_value(problem.upper, argnums=(0, 1))(theta, best)
        total = tree_map(torch.zeros_like, term)
        for n in range(self.n_series + 1):
            if n in self.n_unrolls or n % 50 == 0:
                yield n, tree_map(torch.sub, direct, mixed_product(problem, theta, best, total))
            step = cast(SGD, problem.optimizer).metric(term)
            total = tree_map(lambda t, x: t + problem.lr * x, total, step)
            product = hessian_product(problem, theta, best, step)
            term = tree_map(lambda x, hx: x - problem.lr * hx, term, product)

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies: only to BiSM, and only with divergences in closed form."""
        v = data.as_float(data.splits.train[:1]).to(device=method.device, dtype=method.dtype)
        return isinstance(method, BiSM) and posterior_divergences(method.energy, method.posterior, v) is not None

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Run the study on the training split, whatever ``split`` is, because it needs many examples.

        It needs more examples than v has dimensions. See :meth:`Metric.evaluate`.
        """
        return super().evaluate(method, data, "train", generator)

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the hypergradient's bias, and the distance of phi from its optimum, for each number of steps.

        See :meth:`ExampleMetric.compute`.
        """
        method = cast(BiSM, method)
        v = v[torch.randperm(len(v), generator=generator, device=v.device)[: self.batch_size]].double()
        noise = self.draw(method, v, generator)
        problem = self.problem(method, v, noise)
        theta, phi = (tree_map(Tensor.double, params_of(network)) for network in (method.energy, method.posterior))
        if isinstance(method.energy, GRBM) and isinstance(method.posterior, BernoulliPosterior):
            best, reference = self.exact_reference(method, v, noise, theta, phi)
        else:
            best, reference = self.reference(problem, theta, phi)
        rule = self._descent(method, method.objective.perturb(v, noise["data"]), best)
        problem = problem._replace(optimizer=rule, state=rule.init(phi))
        problem = problem._replace(lr=self.step_size / self._largest_eigenvalue(problem, theta, best))
        first = {"live": phi, "uniform": tree_map(torch.zeros_like, phi)}[self.start]
        self.table = self._tabulate(problem, theta, first, best, reference)
        return self.table.metrics()

    def _tabulate(
        self, problem: BilevelProblem, theta: Params, first: Params, best: Params, reference: Params
    ) -> HypergradientBiasTable:
        """Compute the errors of all hypergradients, and the distances of phi from its optimum, as a table."""
        scale = _norm(reference)
        at_optimum = {n: _distance(grads, reference) / scale for n, grads in self._series(problem, theta, best)}
        biases: dict[int, dict[int, float]] = {}
        distances: dict[int, float] = {}
        for k in self.n_lower_steps:
            start = self._descend(problem, theta, first, k)
            distances[k] = _distance(start, best)
            biases[k] = {
                n: _distance(Unroll(n_unroll=n)(problem, theta, start).gradient, reference) / scale
                for n in self.n_unrolls
            }
        return HypergradientBiasTable(float(problem.lower(theta, best, 0)), at_optimum, biases, distances)

    def figure(self) -> Figure | None:
        """Plot the results of the last evaluation; see :meth:`Metric.figure`."""
        return None if self.table is None else self.table.figure()
