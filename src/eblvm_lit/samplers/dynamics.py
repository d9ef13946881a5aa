"""What moves chains: the contract of dynamics, the chains that they move, and a denoising step at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm_lit.energies.base import ConditionalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.chain_trace import ChainTrace
from eblvm_lit.samplers.energy_grad import energy_grad, unrounded
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["Chains", "Dynamics", "FlatChains"]

LARGEST = 1e6  # larger values mean that the chains diverge


class Chains(NamedTuple):
    """Chains that run together.

    Attributes:
        energy: The energy of each chain, shape (R,), of the variables and of what is given, R rows of each.
        start: The variables, each of shape (B, *its shape).
        given: What stays fixed, such as latents, each of shape (B, *its shape).
        moving: Factors of drift and noise of each variable, for example 0 where a pixel is kept; None: all move.
        denoised: Whether the last step moves each variable; None: all of them. Latents carry no data noise.
        conditional: The model, where p(h|v) and p(v|h) can be drawn from.
    """

    energy: Callable[..., Tensor]
    start: tuple[Tensor, ...]
    given: tuple[Tensor, ...] = ()
    moving: tuple[Tensor | float, ...] | None = None
    denoised: tuple[bool, ...] | None = None
    conditional: ConditionalEnergy | None = None

    def energies(self, *x: Tensor) -> Tensor:
        """The energy of each chain, shape (B,)."""
        return self.energy(*x, *self.given)

    def total(self, *x: Tensor) -> Tensor:
        """The total energy of all chains."""
        return self.energies(*x).sum()

    def kept(self, v: Tensor) -> Tensor:
        """New values of the first variable, of which kept pixels have those that they started with."""
        return v if self.moving is None else torch.where(torch.as_tensor(self.moving[0] == 0), self.start[0], v)


class FlatChains:
    """Chains as rows of one matrix, perhaps in several copies: what Hamiltonian moves take.

    Args:
        chains: B chains.
        copies: C; the rows are those of the first copy, then those of the second, ...

    Attributes:
        x: Where the chains start, shape (C B, D), D numbers of all variables.
    """

    def __init__(self, chains: Chains, copies: int = 1) -> None:
        start = chains.start
        moving = chains.moving or (1.0,) * len(chains.start)
        self._chains = chains
        self._shapes = [part.shape[1:] for part in start]
        self._given = tuple(part.repeat(copies, *[1] * (part.dim() - 1)) for part in chains.given)
        self.x = self._rows(start).repeat(copies, 1)
        zeros = [torch.as_tensor(m == 0, device=x.device).expand_as(x) for m, x in zip(moving, start, strict=True)]
        self._fixed = None if chains.moving is None else self._rows(tuple(zeros)).repeat(copies, 1)
        self._start = self.x

    @staticmethod
    def _rows(parts: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([part.flatten(1) for part in parts], 1)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The variables of rows x (R, D); kept pixels have their values, whatever x says of them."""
        x = x if self._fixed is None else torch.where(self._fixed[: len(x)], self._start[: len(x)], x)
        pieces = x.split([shape.numel() for shape in self._shapes], 1)
        return tuple(piece.unflatten(1, shape) for piece, shape in zip(pieces, self._shapes, strict=True))

    def energies(self, x: Tensor) -> Tensor:
        """The energy of each row of x (C B, D), shape (C B,)."""
        return self._chains.energy(*self.parts(x), *self._given)


class Dynamics(ABC):
    r"""Moves chains in some steps, and then removes the data noise of models that are trained with it.

    .. math:: x \leftarrow x - \sigma_0^2 \nabla_x E(x) \text{ at the end}

    Attributes:
        n_steps: Number of steps, without the last one.
        denoise_std: sigma_0; 0 for no such step. Reference: Saremi and Hyvarinen 2019.
        kinds: What they can sample, see :class:`~eblvm_lit.samplers.sampler.Sampler`, in the order of preference.
    """

    n_steps: int
    denoise_std: float
    kinds: tuple[str, ...] = ("marginal", "posterior", "joint", "mean")

    @property
    def stationary(self) -> range:
        """The steps at which chains that have converged have the model's distribution: by default the second half."""
        return range(self.n_steps // 2, self.n_steps)

    @property
    def settings(self) -> list[Any]:
        """What samples depend on."""
        return [type(self).__qualname__, *(x for pair in sorted(vars(self).items()) for x in pair)]

    @property
    def title(self) -> str:
        """The samples in words, for figures and messages."""
        return f"{type(self).__name__}, {self.n_steps} steps"

    def start(self, shape: tuple[int, ...], noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Where v begins: 0.5 + N(0, I), shape (B, *shape)."""
        return 0.5 + noise(shape, dtype=dtype)

    def start_latents(self, h_dim: int, noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Where latents begin that move together with v: as v does, shape (B, H)."""
        return self.start((h_dim,), noise, dtype=dtype)

    @abstractmethod
    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """The variables after each of the :attr:`n_steps` steps.

        Args:
            chains: B chains.
            noise: Of B samples.
        """

    def trajectory(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """The variables after each step, and after the denoising step, if there is one.

        Args:
            chains: B chains.
            noise: Of B samples.
        """
        x = chains.start
        for x in self.steps(chains, noise):
            yield x
        if self.denoise_std > 0:
            yes = chains.denoised or (True,) * len(x)
            moves = zip(x, energy_grad(chains.total, x), chains.moving or (1.0,) * len(x), yes, strict=True)
            yield tuple((part - m * self.denoise_std**2 * g).detach() if d else part for part, g, m, d in moves)

    def end(
        self,
        chains: Chains,
        noise: SampleNoise,
        *,
        on_step: Callable[[int], None] | None = None,
        trace: ChainTrace | None = None,
    ) -> tuple[Tensor, ...]:
        """The variables at the end of the trajectory.

        Args:
            chains: B chains.
            noise: Of B samples.
            on_step: Called with B after each of the :attr:`n_steps` steps.
            trace: Is given the energies of the chains at some of the :attr:`stationary` steps.

        Raises:
            ConfigError: If the chains diverge.
        """
        end = chains.start
        traced = ChainTrace.steps_of(self.stationary)
        for step, x in enumerate(self.trajectory(chains, noise)):
            end = x
            if trace is not None and step in traced:
                trace.add(unrounded(chains.energies, *x))
            if on_step is not None and step < self.n_steps:
                on_step(len(noise))
        if not all(bool((x.abs() < LARGEST).all()) for x in end):  # also false for NaN
            raise ConfigError(
                f"{type(self).__name__} diverges: use a smaller step_size, or a model that is trained longer."
            )
        return end
