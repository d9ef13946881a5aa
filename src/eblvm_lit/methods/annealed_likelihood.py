"""Fine-tuning of an energy that score matching has trained: maximum likelihood with annealed persistent chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind, grad, grad_and_value
from eblvm_lit.core.ranges import Seed, Temperature
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.shards import check_shared, row_axes
from eblvm_lit.energies.base import Energy, MarginalEnergy, refuse_bits
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.objectives.dsm import DSM
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.samplers.hmc import HMC, MoveNoise

__all__ = ["AnnealedLikelihood"]


class AnnealedLikelihood(Method):
    r"""Maximum likelihood on noised data, with Markov chains that start hot, cool to the temperature T = 1 and restart.

    .. math:: \mathrm{mean}\, F(v + \sigma \epsilon) - \mathrm{mean}\, F(x), \quad F(v) = E(v, \mathbb{E}_q[h|v])

    x are the chains at T = 1. Score matching learns the slopes of the energy, but it does not see the relative weights
    of modes that lie apart, nor modes far from the data. Chains that start hot reveal errors of both kinds. A short
    training with this method, which starts from the parameters of a trained model (``init_from``), corrects them. The
    method trains only the model. The posterior q stays fixed, so that F is known. If the energy has a tractable free
    energy, F is this free energy.

    Each iteration makes ``n_moves`` moves of Hamiltonian Monte Carlo with all chains. A chain's age a is the number of
    moves since it started, and the temperature of a move depends on the age before the move:

    .. math:: T_a = T_0^{1 - a / A} \text{ for } a < A, \quad 1 \text{ for } A \le a < A + C

    A is ``n_falling`` and C is ``n_held``. At a = A + C a chain restarts at 0.5 + N(0, I), even if this happens between
    two moves of an iteration. The first states of all chains are noised examples. The first ages of the chains are
    evenly spread, so that the numbers of chains at T = 1 in two iterations differ by at most one. Checkpoints contain
    the chains. Processes that share a minibatch divide the moves of the chains among them, and each process keeps a
    copy of all chains. Reference: Tieleman 2008 for persistent chains; Du et al. 2021, arXiv 2012.01316, for chains
    that restart.

    Args:
        energy: The model.
        posterior: The posterior q, whose parameters stay fixed; it is not used if F is tractable.
        objective: The objective whose noise is added to the data, and which is the validation loss.
        optimizer: The optimizer of theta.
        n_chains: The number of chains.
        n_moves: The number of moves of each chain in an iteration.
        n_leapfrog: The number of leapfrog steps in a move.
        step_size: The size of a leapfrog step at T = 1; at temperature T it is multiplied by the square root of T.
        temperature: The temperature T_0 at which a chain starts.
        n_falling: The number A of moves in which the temperature falls to 1.
        n_held: The number C of moves at T = 1.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the chains are too few for one to be at T = 1 in each iteration.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> method = AnnealedLikelihood(
        ...     energy=GRBM(v_dim=2, h_dim=3), objective=DSM(noise_std=0.1), optimizer=Adam(lr=1e-3), n_chains=20,
        ...     n_leapfrog=3, step_size=0.3, temperature=4, n_falling=6, n_held=4)
        >>> method.start(torch.zeros(20, 2), torch.Generator().manual_seed(0))
        >>> method.chain_age.tolist()[::5]
        [0.0, 2.0, 5.0, 7.0]
    """

    fixed = ("phi",)
    chain_v: Tensor
    chain_age: Tensor

    def __init__(
        self,
        *,
        energy: Energy,
        posterior: Posterior | None = None,
        objective: DSM,
        optimizer: Optimizer,
        n_chains: PositiveInt,
        n_moves: PositiveInt = 1,
        n_leapfrog: PositiveInt = 8,
        step_size: PositiveFloat,
        temperature: Temperature,
        n_falling: NonNegativeInt,
        n_held: PositiveInt,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        refuse_bits(energy, type(self).__name__)
        if n_chains * n_held < n_falling + n_held:
            raise ConfigError(
                f"n_chains must be at least {-(-(n_falling + n_held) // n_held)}, so that one chain is at T = 1 in "
                f"each iteration, not {n_chains}."
            )
        self.energy = energy
        self.posterior = posterior
        self.objective = objective
        self.optimizer = optimizer
        self.n_chains = n_chains
        self.n_moves = n_moves
        self.step_size = step_size
        self.hmc = HMC(n_leapfrog=n_leapfrog)
        self.temperature = temperature
        self.n_falling = n_falling
        self.n_held = n_held
        self._noise_axes: Any = None
        self.register_buffer("chain_v", torch.zeros(n_chains, *energy.event_shape))
        self.register_buffer("chain_age", torch.full((n_chains,), -1.0))  # -1 marks chains that have not started

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the number of chains and their temperature schedule."""
        return (
            f"AnnealedLikelihood: maximum likelihood by {self.n_chains:,} chains, {self.n_falling} moves from "
            f"T = {self.temperature:g} to 1 and {self.n_held} there"
        )

    def networks(self) -> dict[str, nn.Module]:
        """Return the model, and the fixed posterior if there is one."""
        networks: dict[str, nn.Module] = {"theta": self.energy}
        return networks if self.posterior is None else {**networks, "phi": self.posterior}

    def param_groups(self) -> dict[str, ParamGroup]:
        """Return the only group, which contains all parameters of the model."""
        return {"model": ParamGroup("theta", self.optimizer)}

    @property
    def parts(self) -> MethodParts:
        """Return the energy, the posterior and the objective."""
        return MethodParts(energy=self.energy, posterior=self.posterior, objective=self.objective)

    def unshared_buffers(self) -> set[str]:
        """Return the names of the buffers that only training needs: the chains and their ages."""
        return set(self.persistent_buffers())

    def persistent_buffers(self) -> dict[str, Tensor]:
        """Return the chains' states and ages; the age of a chain is the number of moves since it started."""
        return {"chain_v": self.chain_v, "chain_age": self.chain_age}

    def free_energy(self, state: TrainState) -> Callable[[Tensor], Tensor]:
        """Return the free energy F, with the parameters in ``state``, as a function that maps v (B, *event) to (B,)."""
        energy = bind(self.energy, state.theta)
        if isinstance(energy, MarginalEnergy):
            return energy.free_energy
        q = bind(cast(Posterior, self.posterior), state.phi)
        return lambda v: energy.energy(v, q.mean(v))

    def on_fit_start(self) -> None:
        """Start the chains, unless they were loaded from a checkpoint."""
        super().on_fit_start()
        if (self.chain_age < 0).any():
            generator = keyed_generator(self.seed, "chains", device=self.device)
            train = self._data.splits.train
            rows = torch.randint(len(train), (self.n_chains,), generator=generator, device=self.device)
            self.start(self._data.as_float(train[rows.to(train.device)]).to(self.chain_v), generator)

    def start(self, v: Tensor, generator: torch.Generator) -> None:
        """Start the chains at the noised examples v (n_chains, *event), with evenly spread ages."""
        age = torch.arange(len(v), device=v.device) * (self.n_falling + self.n_held) // len(v)
        self.chain_v.copy_(self.objective.perturb(v, self.objective.noise(v, (), generator)))
        self.chain_age.copy_(age)

    def _move_noise(self, like: Tensor, n_moves: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the chains' random numbers: points at which chains restart, momenta, and uniform numbers for acceptance.

        For n chains, the points and momenta have shape (n_moves, n, D), and the uniform numbers have shape
        (n_moves, n).
        """
        flat = like.flatten(1)
        return {
            "start": 0.5 + flat.new_empty(n_moves, *flat.shape).normal_(generator=generator),
            "momentum": flat.new_empty(n_moves, *flat.shape).normal_(generator=generator),
            "uniform": flat.new_empty(n_moves, len(flat)).uniform_(generator=generator),
        }

    def moved(
        self, F: Callable[[Tensor], Tensor], x: Tensor, age: Tensor, noise: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the chains' states (B, *event) and ages after all moves, and the last move's mean acceptance rate.

        Each tensor in ``noise`` has one entry for each move. A chain whose age is A + C restarts before its next move.
        """
        flat = x.flatten(1)
        acceptance = age.new_zeros(())
        for start, *drawn in zip(noise["start"], noise["momentum"], noise["uniform"], strict=True):
            again = age >= self.n_falling + self.n_held
            age = torch.where(again, 0, age)
            flat = torch.where(again.unsqueeze(1), start, flat)
            T = self.temperature ** ((self.n_falling - age) / max(self.n_falling, 1)).clamp(min=0, max=1)
            size = self.step_size * T.sqrt().unsqueeze(1)
            move = self.hmc.move(lambda y, T=T: F(y.view_as(x)) / T, flat, MoveNoise(*drawn), size)
            flat = move.x
            age = age + 1
            acceptance = move.acceptance.mean()
        return flat.view_as(x).detach(), age, acceptance

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the noise that perturbs the data, and the random numbers of the chains."""
        chains = v.new_empty(self.n_chains, *v.shape[1:])
        # Find the axis of the chains in each noise tensor before the iteration is compiled, because compiled code
        # cannot draw noise.
        if self._noise_axes is None:
            self._noise_axes = row_axes(
                lambda n: self._move_noise(v.new_empty(n, *v.shape[1:]), 2, torch.Generator(v.device))
            )
        return {
            "data": self.objective.noise(v, (), generator),
            "chains": self._move_noise(chains, self.n_moves, generator),
        }

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Move the chains, then update the model with the likelihood gradient, estimated from the chains at T = 1."""
        chains = state.minibatch.of(self.n_chains, v.device)
        own = chains.rows_of(state.buffers)
        drawn = chains.rows_of(noise["chains"], self._noise_axes)
        x, age, acceptance = self.moved(self.free_energy(state), own["chain_v"], own["chain_age"], drawn)
        held = (age > self.n_falling).to(v.dtype)
        at_one, acceptance = chains.mean(torch.stack([held.mean(), acceptance]))
        weights = chains.relative_weight * held / at_one
        points = self.objective.perturb(v, noise["data"])

        def loss(theta: Params) -> Tensor:
            F = self.free_energy(state.at(theta=theta))
            return F(points).mean() - (weights * F(x)).mean()

        with torch.autocast(v.device.type, enabled=False):  # bfloat16 is too coarse for a small difference of means
            grads, value = grad_and_value(loss)(state.theta)
        kept = {"chain_v": chains.gather(x), "chain_age": chains.gather(age)}
        return self.update(state, "model", value, grads, {"acceptance": acceptance}, kept)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the denoising score matching loss of each example, shape (B,), with the score of the free energy.

        The likelihood is not used for validation, because it would need log Z.
        """
        noise = self.objective.noise(v, (), generator)
        F = self.free_energy(self.live_state())
        return self.objective.loss(lambda x: -grad(lambda y: F(y).sum())(x), self.objective.perturb(v, noise), noise)

    def check_processes(self, size: int) -> None:
        """Raise a ConfigError if there are too few chains to divide among ``size`` processes."""
        check_shared(self.n_chains, size, "chains (method.n_chains)")
