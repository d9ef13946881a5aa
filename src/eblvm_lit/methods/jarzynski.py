"""Maximum likelihood with weighted Markov chains. The weights correct for chains that lag behind the model."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Normal

from eblvm_lit.core.functional import Params, bind, grad_and_value
from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import by_rows, smoothed_mean, sum_event
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.contrastive_divergence import ContrastiveDivergence
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.samplers.chains.base import NegativePhase, energy_of

__all__ = ["Jarzynski", "systematic"]

# Settings for the initialisation of the walkers (see Jarzynski.start).
N_EXAMPLES = 1000  # the number of training examples at which chains are started
N_STEPS = 100  # the number of steps of each of these chains
N_DRAWS = 10_000  # the number of draws from the fitted normal distribution, from which the walkers are resampled


def systematic(weights: Tensor, u: Tensor, n: int) -> Tensor:
    r"""Draw n indices by systematic resampling with the given weights.

    Index i is drawn :math:`\lfloor n w_i \rfloor` or :math:`\lceil n w_i \rceil` times.

    Args:
        weights: The weights w, which sum to one, shape (m,).
        u: A random number, uniform in [0, 1).
        n: The number of indices to draw.

    Returns:
        The indices in ascending order, shape (n,).

    Example:
        >>> systematic(torch.tensor([0.5, 0.0, 0.25, 0.25]), torch.tensor(0.3), 4)
        tensor([0, 0, 2, 3])
    """
    below = weights.cumsum(0)
    points = (torch.arange(n, device=weights.device) + u) / n * below[-1]
    return torch.searchsorted(below, points, right=True).clamp(max=len(weights) - 1)


def log_mean_exp(x: Tensor) -> Tensor:
    """Compute the logarithm of the mean of exp(x), for x of shape (n,)."""
    return x.logsumexp(0) - math.log(len(x))


class Jarzynski(ContrastiveDivergence):
    r"""Maximum likelihood with weighted persistent chains, which are called walkers.

    Walker i has the state X_i and the log-weight A_i.

    .. math:: \nabla\, \mathrm{mean}\, F(v) - \sum_i w_i \nabla F(X_i), \quad w = \mathrm{softmax}(A), \qquad
        \log Z = \log \mathrm{mean}_i\, e^{A_i}

    From one iteration to the next, k chain steps with the transition density T of the previous parameters theta^- move
    X to X', and an optimizer step moves theta^- to theta. The log-weights are corrected for both:

    .. math:: A \leftarrow A + F_{\theta^-}(X) - F_\theta(X') + \log \frac{T(X' \to X)}{T(X \to X')}

    For Gibbs sweeps the increment is :math:`F_{\theta^-}(X') - F_\theta(X')`. Sums weighted by w tend to expectations
    under p, and log Z is known throughout the run, even if the chains lag behind theta. If F is not tractable, E(v, h)
    replaces it. If a few walkers carry most of the weight, the walkers are resampled. The first walkers are draws from
    a normal distribution, or from independent bits if v is binary, weighted by the model's density.

    The loss is the negative log-likelihood. Because theta is fitted to these same walkers, the estimate of log Z falls
    below the true value by O(1 / n) in each iteration, for n walkers that mix slowly. Processes that share a minibatch
    divide the steps of the walkers among them, and each process keeps a copy of all walkers. Reference: Carbone
    et al. 2023, arXiv 2305.19414, where the density of the step back is computed with the new theta.

    Args:
        energy: The model.
        chain: The Markov chain that moves the walkers.
        optimizer: The optimizer of theta.
        n_chains: The number n of walkers.
        resample_below: The fraction of n below which the effective number of walkers, :math:`1 / \sum_i w_i^2`,
            triggers resampling.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the chain cannot sample the energy, or if there is no walker.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.samplers.chains.gibbs_chain import GibbsChain
        >>> method = Jarzynski(
        ...     energy=GRBM(v_dim=2, h_dim=3), chain=GibbsChain(n_steps=1), n_chains=1000, optimizer=Adam(lr=1e-3))
        >>> generator = torch.Generator().manual_seed(0)
        >>> method.start(torch.randn(100, 2, generator=generator), generator)
        >>> abs(method.log_partition() - method.energy.log_partition()) < 0.1
        tensor(True)
    """

    chain_volume: Tensor

    def __init__(
        self,
        *,
        energy: Energy,
        chain: NegativePhase,
        optimizer: Optimizer,
        n_chains: PositiveInt,
        resample_below: NonNegativeFloat = 0.5,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy, chain=chain.weighted(), optimizer=optimizer, n_chains=n_chains, seed=seed, compile=compile
        )
        self.resample_below = resample_below
        # This buffer contains A + F(X), which does not depend on theta as long as the walkers X do not move. The
        # log-weight A at any theta is the buffer minus F(X).
        self._lasting.append("volume")
        self.register_buffer("chain_volume", torch.zeros(n_chains))

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the number of walkers and the number k of chain steps."""
        return f"Jarzynski: maximum likelihood by {self.n_chains:,} weighted walkers, k = {self.chain.n_steps}"

    @property
    def parts(self) -> MethodParts:
        """Return the energy and the walkers' estimate of its log Z."""
        return MethodParts(energy=self.energy, log_z=self.log_partition())

    def unshared_buffers(self) -> set[str]:
        """Return the empty set, because a published model needs all of the walkers' buffers to estimate log Z."""
        return set()

    def on_fit_start(self) -> None:
        """Start the walkers, unless they were loaded from a checkpoint."""
        super().on_fit_start()
        if not self.get_buffer("chain_started"):
            examples = self._data.as_float(self._data.splits.train[:N_EXAMPLES]).to(self.device, self.dtype)
            self.start(examples, keyed_generator(self.seed, "walkers", device=self.device))

    @torch.no_grad()
    def start(self, v: Tensor, generator: torch.Generator) -> None:
        """Draw the initial walkers in the region in which the model has most of its probability mass.

        Chains that start at the examples v (n, *event) find this region. A normal distribution, or a distribution of
        independent bits, is fitted to the last states of these chains. The walkers are resampled from draws from this
        distribution, with weights that are ratios of the model's density to its density.
        """
        chain = self.chain
        energy = self.energy
        A = v.new_zeros(N_DRAWS)
        drawn = {}
        X = chain.start(energy, v, chain.start_noise(energy, v, generator))
        for _ in range(0, N_STEPS, chain.n_steps):
            X = chain.run(energy, X, chain.noise(energy, len(v), v, generator))
        for name in chain.shapes(energy):
            eps = v.new_empty(N_DRAWS, *X[name].shape[1:])
            if energy.binary_visible:  # the latents are then binary, too
                mean = smoothed_mean([X[name]])
                drawn[name] = (eps.uniform_(generator=generator) < mean).to(v)
                fitted: Distribution = Bernoulli(mean)
            else:
                mean = X[name].mean(0)
                std = X[name].std(0)
                drawn[name] = mean + std * eps.normal_(generator=generator)
                fitted = Normal(mean, std)
            A -= sum_event(fitted.log_prob(drawn[name]))
        F = by_rows(lambda *x: energy_of(energy, dict(zip(drawn, x, strict=True))), len(v), *drawn.values())
        u = v.new_empty(()).uniform_(generator=generator)
        rows = systematic((A - F).softmax(0), u, len(self.chain_volume))
        drawn["volume"] = log_mean_exp(A - F) + F
        for name, x in drawn.items():
            self.get_buffer(f"chain_{name}").copy_(x[rows])
        self.get_buffer("chain_started").fill_(True)

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers of the positive phase, the negative phase and the resampling step."""
        return {**super().draw_noise(v, generator), "resampling": torch.rand((), generator=generator, device=v.device)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Run one iteration of Carbone et al. 2023, Algorithm 1. Each process moves its share of the walkers."""
        energy = bind(self.energy, state.theta)
        chains = self.chains_of(state.minibatch, v.device)
        positive = self.positive_phase(energy, state, v, noise["positive"])
        X = {name: state.buffers[f"chain_{name}"] for name in self.chain.shapes(self.energy)}
        own = chains.rows_of(X)

        def loss(theta: Params) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            energy = bind(self.energy, theta)
            F = chains.gather(energy_of(energy, own))
            A = state.buffers["chain_volume"] - F
            return energy_of(energy, positive).mean() + log_mean_exp(A), (A, F)

        grads, (value, (A, F)) = grad_and_value(loss, has_aux=True)(state.theta)
        w = A.softmax(0)
        log_z = log_mean_exp(A)
        n_effective = 1 / w.square().sum()
        few = n_effective < self.resample_below * len(w)
        rows = torch.where(few, systematic(w, noise["resampling"], len(w)), torch.arange(len(w), device=w.device))
        volume = torch.where(few, log_z, A) + F[rows]
        own = chains.rows_of({name: x[rows] for name, x in X.items()})
        own, ratio = self.chain.weighted_run(energy, own, chains.rows_of(noise["negative"], self._noise_axes))
        kept = self.kept(state, chains, positive, {**own, "volume": chains.rows_of(volume) + ratio})
        diagnostics = {"log_z": log_z, "effective_sample_size": n_effective, "resampled": few.to(w.dtype)}
        return self.update(state, "model", value, grads, diagnostics, kept)

    @torch.no_grad()
    def log_partition(self) -> Tensor:
        """Estimate log Z at the current parameters from the weights of the walkers."""
        X = {name: self.get_buffer(f"chain_{name}") for name in self.chain.shapes(self.energy)}
        return log_mean_exp(self.chain_volume - energy_of(self.energy, X))

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Compute -log p(v) for each example, or -log p(v, h) if the free energy is not tractable, shape (B,)."""
        positive = self.chain.start(self.energy, v, self.chain.start_noise(self.energy, v, generator))
        return energy_of(self.energy, positive) + self.log_partition()
