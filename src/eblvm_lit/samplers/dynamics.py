"""The base class of dynamics, the chains that dynamics move, and the denoising step at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm_lit.core.noise_levels import NoiseRange
from eblvm_lit.energies.base import Energy, GibbsEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.chain_trace import ChainTrace
from eblvm_lit.samplers.energy_grad import energy_grad, unrounded
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["Chains", "Dynamics", "FlatChains"]

LARGEST = 1e6  # a variable with a larger absolute value means that its chain has diverged


class Chains(NamedTuple):
    """A batch of B chains that run together.

    Attributes:
        energy: A function that maps the variables, followed by the given tensors, to the energy of each chain. It also
            accepts another number R of chains, and then returns shape (R,).
        start: The initial variables, each of shape (B, *its shape).
        given: Tensors that stay fixed, such as given latents, each of shape (B, *its shape).
        moving: For each variable a factor on drift and noise, for example 0 where a pixel is kept; None for 1.
        denoised: For each variable whether the denoising step changes it; None if it changes all of them. Latents
            contain no data noise and need no denoising.
        conditional: The energy, if v and h can be sampled in blocks, else None.
        noise_range: The noise levels of a model of all levels, else None. The energy is then a function of v and of
            log t of each chain, shape (B,); without log t it is the energy at the smallest level.
        is_score: Whether the gradient of the energy at a level is the score of noised data, which has a known size.
    """

    energy: Callable[..., Tensor]
    start: tuple[Tensor, ...]
    given: tuple[Tensor, ...] = ()
    moving: tuple[Tensor | float, ...] | None = None
    denoised: tuple[bool, ...] | None = None
    conditional: GibbsEnergy | None = None
    noise_range: NoiseRange | None = None
    is_score: bool = False

    def energies(self, *x: Tensor) -> Tensor:
        """Compute the energy of each chain at the variables x, shape (B,)."""
        return self.energy(*x, *self.given)

    def total(self, *x: Tensor) -> Tensor:
        """Compute the sum of the energies of all chains, a scalar."""
        return self.energies(*x).sum()

    def kept(self, v: Tensor) -> Tensor:
        """Return new values v of the first variable, in which the kept pixels are reset to their initial values."""
        return self.kept_at(v, 0.0)

    def kept_at(self, v: Tensor, noise: Tensor | float) -> Tensor:
        """Return new values v of the first variable, in which kept pixels are their initial values plus noise."""
        return v if self.moving is None else torch.where(torch.as_tensor(self.moving[0] == 0), self.start[0] + noise, v)


class FlatChains:
    """Chains whose variables are flattened into the rows of a matrix, for Hamiltonian Monte Carlo.

    Args:
        chains: The B chains.
        copies: The number C of copies; the first B rows are the first copy, the next B rows the second, and so on.

    Attributes:
        x: The start of the chains, shape (C B, D), where D is the number of entries of all variables together.
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
        """Split the rows of x (R, D) into the chains' variables, with kept pixels reset to their initial values."""
        x = x if self._fixed is None else torch.where(self._fixed[: len(x)], self._start[: len(x)], x)
        pieces = x.split([shape.numel() for shape in self._shapes], 1)
        return tuple(piece.unflatten(1, shape) for piece, shape in zip(pieces, self._shapes, strict=True))

    def energies(self, x: Tensor) -> Tensor:
        """Compute the energies of C copies of the B chains, shape (C B,), from the rows of x (C B, D)."""
        return self._chains.energy(*self.parts(x), *self._given)


class Dynamics(ABC):
    r"""The base class of sampling dynamics, which run chains step by step and end with an optional denoising step.

    .. math:: x \leftarrow x - \sigma_0^2 \nabla_x E(x) \text{ at the end}

    Attributes:
        n_steps: The number of steps, not counting the denoising step.
        denoise_std: The noise level sigma_0 of the denoising step; 0 for no denoising. Reference: Saremi and Hyvarinen
            2019.
        kinds: The kinds of chains that the dynamics can move, see :class:`~eblvm_lit.samplers.sampler.Sampler`, in the
            order of preference.
        moves_bits: Whether the dynamics can sample binary v; those that follow gradients cannot.
    """

    n_steps: int
    denoise_std: float
    kinds: tuple[str, ...] = ("marginal", "posterior", "joint", "mean")
    moves_bits: bool = False

    @property
    def stationary(self) -> range:
        """The steps at which converged chains sample the model; by default the second half of all steps."""
        return range(self.n_steps // 2, self.n_steps)

    @property
    def settings(self) -> list[Any]:
        """The settings that determine the samples; their hash identifies cached samples."""
        return [type(self).__qualname__, *(x for pair in sorted(vars(self).items()) for x in pair)]

    @property
    def title(self) -> str:
        """A short description of the samples, for figures and messages."""
        return f"{type(self).__name__}, {self.n_steps} steps"

    def check(self, energy: Energy) -> None:  # noqa: B027 - most dynamics fit every model
        """Check that the settings of the dynamics fit the model; by default they fit each model.

        Raises:
            ConfigError: If they do not.
        """

    def start(self, shape: tuple[int, ...], noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw the entries of the initial v from the normal distribution N(0.5, 1), shape (B, *shape)."""
        return 0.5 + noise(shape, dtype=dtype)

    def start_latents(self, h_dim: int, noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw the initial latents of joint chains, shape (B, H), from the same distribution as the initial v."""
        return self.start((h_dim,), noise, dtype=dtype)

    @abstractmethod
    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield the chains' variables after each of the :attr:`n_steps` steps.

        Args:
            chains: The B chains.
            noise: The noise of the B samples.
        """

    def trajectory(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield the chains' variables after each step, and after the denoising step if there is one.

        Args:
            chains: The B chains.
            noise: The noise of the B samples.
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
        """Run the chains and return the variables at the end of the trajectory.

        Args:
            chains: The B chains.
            noise: The noise of the B samples.
            on_step: A function that is called with B after each of the :attr:`n_steps` steps.
            trace: The trace that records the chains' energies at some of the :attr:`stationary` steps, or None.

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
        if not all(bool((x.abs() < LARGEST).all()) for x in end):  # the comparison is also False for NaN
            raise ConfigError(
                f"{type(self).__name__} diverges: use a smaller step_size, or a model that is trained longer."
            )
        return end
