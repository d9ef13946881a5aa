"""Contrastive divergence, with chains that start anew at each minibatch or persist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from eblvm_lit.core.autograd import grad_and_value
from eblvm_lit.core.functional import Params, bind, sum_event
from eblvm_lit.distributed.reductions import whole_minibatch
from eblvm_lit.distributed.shards import Shard, current_shard, row_axes, shard_of, take_rows
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.levels import Gradient, Level, TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.samplers.chains.base import Chain, State, energy_of

__all__ = ["ContrastiveDivergence"]


class ContrastiveDivergence(Method):
    r"""CD-k and PCD-k: maximum likelihood with a negative phase of k steps.

    .. math:: \mathrm{mean}\, F(v) - \mathrm{mean}\, F(v^-)

    v^- are held fixed: the gradient tends to that of -log p(v) as k grows. Where F is not tractable E(v, h) stands for
    it, at the latents of each phase. CD starts its chains at the minibatch (or where the chain says, such as at noise).
    PCD has chains that go on from one iteration to the next; they are in the checkpoint, and all of them move at every
    minibatch, a short one, too. They start at the first minibatch, over and over if it has fewer rows than there are
    chains (or where the chain says). Where processes share the minibatch they share the chains, too; each knows where
    all of them are. Reference: Hinton 2002; Tieleman 2008.

    Args:
        energy: The model.
        chain: What draws the negative phase.
        optimizer: Rule of the only level.
        n_chains: Number of persistent chains (PCD); null for chains that start at each minibatch (CD).
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an energy the chain cannot sample, or fewer than one persistent chain.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.samplers.chains.gibbs_chain import GibbsChain
        >>> pcd = ContrastiveDivergence(
        ...     energy=GRBM(v_dim=2, h_dim=3), chain=GibbsChain(n_steps=1), n_chains=10, optimizer=Adam(lr=1e-3))
        >>> {name: tuple(value.shape) for name, value in pcd.memory().items()}
        {'chain_started': (), 'chain_h': (10, 3)}
    """

    posterior = None
    divergence = None
    objective = None

    def __init__(
        self,
        *,
        energy: Energy,
        chain: Chain,
        optimizer: Optimizer,
        n_chains: int | None = None,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        if n_chains is not None and n_chains < 1:
            raise ConfigError(
                f"n_chains must be >= 1, or null for chains that start at each minibatch, not {n_chains}."
            )
        chain.check(energy)
        self.energy, self.chain, self.optimizer, self.n_chains = energy, chain, optimizer, n_chains
        self._lasting = [] if n_chains is None else list(chain.shapes(energy))
        if n_chains is not None:
            self.register_buffer("chain_started", torch.tensor(False))
            for name, shape in chain.shapes(energy).items():
                self.register_buffer(f"chain_{name}", torch.zeros(n_chains, *shape))

    def players(self) -> dict[str, torch.nn.Module]:
        """The model alone."""
        return {"theta": self.energy}

    def levels(self) -> Sequence[Level]:
        """One step on theta."""
        return [Level("upper", "theta", 1, self.optimizer, self.noise, self._gradient)]

    def memory(self) -> dict[str, Tensor]:
        """The persistent chains, and whether they have started."""
        names = ["chain_started", *(f"chain_{name}" for name in self._lasting)] if self._lasting else []
        return {name: self.get_buffer(name) for name in names}

    def memory_hints(self) -> list[str]:
        """Activations that are computed again, where the network can do that."""
        kept = getattr(getattr(self.energy, "network", None), "checkpoint", None) is False
        checkpoint = ["set model.network.checkpoint=true with method.compile=false"] if kept else []
        return [*super().memory_hints(), *checkpoint]

    def check_batch_size(self, n: int) -> None:  # noqa: ARG002 - of the chains
        """Refuse more devices than chains are enough for."""
        if self.n_chains is not None:
            shard_of(self.n_chains, what="persistent chains (method.n_chains)")

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of both phases."""
        n = len(v) if self.n_chains is None else self.n_chains
        return {
            "positive": self.chain.start_noise(self.energy, v, generator),
            "negative": self.chain.noise(self.energy, n, v, generator),
        }

    def _own_chains(self, device: torch.device) -> Shard | None:
        """The persistent chains that this process moves; None where it moves all, or where there are none."""
        shared = self.n_chains is not None and current_shard() is not None
        return shard_of(self.n_chains, device) if shared else None

    def _resume(self, new: State, memory: dict[str, Tensor]) -> State:
        """Where the persistent chains go on; where new ones begin before they have started."""
        rows = torch.arange(self.n_chains, device=new["v"].device) % len(new["v"])
        started = memory["chain_started"]
        return {name: torch.where(started, memory[f"chain_{name}"], new[name][rows]) for name in self._lasting}

    def _persistent(self, energy: Energy, memory: dict[str, Tensor], positive: State, noise: Any) -> State:
        """The negative phase of the persistent chains: of this process' ones, if several share them."""
        new = self.chain.begin({name: whole_minibatch(x) for name, x in positive.items()}, noise)
        start, own = self._resume(new, memory), self._own_chains(new["v"].device)
        if own is not None:
            like = positive["v"]
            axes = row_axes(lambda n: self.chain.noise(energy, n, like, torch.Generator(like.device)))
            start, noise = {name: x[own.rows] for name, x in start.items()}, take_rows(noise, axes, own)
        return self.chain.run(energy, start, noise)

    def phases(self, energy: Energy, memory: dict[str, Tensor], v: Tensor, noise: Any) -> tuple[State, State]:
        """Positive and negative phase.

        Args:
            energy: The model.
            memory: The persistent chains; nothing of it is changed.
            v: The minibatch, shape (B, *event).
            noise: Their random numbers.
        """
        positive = self.chain.start(energy, v, noise["positive"])
        if self.n_chains is not None:
            return positive, self._persistent(energy, memory, positive, noise["negative"])
        start = self.chain.begin(positive, noise["negative"])
        return positive, self.chain.run(energy, start, noise["negative"])

    def _gradient(self, situation: TrainState, v: Tensor, noise: Any, step: int) -> Gradient:  # noqa: ARG002
        theta, memory = situation.params["theta"], situation.memory
        positive, negative = self.phases(bind(self.energy, theta), memory, v, noise)
        own = self._own_chains(v.device)
        # a process may have another part of the chains than of the minibatch, by which means are weighted
        weight = 1.0 if own is None else own.weight / current_shard().weight

        def loss(theta: Params) -> Tensor:
            energy = bind(self.energy, theta)
            return energy_of(energy, positive).mean() - weight * energy_of(energy, negative).mean()

        grads, value = grad_and_value(loss)(theta)
        lasting = {f"chain_{name}": whole_minibatch(negative[name], own) for name in self._lasting}
        if lasting:
            lasting["chain_started"] = torch.ones_like(memory["chain_started"])
        return Gradient(value, grads, memory=lasting)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        r"""The squared error :math:`\|v - E[v'|h]\|^2` of a reconstruction v' in one step, shape (B,)."""
        state = self.chain.start(self.energy, v, self.chain.start_noise(self.energy, v, generator))
        return sum_event((v - self.chain.reconstruct(self.energy, state)).square())
