"""Samples of deep models by annealed Langevin dynamics on v, on (v, h), or on v with latents of the posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, cast

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError, one_of
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin, Chains
from eblvm_lit.samplers.base import Sampler
from eblvm_lit.samplers.eval_mode import eval_mode, posterior_mean
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["AnnealedSamples"]

Kind = Literal["auto", "marginal", "joint", "posterior", "score"]


class AnnealedSamples(Sampler):
    r"""Draws v of a model whose conditionals cannot be sampled directly.

    ``marginal``: v moves down F, where F is tractable. ``joint``: v and real latents move down E together.
    ``posterior``: h is the mean of q(h|v) at a random training example and stays fixed, and v moves down E(., h): the
    published procedure for EBLVMs. ``score``: v moves along the estimate of the marginal score that training fits,

    .. math:: \nabla_v \log p(v) \approx -\nabla_v E(v, h) |_{h = E_q[h|v]}

    with h renewed at each step, so that no pair (v, h) is visited that training has not seen. ``auto``: the first of
    marginal, posterior and joint that the model allows. Sample i depends on the seed and on i, not on its batch.
    Reference: Bao et al. 2020 and 2021, code; VaES of Bao et al. 2021 for the score.

    Args:
        langevin: The dynamics.
        kind: As above.
        batch_size: Samples drawn at a time.
        denoise_latents: Whether the last step of joint chains moves the latents, too, as in the released code. They
            carry no data noise, so by default it does not.

    Raises:
        ConfigError: For an unknown kind, or fewer than one sample at a time.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> short = AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0)
        >>> samples = AnnealedSamples(langevin=short, batch_size=3)
        >>> samples.draw(GaussianLatentModel(v_dim=2, h_dim=3), range(5), seed=0).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        *,
        langevin: AnnealedLangevin,
        kind: Kind = "auto",
        batch_size: int = 100,
        denoise_latents: bool = False,
    ) -> None:
        one_of("sampler.kind", kind, ("auto", "marginal", "joint", "posterior", "score"))
        self.langevin, self.kind, self.batch_size = langevin, kind, batch_size
        self.denoise_latents = denoise_latents

    @property
    def needs_examples(self) -> bool:
        """Whether training examples decide where samples of a model with a posterior come from."""
        return self.kind in ("auto", "posterior")

    def kind_for(self, energy: Energy | None, posterior: Posterior | None, examples: Tensor | None) -> str | None:
        """The kind of samples that are drawn of a model; None where it does not allow any."""
        possible = {
            "marginal": isinstance(energy, MarginalEnergy),
            "posterior": isinstance(energy, Energy) and isinstance(posterior, Posterior) and examples is not None,
            "joint": isinstance(energy, Energy) and energy.continuous and energy.h_dim > 0,
            "score": isinstance(energy, Energy) and isinstance(posterior, Posterior),
        }
        wanted = possible if self.kind == "auto" else (self.kind,)
        return next((kind for kind in wanted if possible[kind]), None)

    def check(self, energy: Energy | None, posterior: Posterior | None, examples: Tensor | None) -> str:
        """The kind of samples that are drawn of a model.

        Raises:
            ConfigError: If it does not allow any.
        """
        kind = self.kind_for(energy, posterior, examples)
        if kind is None:
            raise ConfigError(
                f"{type(energy).__name__} cannot be sampled by annealed Langevin dynamics of kind {self.kind}: "
                "marginal needs a free energy, posterior and score a method with a posterior, joint real latents."
            )
        return kind

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
        as_float: Callable[[Tensor], Tensor] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Samples of the model, shape (n, *event).

        Args:
            energy: The model.
            samples: Their indices.
            seed: The run's seed.
            posterior: q, for latents.
            examples: Training examples, shape (n, *event), for latents.
            as_float: Converts examples that are bytes to floats.
            on_step: Called with the number of samples that have moved a step.

        Raises:
            ConfigError: If the model does not allow samples of this kind, or if they diverge.
        """
        prepare = self._chains(energy, posterior, examples, as_float)
        return self.run(energy, prepare, samples, seed=seed, on_step=on_step)

    def trajectory(
        self,
        energy: Energy,
        samples: Sequence[int],
        *,
        seed: int,
        posterior: Posterior | None = None,
        examples: Tensor | None = None,
        as_float: Callable[[Tensor], Tensor] | None = None,
    ) -> Iterator[Tensor]:
        """The samples of one batch after each step; the last are those of :meth:`draw`.

        Args:
            energy: The model.
            samples: Their indices.
            seed: The run's seed.
            posterior: q, for latents.
            examples: Training examples, shape (n, *event), for latents.
            as_float: Converts examples that are bytes to floats.

        Yields:
            Shape (n, *event).

        Raises:
            ConfigError: If the model does not allow samples of this kind.
        """
        prepare = self._chains(energy, posterior, examples, as_float)
        noise = SampleNoise(seed, samples, device=next(energy.parameters()).device)
        with eval_mode(energy):
            chains = prepare(slice(0, len(samples)), noise)
            yield from (x[0] for x in self.langevin.trajectory(chains, noise))

    def _chains(
        self,
        energy: Energy,
        posterior: Posterior | None,
        examples: Tensor | None,
        as_float: Callable[[Tensor], Tensor] | None,
    ) -> Callable[[slice, SampleNoise], Chains]:
        """A function that maps a batch and its noise to its chains."""
        kind, langevin = self.check(energy, posterior, examples), self.langevin
        dtype = next(energy.parameters()).dtype

        def prepare(_: slice, noise: SampleNoise) -> Chains:
            v = langevin.start(tuple(energy.event_shape), noise, dtype=dtype)
            if kind == "marginal":
                return Chains(lambda v: cast(MarginalEnergy, energy).free_energy(v).sum(), (v,))
            if kind == "joint":
                h = langevin.start((energy.h_dim,), noise, dtype=dtype)
                return Chains(lambda v, h: energy.energy(v, h).sum(), (v, h), denoised=(True, self.denoise_latents))
            q, known = cast(Posterior, posterior), cast(Tensor, examples)
            if kind == "score":
                return Chains(lambda v: energy.energy(v, posterior_mean(q, v.detach())).sum(), (v,))
            rows = known[noise.integers(len(known)).to(known.device)].to(v.device)
            h = posterior_mean(q, (rows if as_float is None else as_float(rows)).to(dtype))
            return Chains(lambda v: energy.energy(v, h).sum(), (v,))

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
        device, ends = next(energy.parameters()).device, []
        with eval_mode(energy):
            for first in range(0, len(samples), self.batch_size):
                rows = slice(first, min(first + self.batch_size, len(samples)))
                noise = SampleNoise(seed, samples[rows], device=device)
                ends.append(self.langevin.run(prepare(rows, noise), noise, on_step=on_step)[0])
        return torch.cat(ends)
