"""Contrastive divergence: CD, with new chains for each minibatch, and PCD, with persistent chains."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.core.minibatch import Minibatch
from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.shards import check_shared, row_axes
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.samplers.chains.base import NegativePhase, State, energy_of

__all__ = ["ContrastiveDivergence"]


class ContrastiveDivergence(Method):
    r"""Contrastive divergence (CD-k, PCD-k): maximum likelihood with a negative phase of k Markov-chain steps.

    .. math:: \mathrm{mean}\, F(v) - \mathrm{mean}\, F(v^-)

    v^- are the states of the chains, which count as constants. As k grows, the gradient tends to the gradient of
    -log p(v). If F is not tractable, E(v, h) replaces it, with the latents of each phase.

    CD starts its chains at the minibatch, or at noise if the chain is configured so. PCD keeps its chains from one
    iteration to the next, and in checkpoints; every iteration moves all of them. They start at the first minibatch, or
    at noise. If there are more chains than examples, several chains start at the same example. Processes that share a
    minibatch divide the steps of the chains among them, and each process keeps a copy of all chains.
    Reference: Hinton 2002; Tieleman 2008.

    Args:
        energy: The model.
        chain: The Markov chain of the negative phase.
        optimizer: The optimizer of theta.
        n_chains: The number of persistent chains (PCD); None for chains that start at each minibatch (CD).
        validation: The reconstruction that the validation loss compares with v: the ``mean`` of p(v|h), or a ``draw``
            from it, as in the authors' code, which adds the variance of v given h to the loss.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the chain cannot sample the energy.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.samplers.chains.gibbs_chain import GibbsChain
        >>> pcd = ContrastiveDivergence(
        ...     energy=GRBM(v_dim=2, h_dim=3), chain=GibbsChain(n_steps=1), n_chains=10, optimizer=Adam(lr=1e-3))
        >>> {name: tuple(value.shape) for name, value in pcd.persistent_buffers().items()}
        {'chain_started': (), 'chain_h': (10, 3)}
    """

    def __init__(
        self,
        *,
        energy: Energy,
        chain: NegativePhase,
        optimizer: Optimizer,
        n_chains: PositiveInt | None = None,
        validation: Literal["mean", "draw"] = "mean",
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        chain.check(energy)
        self.validation = validation
        self.energy = energy
        self.chain = chain
        self.optimizer = optimizer
        self.n_chains = n_chains
        self._lasting = [] if n_chains is None else list(chain.shapes(energy))
        self._noise_axes: Any = None
        if n_chains is not None:
            self.register_buffer("chain_started", torch.tensor(False))
            for name, shape in chain.shapes(energy).items():
                self.register_buffer(f"chain_{name}", torch.zeros(n_chains, *shape))

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the number k of chain steps."""
        if self.n_chains is None:
            return f"CD: contrastive divergence, k = {self.chain.n_steps}"
        return f"PCD: persistent contrastive divergence, {self.n_chains:,} chains, k = {self.chain.n_steps}"

    def networks(self) -> dict[str, torch.nn.Module]:
        """Return the model, which is the only network."""
        return {"theta": self.energy}

    def param_groups(self) -> dict[str, ParamGroup]:
        """Return the only group, which contains all parameters of the model."""
        return {"model": ParamGroup("theta", self.optimizer)}

    @property
    def parts(self) -> MethodParts:
        """Return the energy, which is the only component of this method."""
        return MethodParts(energy=self.energy)

    def persistent_buffers(self) -> dict[str, Tensor]:
        """Return the states of the persistent chains, and a flag that is true once they have started."""
        names = ["chain_started", *(f"chain_{name}" for name in self._lasting)] if self._lasting else []
        return {name: self.get_buffer(name) for name in names}

    def unshared_buffers(self) -> set[str]:
        """Return the names of all persistent buffers, because only training needs the chains."""
        return set(self.persistent_buffers())

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers of the positive and the negative phase."""
        n = len(v) if self.n_chains is None else self.n_chains
        # Find the axis of the chains in each noise tensor before the iteration is compiled, because compiled code
        # cannot draw noise.
        if self._noise_axes is None:
            self._noise_axes = row_axes(lambda n: self.chain.noise(self.energy, n, v, torch.Generator(v.device)))
        return {
            "positive": self.chain.start_noise(self.energy, v, generator),
            "negative": self.chain.noise(self.energy, n, v, generator),
        }

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Run one iteration of Hinton 2002 (CD), or of Tieleman 2008, Algorithm 1 (PCD)."""
        chains = self.chains_of(state.minibatch, v.device)
        positive, negative = self.phases(bind(self.energy, state.theta), state, v, noise)
        weight = chains.relative_weight

        def loss(theta: Params) -> Tensor:
            energy = bind(self.energy, theta)
            return self.energy_of(energy, positive).mean() - weight * self.energy_of(energy, negative).mean()

        state = self.descend(state, "model", loss)
        return state._replace(buffers=self.kept(state, chains, positive, negative))

    @staticmethod
    def energy_of(energy: Energy, state: State) -> Tensor:
        """Compute the energy that training lowers at the data and raises at the chains' states, shape (B,)."""
        return energy_of(energy, state)

    def kept(self, state: TrainState, chains: Minibatch, positive: State, negative: State) -> dict[str, Tensor]:
        """Return the persistent buffers after the positive and negative phases of an iteration."""
        lasting = {f"chain_{name}": chains.gather(negative[name]) for name in self._lasting}
        if lasting:
            lasting["chain_started"] = torch.ones_like(state.buffers["chain_started"])
        return lasting

    def phases(self, energy: Energy, state: TrainState, v: Tensor, noise: Any) -> tuple[State, State]:
        """Return the states of the chains after the positive phase, and the states after the negative phase.

        Args:
            energy: The model.
            state: The training state, which contains the persistent chains.
            v: The minibatch, shape (B, *event).
            noise: The random numbers of both phases.
        """
        positive = self.positive_phase(energy, state, v, noise["positive"])
        if self.n_chains is None:
            start = self.chain.begin(positive, noise["negative"])
            return positive, self.chain.run(energy, start, noise["negative"])
        chains = self.chains_of(state.minibatch, v.device)
        new = self.chain.begin({name: state.minibatch.gather(x) for name, x in positive.items()}, noise["negative"])
        start = self._persisted(new, state.buffers, self.n_chains)
        start = chains.rows_of(start)
        return positive, self.chain.run(energy, start, chains.rows_of(noise["negative"], self._noise_axes))

    def positive_phase(self, energy: Energy, state: TrainState, v: Tensor, noise: Any) -> State:
        """Return the minibatch and, if the chain has latents, latents that are drawn for each example."""
        return self.chain.start(energy, v, noise)

    def chains_of(self, minibatch: Minibatch, device: torch.device) -> Minibatch:
        """Return the chains that an iteration moves: one chain per example, or the persistent chains."""
        if self.n_chains is None:
            return minibatch
        return minibatch.of(self.n_chains, device)

    def _persisted(self, new: State, buffers: dict[str, Tensor], n_chains: int) -> State:
        """Return the states of the persistent chains; if the chains have not started, return the states in ``new``."""
        rows = torch.arange(n_chains, device=new["v"].device) % len(new["v"])
        started = buffers["chain_started"]
        return {name: torch.where(started, buffers[f"chain_{name}"], new[name][rows]) for name in self._lasting}

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        r"""Compute the squared reconstruction error of each example, shape (B,).

        The reconstruction is one step of the chain, from v to latents h and back to v'. The error is
        :math:`\|v - E[v'|h]\|^2` for the mean of p(v'|h), or :math:`\|v - v'\|^2` for a sample if
        ``validation="draw"``.
        """
        state = self.chain.start(self.energy, v, self.chain.start_noise(self.energy, v, generator))
        drawn = self.chain.reconstruct(self.energy, state, generator if self.validation == "draw" else None)
        return sum_event((v - drawn).square())

    def check_processes(self, size: int) -> None:
        """Raise a ConfigError if there are too few persistent chains to divide among ``size`` processes."""
        if self.n_chains is not None:
            check_shared(self.n_chains, size, "persistent chains (method.n_chains)")

    def float32_reason(self) -> str | None:
        """Return the reason for using float32: the gradient is a small difference of two means.

        In bfloat16 the relative error of this gradient was 9 % at random images, while the relative error of a score
        was 1 %.
        """
        return "as the gradient is a small difference of two means"
