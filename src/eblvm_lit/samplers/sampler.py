"""The sampler, which draws from a model by chains on v, on (v, h), or on v with latents from the posterior."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.eval_mode import eval_mode
from eblvm_lit.core.noise_levels import join_level
from eblvm_lit.core.tensors import tensor_of
from eblvm_lit.energies.base import Energy, GibbsEnergy, MarginalEnergy, refuse_bits
from eblvm_lit.energies.noise_conditional import AtLevel, FreeEnergyOfLevels, MarginalAtLevel
from eblvm_lit.errors import ConfigError
from eblvm_lit.posteriors.at_every_level import PosteriorAtLevel
from eblvm_lit.posteriors.base import Posterior, posterior_mean
from eblvm_lit.samplers.chain_trace import ChainTrace
from eblvm_lit.samplers.dynamics import Chains, Dynamics
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["ChainSamples", "Kind", "Sampler", "in_large_batches", "with_latents"]

N_NUMBERS = 2**24

Kind = Literal["auto", "marginal", "joint", "posterior", "mean", "score", "gibbs", "levels"]


class Sampler:
    r"""A sampler that runs chains of the given dynamics and returns their final v as samples.

    Its ``kind`` says on which energy the chains run:

    - ``marginal``: the chains sample v by the free energy F(v), which must be tractable.
    - ``joint``: the chains sample v and real latents together by E(v, h).
    - ``posterior``: h is the mean of q(h|v) for a random training example and stays fixed, while the chains sample v by
      E(., h). This is the published procedure for EBLVMs.
    - ``score``: the chains follow the estimate of the marginal score that training fits,
      :math:`\nabla_v \log p(v) \approx -\nabla_v E(v, h) |_{h = E_q[h|v]}`. h is recomputed at each step, so that
      chains do not visit pairs (v, h) that training has not seen. The estimate is not the gradient of an energy, and
      only unadjusted Langevin dynamics can use it.
    - ``mean``: the chains sample v by :math:`E(v, E_q[h|v])`, whose gradient also passes through q. The steps can be
      Metropolis-adjusted.
    - ``gibbs``: h is drawn from p(h|v), which must be known, and v is moved by E(., h) or drawn from p(v|h).
    - ``levels``: the chains go through all noise levels of a model that knows the level, by F(v, t), or by E(v, h, t)
      at the posterior mean of h at each v and t.
    - ``auto``: the first of the dynamics' kinds, in the order of :attr:`Dynamics.kinds`, that the model allows;
      ``mean`` and ``score`` are left out.

    Sample i depends on the seed and on i, and not on its batch. Reference: Bao et al. 2020 and 2021, code; VaES of Bao
    et al. 2021 for the score.

    Args:
        dynamics: The dynamics that move the chains.
        kind: The kind of the chains, as above.
        batch_size: The number of samples drawn at a time.
        denoise_latents: Whether the denoising step of joint chains also changes the latents, as in the authors' code.
            It does not by default, because latents contain no data noise.
        bfloat16: Whether matrix products in the gradients are rounded to bfloat16, which halves the time on devices
            with hardware support. Energies in Metropolis steps and latents that are drawn are not rounded.

    Attributes:
        record: The diagnostics of the chains that were run last; see
            :meth:`~eblvm_lit.samplers.chain_trace.ChainTrace.close`.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> short = AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0)
        >>> samples = Sampler(dynamics=short, batch_size=3)
        >>> samples.draw(GaussianLatentModel(v_dim=2, h_dim=3), range(5), seed=0).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        *,
        dynamics: Dynamics,
        kind: Kind = "auto",
        batch_size: PositiveInt = 100,
        denoise_latents: bool = False,
        bfloat16: bool = False,
    ) -> None:
        self.dynamics = dynamics
        self.kind = kind
        self.batch_size = batch_size
        self.denoise_latents = denoise_latents
        self.bfloat16 = bfloat16
        self.record: dict[str, float] = {}

    def kind_for(self, energy: Energy | None, posterior: Posterior | None, examples: Tensor | None) -> str | None:
        """Return the kind of chains that this sampler runs for a model, or None if it cannot sample the model.

        Raises:
            ConfigError: If the settings of the dynamics do not fit the model; see :meth:`Dynamics.check`.
        """
        if isinstance(energy, Energy):
            self.dynamics.check(energy)
            if energy.binary_visible and not self.dynamics.moves_bits:
                return None
        possible = {
            "marginal": isinstance(energy, MarginalEnergy),
            "posterior": isinstance(energy, Energy) and isinstance(posterior, Posterior) and examples is not None,
            "joint": isinstance(energy, Energy) and energy.continuous and energy.h_dim > 0,
            "mean": isinstance(energy, Energy) and isinstance(posterior, Posterior),
            "score": isinstance(energy, Energy) and isinstance(posterior, Posterior),
            "gibbs": isinstance(energy, GibbsEnergy),
            "levels": isinstance(energy, MarginalAtLevel)
            or (isinstance(energy, AtLevel) and isinstance(posterior, PosteriorAtLevel)),
        }
        own = self.dynamics.kinds
        wanted = [kind for kind in own if kind not in ("mean", "score")] if self.kind == "auto" else [self.kind]
        return next((kind for kind in wanted if kind in own and possible[kind]), None)

    def check(self, energy: Energy | None, posterior: Posterior | None, examples: Tensor | None) -> str:
        """Return the kind of chains that this sampler runs for a model, or raise an error if there is none.

        Raises:
            ConfigError: If the model allows none.
        """
        kind = self.kind_for(energy, posterior, examples)
        if energy is not None and not self.dynamics.moves_bits:
            refuse_bits(energy, type(self.dynamics).__name__)
        if kind is None:
            raise ConfigError(self.refusal(energy))
        return kind

    def refusal(self, energy: Energy | None) -> str:
        """Return the error message for a model that this sampler cannot sample."""
        return (
            f"{type(energy).__name__} cannot be sampled by {type(self.dynamics).__name__} of kind {self.kind}: "
            "marginal needs a free energy, posterior, mean and score a posterior, joint real latents, gibbs "
            "conditionals p(h|v), p(v|h) to draw from, levels a model of every noise level. "
            f"The kinds of these dynamics are {', '.join(self.dynamics.kinds)}."
        )

    def sample(
        self,
        energy: Energy,
        n: int,
        generator: torch.Generator,
        *,
        posterior: Posterior | None = None,
        examples: Tensor | None = None,
    ) -> Tensor:
        """Draw n samples of the model, shape (n, *event).

        Args:
            energy: The joint energy; the samples have its device and dtype.
            n: The number of samples.
            generator: The generator that draws the seed of all noise.
            posterior: The posterior q, for the kinds that need one.
            examples: Training examples as the model sees them, whose posterior means are the latents of the kind
                ``posterior``; shape (number of examples, *event).
        """
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        return self.draw(energy, range(n), seed=seed, posterior=posterior, examples=examples)

    def draw(
        self,
        energy: Energy,
        samples: Sequence[int],
        *,
        seed: int,
        posterior: Posterior | None = None,
        examples: Tensor | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Draw the samples with the given indices, shape (n, *event).

        Args:
            energy: The joint energy; the samples have its device and dtype.
            samples: The indices of the n samples.
            seed: The run's seed.
            posterior: The posterior q, for the kinds that need one.
            examples: Training examples as the model sees them, whose posterior means are the latents of the kind
                ``posterior``; shape (number of examples, *event).
            on_step: A function that is called after each step with the number of samples that took it.

        Raises:
            ConfigError: If the model does not allow chains of this kind, or if they diverge.
        """
        prepare = self._chains(energy, posterior, examples)
        return self.run(energy, prepare, samples, seed=seed, on_step=on_step)

    def _chains(
        self, energy: Energy, posterior: Posterior | None, examples: Tensor | None
    ) -> Callable[[slice, SampleNoise], Chains]:
        """Return a function that maps a batch (a slice of the samples) and its noise to the batch's chains."""
        kind = self.check(energy, posterior, examples)
        dynamics = self.dynamics
        dtype = tensor_of(energy, "cpu").dtype

        def prepare(_: slice, noise: SampleNoise) -> Chains:
            v = dynamics.start(tuple(energy.event_shape), noise, dtype=dtype)
            if kind == "marginal":
                return Chains(cast(MarginalEnergy, energy).free_energy, (v,))
            if kind == "joint":
                h = dynamics.start_latents(energy.h_dim, noise, dtype=dtype)
                return Chains(energy.energy, (v, h), denoised=(True, self.denoise_latents))
            if kind == "levels":
                return of_every_level(cast("AtLevel | MarginalAtLevel", energy), posterior, v)
            if kind == "gibbs":
                return with_latents(cast(GibbsEnergy, energy), v)
            q = cast(Posterior, posterior)
            known = cast(Tensor, examples)
            if kind == "mean":
                fixed = copy.deepcopy(q).eval().requires_grad_(False)
                return Chains(lambda v: energy.energy(v, fixed.mean(v)), (v,))
            if kind == "score":
                return Chains(lambda v: energy.energy(v, posterior_mean(q, v.detach())), (v,))
            rows = known[noise.integers(len(known)).to(known.device)].to(v.device)
            h = posterior_mean(q, rows.to(dtype))
            return Chains(energy.energy, (v,), given=(h,))

        return prepare

    def run(
        self,
        energy: Energy,
        prepare: Callable[[slice, SampleNoise], Chains],
        samples: Sequence[int],
        *,
        seed: int,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Run chains batch by batch, and return the final values of their first variable, shape (n, *event).

        Args:
            energy: The joint energy, which is in evaluation mode while the chains run.
            prepare: A function that maps a batch (a slice of the samples) and its noise to the batch's chains.
            samples: The indices of the samples; chains with the same index have the same noise.
            seed: The seed of the noise.
            on_step: A function that is called after each step with the number of chains that took it.

        Raises:
            ConfigError: If the chains diverge, or if v is binary and the dynamics follow gradients.
        """
        if not self.dynamics.moves_bits:
            refuse_bits(energy, type(self.dynamics).__name__)
        device = tensor_of(energy, "cpu").device
        ends = []
        trace = ChainTrace()
        with eval_mode(energy):
            for first in range(0, len(samples), self.batch_size):
                rows = slice(first, min(first + self.batch_size, len(samples)))
                noise = SampleNoise(seed, samples[rows], device=device)
                chains = prepare(rows, noise)
                with torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16):
                    ends.append(self.dynamics.end(chains, noise, on_step=on_step, trace=trace)[0])
                trace.next_batch()
        self.record = trace.close()
        return torch.cat(ends)


ChainSamples = Sampler
"""The former name of :class:`Sampler`, which saved configurations may contain."""


def with_latents(energy: GibbsEnergy, v: Tensor) -> Chains:
    """Return joint chains initialised at v and the mean E[h|v], for dynamics that draw or move h given v."""
    h = energy.latent_mean(v).detach()
    return Chains(energy.energy, (v, h), denoised=(True, False), conditional=energy)


def of_every_level(
    energy: AtLevel | MarginalAtLevel, posterior: Posterior | None, v: Tensor, h: Tensor | None = None
) -> Chains:
    """Return chains of v under a noise-conditional model, for dynamics that change the noise level.

    Latents h (B, H) that are given stay fixed at all levels. Without them, and without a tractable free energy, the
    latents are the posterior means at each v and level; gradients do not pass through them, so that the gradient of the
    energy estimates that of F as VaES with the mean as its only particle.
    """
    every = energy.every_level
    smallest = math.log(energy.level)

    def at(v: Tensor, log_level: Tensor | None = None) -> Tensor:
        w = join_level(v, v.new_full((len(v),), smallest) if log_level is None else log_level)
        if h is not None:
            return every.energy(w, h)
        if isinstance(every, MarginalEnergy):
            return every.free_energy(w)
        return every.energy(w, posterior_mean(cast(PosteriorAtLevel, posterior).inner, w.detach()))

    is_score = h is None and (not isinstance(every, FreeEnergyOfLevels) or every.shares_log_z)
    return Chains(at, (v,), noise_range=every.noise_range, is_score=is_score)


def in_large_batches(dynamics: Dynamics, energy: Energy | None) -> Sampler:
    """Return a sampler with a batch size chosen to run many chains at a time.

    A batch has as many chains as draw 2^24 random numbers in 50 steps, but at least 100.
    """
    n_numbers = math.prod(energy.event_shape) + energy.h_dim if isinstance(energy, Energy) else N_NUMBERS
    return Sampler(dynamics=dynamics, batch_size=max(100, N_NUMBERS // (50 * n_numbers)))
