"""The probability flow, a differential equation that turns noise into samples through all noise levels."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple, cast

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.noise_levels import NoiseRange, join_level
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.energies.composed import of_every_level
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.dynamics import Chains, Dynamics, FlatChains
from eblvm_lit.samplers.energy_grad import energy_grad
from eblvm_lit.samplers.hmc import HMC, MoveNoise
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["ProbabilityFlow"]


class ProbabilityFlow(Dynamics):
    r"""The probability flow of a noise-conditional energy, from noise to samples, with optional Langevin corrections.

    .. math:: \frac{dv}{d\sigma} = \sigma\, \nabla_v F(v, \sigma^2)

    carries :math:`N(m, (s^2 + t_{max}) I)` at :math:`\sigma = \sqrt{t_{max}}` to the model's density at
    :math:`\sqrt{t_{min}}`. Here :math:`\sigma^2` is the variance t of the noise, and m and s are the mean and the
    standard deviation of the data. The levels are :math:`\sigma_i = (\sigma_{max}^{1/\rho} + \tfrac{i}{n}
    (\sigma_{min}^{1/\rho} - \sigma_{max}^{1/\rho}))^\rho` for i = 0, ..., n, with :math:`\rho = 7`. Reference: Song et
    al. 2021, arXiv 2011.13456; Karras et al. 2022, arXiv 2206.00364.

    The differential equation is solved by one of two methods, whose errors at the end are proportional to 1 / n^2, with
    different factors. *Heun's method* evaluates the gradient twice in each step. The *multistep method* evaluates it
    once and also uses the denoised value of the step before (see :func:`multistep`), so that the same number of steps
    takes half the time.

    A flow does not correct its errors, which add up. With ``n_corrections`` each level but the first is followed by
    moves of Metropolis-adjusted Langevin dynamics under F of that level, which leave the model's density at that level
    invariant (Du et al. 2023, arXiv 2302.11552). Such moves need an energy, because a score does not suffice to accept
    or reject a move.

    A *guide* is the energy of a weaker model of the same data, with fewer parameters or less training. Such a model
    tends to make the same errors as the model, only larger ones. With a guide and a guidance g the flow and the
    corrections follow the guided energy

    .. math:: F(v, t) + g\, (F(v, t) - F_{guide}(v, t))

    in place of F, which moves samples further away from the errors of the guide. Neither the samples nor the
    corrections then have the model's density. Reference: Karras et al. 2024, arXiv 2406.02507, there with w = 1 + g.

    For completions, some pixels are given. At the standard deviation :math:`\sigma` each given pixel is its known value
    plus :math:`\sigma` times a noise that is drawn once, so that it is as noisy as the missing pixels. At the end it is
    exactly its known value. Corrections leave the distribution of the missing
    pixels given these noised pixels invariant. The completions only approximate the distribution given v itself,
    because at large levels the noise hides the kept pixels (Song et al. 2021, section 5).

    Args:
        n_steps: The number n of steps.
        n_corrections: The number of Metropolis-adjusted Langevin moves after each step, with one evaluation
            of each model.
        correction_size: The step size of these moves in units of :math:`\sigma s / \sqrt{s^2 + \sigma^2}`, the
            standard deviation of the clean value given the noised one for normal data.
        guide: The energy F(v, t) of a weaker model that takes the noise level as an input, or its energy at one level;
            None for no guide.
        guidance: The guidance g. With 0 the samples are those without a guide.
        solver: The method that solves the differential equation, ``heun`` or ``multistep``. Corrections need ``heun``,
            because they move v to where the denoised value of the step before is no longer of use.

    Raises:
        ConfigError: If the guide does not take the noise level as an input, or if the multistep method is to be
            corrected.

    Example:
        >>> from eblvm_lit.core.noise_levels import NoiseRange
        >>> from eblvm_lit.energies.mlp_energy import MLPEnergy
        >>> from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
        >>> from eblvm_lit.samplers.sampler import Sampler
        >>> inner = MLPEnergy(v_dim=3, widths=[8])
        >>> model = NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange())
        >>> Sampler(dynamics=ProbabilityFlow(n_steps=5)).draw(model.of_data(), range(4), seed=0).shape
        torch.Size([4, 2])
    """

    kinds = ("levels",)
    denoise_std = 0.0
    RHO = 7.0

    def __init__(
        self,
        *,
        n_steps: PositiveInt = 25,
        n_corrections: NonNegativeInt = 0,
        correction_size: PositiveFloat = 0.3,
        guide: MarginalEnergy | None = None,
        guidance: NonNegativeFloat = 1.0,
        solver: Literal["heun", "multistep"] = "heun",
    ) -> None:
        if solver == "multistep" and n_corrections > 0:
            raise ConfigError("solver=multistep has no corrections: use solver=heun, or n_corrections=0.")
        self.n_steps = n_steps
        self.n_corrections = n_corrections
        self.correction_size = correction_size
        self.guide = None if guide is None else of_every_level(guide)
        self.guidance = guidance
        self.solver = solver

    @property
    def title(self) -> str:
        """A short description of the samples, for figures and messages."""
        return f"probability flow, {self.n_steps} steps" + ("" if self.guide is None else ", guided")

    @property
    def stationary(self) -> range:
        """The steps at which converged chains have the model's distribution: only the last one."""
        return range(self.n_steps - 1, self.n_steps)

    def check(self, energy: Energy) -> None:
        """Check that the guide, if there is one, is a model of data of the same shape; see :meth:`Dynamics.check`."""
        if self.guide is not None and self.guide.v_shape != tuple(energy.event_shape):
            raise ConfigError(
                f"The guide is a model of data of the shape {self.guide.v_shape}, and not {tuple(energy.event_shape)}: "
                "name a weaker model of the same data by sampler.dynamics.guide.path, or use sampler=probability_flow, "
                "which has no guide."
            )

    def levels(self, noise_range: NoiseRange) -> list[float]:
        """Return the n + 1 standard deviations of the noise, from the largest to the smallest."""
        first = math.sqrt(noise_range.t_max) ** (1 / self.RHO)
        last = math.sqrt(noise_range.t_min) ** (1 / self.RHO)
        return [(first + i / self.n_steps * (last - first)) ** self.RHO for i in range(self.n_steps + 1)]

    def start(self, shape: tuple[int, ...], noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw standard normal numbers, shape (B, *shape), which :meth:`steps` scales to the largest noise level."""
        return noise(shape, dtype=dtype)

    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield the chains' variables after each step of the solver and its corrections; see :meth:`Dynamics.steps`.

        Raises:
            ConfigError: If the model has only one noise level.
        """
        noise_range = chains.noise_range
        if noise_range is None:
            raise ConfigError("The probability flow needs a model of every noise level: train it with objective=dual.")
        levels = self.levels(noise_range)
        (z,) = chains.start
        guide = self.chains_of_guide(chains)
        guided = self.guided(chains, guide)
        eps = None if chains.moving is None else noise(tuple(z.shape[1:]), dtype=z.dtype)

        def with_kept(v: Tensor, sigma: float) -> Tensor:
            return v if eps is None else chains.kept_at(v, sigma * eps)

        v = mean_of(noise_range, z) + math.hypot(noise_range.std, levels[0]) * z
        v = with_kept(v, levels[0])
        numbers = noise.steps(self.n_steps * self.n_corrections, z[0].numel(), 1, dtype=z.dtype)
        before = None
        for sigma, following in pairwise(levels):
            slope = self.slope(chains, guide, v, sigma)
            if self.solver == "multistep":
                here = Denoised(v - sigma**2 * slope, sigma)
                moved = multistep(v, following, here, before)
                before = here
            else:
                width = following - sigma
                first = sigma * slope
                second = following * self.slope(chains, guide, with_kept(v + width * first, following), following)
                moved = v + 0.5 * width * (first + second)
            v = self.corrected(guided, with_kept(moved, following), following, numbers)
            yield (chains.kept(v),)

    def chains_of_guide(self, chains: Chains) -> Chains | None:
        """Return a copy of the chains whose energy is that of the guide, or None without a guide."""
        if self.guide is None:
            return None
        guide = copy.deepcopy(self.guide).to(chains.start[0])  # a copy, because the guide belongs to the user
        return chains._replace(energy=lambda v, log_level: guide.free_energy(join_level(v, log_level)))

    def guided(self, chains: Chains, guide: Chains | None) -> Chains:
        """Return a copy of the chains that move under F + g (F - F_guide); the arguments are as in :meth:`slope`."""
        if guide is None:
            return chains

        def energy(v: Tensor, log_level: Tensor) -> Tensor:
            return (1 + self.guidance) * chains.energy(v, log_level) - self.guidance * guide.energy(v, log_level)

        return chains._replace(energy=energy)

    def slope(self, chains: Chains, guide: Chains | None, v: Tensor, sigma: float) -> Tensor:
        """Compute the gradient of F + g (F - F_guide) at the noise level sigma^2, shape (B, *event).

        Args:
            chains: The chains.
            guide: The chains with the energy of the guide, or None without a guide.
            v: The noised data, shape (B, *event).
            sigma: The standard deviation of the noise.
        """
        own = slope_at(chains, v, sigma)
        return own if guide is None else (1 + self.guidance) * own - self.guidance * slope_at(guide, v, sigma)

    def corrected(self, chains: Chains, v: Tensor, sigma: float, numbers: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
        """Correct v (B, *event) by Metropolis-adjusted Langevin moves under the energy at the noise level sigma^2."""
        if self.n_corrections == 0:
            return v
        flat = FlatChains(at_one_level(chains, sigma)._replace(start=(v,)))
        std = cast(NoiseRange, chains.noise_range).std
        size = self.correction_size * sigma * std / math.hypot(std, sigma)
        hmc = HMC(n_leapfrog=1)
        x = flat.x
        here = None
        for _ in range(self.n_corrections):
            xi, uniform = next(numbers)
            move = hmc.move(flat.energies, x, MoveNoise(xi, uniform[:, 0]), size, here)
            x = move.x
            here = (move.energy, move.slope)
        return flat.parts(x)[0]


class Denoised(NamedTuple):
    r"""The model's estimate of the data without their noise, :math:`D = \tilde v - \sigma^2 \nabla F`.

    It is :math:`E[v | \tilde v]` if F is exact.

    Attributes:
        value: The estimate D, shape (B, *event).
        sigma: The standard deviation of the noise in v~.
    """

    value: Tensor
    sigma: float


def multistep(v: Tensor, following: float, here: Denoised, before: Denoised | None) -> Tensor:
    r"""Solve the probability flow from one noise level to the next smaller one with one evaluation of the gradient.

    In :math:`\lambda = -\log\sigma` the flow is :math:`dv / d\lambda = D - v`, where D is the denoised value. If D is
    linear in :math:`\lambda` with the slope that it had in the step before, a step of the width h leads to

    .. math:: v_{i+1} = \frac{\sigma_{i+1}}{\sigma_i} v_i + \Big(1 - \frac{\sigma_{i+1}}{\sigma_i}\Big)
       \Big(D_i + \frac{h_i}{2 h_{i-1}} (D_i - D_{i-1})\Big), \qquad h_i = \log \frac{\sigma_i}{\sigma_{i+1}}

    up to an error of third order in h. The first step has no step before it and takes D_i in place of the second
    bracket; its error is of second order. Over n steps the errors add up to one of second order. Reference: Lu et al.
    2022, arXiv 2211.01095, Algorithm 2 for noise that is added without shrinking the data.

    Args:
        v: The noised data at the start of the step, shape (B, *event).
        following: The standard deviation of the noise at the end of the step.
        here: The estimate D at the start of the step, and the noise level there.
        before: The same at the start of the step before, or None in the first step.

    Example:
        >>> first = Denoised(torch.tensor([1.0]), 4.0)
        >>> multistep(torch.tensor([3.0]), 2.0, first, None)  # 3 / 2 + 1 / 2
        tensor([2.])
        >>> second = Denoised(torch.tensor([1.2]), 2.0)
        >>> multistep(torch.tensor([2.0]), 1.0, second, first)  # 2 / 2 + (1.2 + 0.2 / 2) / 2
        tensor([1.6500])
    """
    denoised = here.value
    if before is not None:
        ratio = math.log(here.sigma / following) / math.log(before.sigma / here.sigma)
        denoised = denoised + 0.5 * ratio * (denoised - before.value)
    share = following / here.sigma
    return share * v + (1 - share) * denoised


def at_one_level(chains: Chains, sigma: float) -> Chains:
    """Return a copy of the chains whose energy is a function of v at the fixed noise level sigma^2.

    Example:
        >>> chains = Chains(lambda v, log_level: log_level * v.sum(1), (torch.ones(1, 2),))
        >>> at_one_level(chains, math.e).energies(torch.ones(1, 2))
        tensor([4.])
    """

    def energy(v: Tensor) -> Tensor:
        return chains.energy(v, v.new_full((len(v),), 2 * math.log(sigma)))

    return chains._replace(energy=energy)


def slope_at(chains: Chains, v: Tensor, sigma: float) -> Tensor:
    r"""Compute the gradient of the chains' energy with respect to v at the noise level sigma^2, shape (B, *event).

    If the gradient is the score of noised data, :math:`\sigma \nabla F = E[\epsilon | \tilde v]`, its norm is at most
    about :math:`\sqrt d + 5`, because the norm of standard normal noise exceeds this value with a probability below
    1e-6. If it is longer for a sample, which is an error of the network, the gradient is replaced by that for normal
    data of the same mean m and standard deviation s, :math:`(\tilde v - m) / (s^2 + \sigma^2)`. Without this, about one
    sample in several thousand of a model of MNIST diverged. With a guide, each of the two gradients is checked before
    they are combined.

    Example:
        >>> chains = Chains(lambda v, log_level: 0.5 * v.square().sum(1) / log_level.exp(), (torch.ones(1, 2),))
        >>> slope_at(chains, torch.ones(1, 2), 2.0)
        tensor([[0.2500, 0.2500]])
        >>> scores = chains._replace(is_score=True, noise_range=NoiseRange(mean=0.0, std=1.0))
        >>> slope_at(scores, torch.tensor([[40.0, 0.0]]), 2.0)  # 40 / 2 is longer than sqrt(2) + 5; 40 / (1 + 4) = 8
        tensor([[8., 0.]])
    """
    slope = energy_grad(at_one_level(chains, sigma).total, (v,))[0].detach()
    if not chains.is_score or chains.noise_range is None:
        return slope
    norm = sigma * slope.flatten(1).norm(dim=1)
    too_long = norm > math.sqrt(slope[0].numel()) + 5
    of_normal = (v - mean_of(chains.noise_range, v)) / (chains.noise_range.std**2 + sigma**2)
    return torch.where(too_long.view(-1, *(1,) * (v.dim() - 1)), of_normal, slope)


def mean_of(noise_range: NoiseRange, v: Tensor) -> Tensor:
    """Return the mean of the data in the shape of one example of v (B, *event), or a scalar if all entries share it.

    Example:
        >>> mean_of(NoiseRange(mean=[1.0, 2.0]), torch.zeros(5, 2)).tolist()
        [1.0, 2.0]
    """
    mean = torch.as_tensor(noise_range.mean).to(v)
    return mean.view(v.shape[1:]) if mean.dim() else mean
