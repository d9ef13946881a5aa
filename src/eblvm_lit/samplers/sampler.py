"""What draws samples of a model: chains of any dynamics, on v, on (v, h), or on v with latents of the posterior."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.eval_mode import eval_mode
from eblvm_lit.core.tensors import tensor_of
from eblvm_lit.energies.base import ConditionalEnergy, Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.posteriors.base import Posterior, posterior_mean
from eblvm_lit.samplers.chain_trace import ChainTrace
from eblvm_lit.samplers.dynamics import Chains, Dynamics
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["ChainSamples", "Kind", "Sampler", "in_large_batches", "with_latents"]

N_NUMBERS = 2**24

Kind = Literal["auto", "marginal", "joint", "posterior", "mean", "score", "gibbs"]


class Sampler:
    r"""Draws v of a model by chains.

    ``marginal``: v moves down F, where F is tractable. ``joint``: v and real latents move down E together.
    ``posterior``: h is the mean of q(h|v) at a random training example and stays fixed, and v moves down E(., h): the
    published procedure for EBLVMs. ``score``: v moves along the estimate of the marginal score that training fits,

    .. math:: \nabla_v \log p(v) \approx -\nabla_v E(v, h) |_{h = E_q[h|v]}

    with h renewed at each step, so that no pair (v, h) is visited that training has not seen. ``mean``: v moves down
    :math:`E(v, E_q[h|v])`, differentiated through q, too; its steps can be Metropolis-adjusted. ``gibbs``: h is drawn
    from p(h|v), which must be known, and v moves down E(., h), or is drawn from p(v|h). ``auto``: the first of the
    dynamics' own kinds that the model allows, in the order of :attr:`Dynamics.kinds`. The score is no gradient of an
    energy, and is for Langevin dynamics without adjustment only. Sample i depends on the seed and on i, not on its
    batch.
    Reference: Bao et al. 2020 and 2021, code; VaES of Bao et al. 2021 for the score.

    Args:
        dynamics: What moves the chains.
        kind: As above.
        batch_size: Samples drawn at a time.
        denoise_latents: Whether the last step of joint chains moves the latents, too, as in the released code. They
            carry no data noise, so by default it does not.
        bfloat16: Whether products of slopes are rounded to bfloat16, which takes half the time where the device has
            units for it. Energies by which Metropolis steps accept, and latents that are drawn, are not rounded.

    Attributes:
        record: Of the chains drawn last: see :meth:`~eblvm_lit.samplers.chain_trace.ChainTrace.close`.

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
        """The kind of samples that are drawn of a model; None where it does not allow any."""
        possible = {
            "marginal": isinstance(energy, MarginalEnergy),
            "posterior": isinstance(energy, Energy) and isinstance(posterior, Posterior) and examples is not None,
            "joint": isinstance(energy, Energy) and energy.continuous and energy.h_dim > 0,
            "mean": isinstance(energy, Energy) and isinstance(posterior, Posterior),
            "score": isinstance(energy, Energy) and isinstance(posterior, Posterior),
            "gibbs": isinstance(energy, ConditionalEnergy),
        }
        own = self.dynamics.kinds
        wanted = [kind for kind in own if kind not in ("mean", "score")] if self.kind == "auto" else [self.kind]
        return next((kind for kind in wanted if kind in own and possible[kind]), None)

    def check(self, energy: Energy | None, posterior: Posterior | None, examples: Tensor | None) -> str:
        """The kind of samples that are drawn of a model.

        Raises:
            ConfigError: If it does not allow any.
        """
        kind = self.kind_for(energy, posterior, examples)
        if kind is None:
            raise ConfigError(self.refusal(energy))
        return kind

    def refusal(self, energy: Energy | None) -> str:
        """The sentence by which a model is refused."""
        return (
            f"{type(energy).__name__} cannot be sampled by {type(self.dynamics).__name__} of kind {self.kind}: "
            "marginal needs a free energy, posterior, mean and score a posterior, joint real latents, gibbs "
            "conditionals p(h|v), p(v|h) to draw from. "
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
        """Samples of the model, shape (n, *event).

        Args:
            energy: The model; its device and type are those of the samples.
            n: Number of chains.
            generator: Source of the seed of all noise.
            posterior: q, where latents are its means.
            examples: Training examples as the model sees them, shape (n, *event), for those means.
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
        """Samples of the model, shape (n, *event).

        Args:
            energy: The model.
            samples: Their indices.
            seed: The run's seed.
            posterior: q, for latents.
            examples: Training examples as the model sees them, shape (n, *event), for latents.
            on_step: Called with the number of samples that have moved a step.

        Raises:
            ConfigError: If the model does not allow samples of this kind, or if they diverge.
        """
        prepare = self._chains(energy, posterior, examples)
        return self.run(energy, prepare, samples, seed=seed, on_step=on_step)

    def _chains(
        self, energy: Energy, posterior: Posterior | None, examples: Tensor | None
    ) -> Callable[[slice, SampleNoise], Chains]:
        """A function that maps a batch and its noise to its chains."""
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
            if kind == "gibbs":
                return with_latents(cast(ConditionalEnergy, energy), v)
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
        """The end of any chains, batch by batch: their first variable, shape (n, *its shape).

        Args:
            energy: The model; it is in evaluation mode while the chains move.
            prepare: Maps a batch, as a slice of the samples, and its noise to its chains.
            samples: Their indices: chains of equal index have equal noise.
            seed: Of that noise.
            on_step: Called with the number of chains that have moved a step.

        Raises:
            ConfigError: Without any sample, or if the chains diverge.
        """
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


ChainSamples = Sampler  # its former name


def with_latents(energy: ConditionalEnergy, v: Tensor) -> Chains:
    """Chains of v and of latents that are drawn from p(h|v)."""
    h = energy.latent_mean(v).detach()
    return Chains(energy.energy, (v, h), denoised=(True, False), conditional=energy)


def in_large_batches(dynamics: Dynamics, energy: Energy | None) -> Sampler:
    """A sampler that draws many samples at a time: as many as 2^24 random numbers serve for 50 steps."""
    n_numbers = math.prod(energy.event_shape) + energy.h_dim if isinstance(energy, Energy) else N_NUMBERS
    return Sampler(dynamics=dynamics, batch_size=max(100, N_NUMBERS // (50 * n_numbers)))
