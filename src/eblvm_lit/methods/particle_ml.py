"""Maximum likelihood with particles: chains of (v, h) for the model, and one chain of h for each training example."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.minibatch import Minibatch
from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.contrastive_divergence import ContrastiveDivergence
from eblvm_lit.methods.state import TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.samplers.chains.base import NegativePhase, State

__all__ = ["ParticleML"]


class ParticleML(ContrastiveDivergence):
    r"""Maximum likelihood with particles (v_i, h_i) of the model, and with one particle h_n for each training example.

    .. math:: \mathrm{mean}_n\, E(v_n, h_n) - \mathrm{mean}_i\, E(v_i, h_i), \quad
        h_n \sim p(h | v_n), \; (v_i, h_i) \sim p(v, h)

    The particles count as constants in the gradient, which tends to the gradient of -log p(v) if the particles keep up
    with theta. Each iteration moves the particles of its minibatch and the particles of the model by a few steps. All
    particles are kept from one iteration to the next, and in checkpoints. The h_n take the memory of n_train x m
    numbers, where m is the number of latents. With ``chain=gibbs`` h_n is drawn again from p(h|v_n), and nothing is
    kept for the examples; for a DBM, h_n is the mean of the mean-field posterior. Neither a posterior network nor the
    free energy is needed. If several processes share a minibatch, each keeps a copy of all particles. Reference: Tang
    et al. 2025, arXiv 2510.15447, with Langevin steps for both kinds of particles.

    Args:
        energy: The model, with the energy E(v, h).
        chain: The Markov chain that moves the particles: Langevin steps, or block Gibbs sweeps for a model with
            tractable conditionals.
        optimizer: The optimizer of theta.
        n_chains: The number of the model's particles.
        validation: The validation loss, as in
            :class:`~eblvm_lit.methods.contrastive_divergence.ContrastiveDivergence`.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the chain cannot sample the energy, or if there is no particle.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.samplers.chains.langevin_chain import LangevinChain
        >>> method = ParticleML(energy=GaussianLatentModel(v_dim=2, h_dim=3), n_chains=10, optimizer=Adam(lr=1e-3),
        ...                     chain=LangevinChain(n_steps=5, step_size=0.01))
        >>> method.keep_examples(50)
        >>> {name: tuple(value.shape) for name, value in method.persistent_buffers().items()}
        {'chain_started': (), 'chain_v': (10, 2), 'chain_h': (10, 3), 'latents': (50, 3)}
    """

    latents: Tensor

    def __init__(
        self,
        *,
        energy: Energy,
        chain: NegativePhase,
        optimizer: Optimizer,
        n_chains: PositiveInt,
        validation: Literal["mean", "draw"] = "mean",
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy,
            chain=chain.jointly(),
            optimizer=optimizer,
            n_chains=n_chains,
            validation=validation,
            seed=seed,
            compile=compile,
        )
        if chain.keeps_latents:
            self.per_example = ("latents",)
            self.register_buffer("latents", torch.zeros(0, energy.h_dim))

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the number of particles and the number k of chain steps."""
        of_data = "one for each example" if self.per_example else "p(h|v) for each example"
        return (
            f"ParticleML: maximum likelihood by {self.n_chains:,} particles of the model and {of_data}, "
            f"k = {self.chain.n_steps}"
        )

    def keep_examples(self, n: int) -> None:
        """Draw the initial particles h_n from N(0, I) for n training examples, unless n particles already exist."""
        if not self.per_example or len(self.latents) == n:
            return
        drawn = torch.randn(n, self.energy.h_dim, generator=keyed_generator(self.seed, "latents"))
        self.register_buffer("latents", drawn.to(self.latents))

    def persistent_buffers(self) -> dict[str, Tensor]:
        """Return the particles that sample the model, and the particles h_n of the training examples."""
        return {**super().persistent_buffers(), **{name: self.get_buffer(name) for name in self.per_example}}

    @staticmethod
    def energy_of(energy: Energy, state: State) -> Tensor:
        """Compute the joint energy E(v, h), shape (B,)."""
        return energy.energy(state["v"], state["h"])

    def positive_phase(self, energy: Energy, state: TrainState, v: Tensor, noise: Any) -> State:
        """Return the minibatch and the particles h_n of its examples after this iteration's chain steps."""
        if not self.per_example:
            return super().positive_phase(energy, state, v, noise)
        rows = state.minibatch.rows
        indices = self._indices(state, v)
        h = state.buffers["latents"][indices if rows is None else indices[rows]]
        return {"v": v, "h": self.chain.latents(energy, v, h, noise)}

    def kept(self, state: TrainState, chains: Minibatch, positive: State, negative: State) -> dict[str, Tensor]:
        """Return all particles after the positive and negative phases of an iteration."""
        kept = super().kept(state, chains, positive, negative)
        if self.per_example:
            indices = self._indices(state, positive["v"])
            h = state.minibatch.gather(positive["h"]).detach()
            latents = state.buffers["latents"]
            copy = latents.index_copy_ if state.in_place else latents.index_copy
            kept["latents"] = copy(0, indices, h)
        return kept

    @staticmethod
    def _indices(state: TrainState, v: Tensor) -> Tensor:
        """Return the indices of the minibatch's examples in the training split, for the examples of all processes."""
        return torch.arange(state.minibatch.size(v), device=v.device) if state.indices is None else state.indices
