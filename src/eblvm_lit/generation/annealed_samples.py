"""Samples of deep models by annealed Langevin dynamics: marginal, joint, or through the posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.generation.annealed_chains import Chains, free_energy, joint_energy, visible_energy
from eblvm_lit.generation.eval_mode import frozen, posterior_mean
from eblvm_lit.generation.sample_noise import SampleNoise
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin

__all__ = ["AnnealedSamples"]

Kind = Literal["auto", "marginal", "joint", "posterior"]


class AnnealedSamples:
    r"""Draws v of a model whose conditionals cannot be drawn from.

    ``marginal``: v moves down F, where F is tractable. ``joint``: v and real latents move down E together.
    ``posterior``: h is the mean of q(h|v) at a random training example and stays, v moves down E(., h): the published
    way for EBLVMs. ``auto``: the first of marginal, posterior and joint that the model allows. Sample i depends on the
    seed and on i, not on the batch it is drawn in. Reference: Bao et al. 2020 and 2021, code.

    Args:
        langevin: The dynamics.
        kind: As above.
        batch_size: Samples drawn at a time.

    Raises:
        ConfigError: For an unknown kind, or fewer than one sample at a time.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> short = AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0)
        >>> samples = AnnealedSamples(langevin=short, batch_size=3)
        >>> samples.draw(GaussianLatentModel(v_dim=2, h_dim=3), range(5), seed=0).shape
        torch.Size([5, 2])
    """

    def __init__(self, *, langevin: AnnealedLangevin, kind: Kind = "auto", batch_size: int = 100) -> None:
        if kind not in ("auto", "marginal", "joint", "posterior"):
            raise ConfigError(f"Samples are auto, marginal, joint or posterior, not {kind!r}.")
        if batch_size < 1:
            raise ConfigError(f"Samples need batch_size >= 1, not {batch_size}.")
        self.langevin, self.kind, self.batch_size = langevin, kind, batch_size

    def supports(self, energy: Energy | None, posterior: Posterior | None, examples: Tensor | None) -> bool:
        """Whether such samples of a model can be drawn."""
        return self.kind_for(energy, posterior, examples) is not None

    def kind_for(self, energy: Energy | None, posterior: Posterior | None, examples: Tensor | None) -> str | None:
        """The kind of samples that are drawn of a model; None where it does not allow any."""
        possible = {
            "marginal": isinstance(energy, MarginalEnergy),
            "posterior": isinstance(energy, Energy) and isinstance(posterior, Posterior) and examples is not None,
            "joint": isinstance(energy, Energy) and energy.continuous and energy.h_dim > 0,
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
                "marginal needs a free energy, posterior a method with a posterior, joint real latents."
            )
        return kind

    def run(
        self,
        energy: Energy,
        prepare: Callable[[slice, SampleNoise], Chains],
        samples: Sequence[int],
        *,
        seed: int,
        on_step: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[Tensor, ...]]:
        """Where chains of any kind end, batch by batch, each variable of shape (at most batch_size, *its shape).

        Args:
            energy: The model; it is in evaluation mode while the chains move.
            prepare: Maps a batch, as a slice of the samples, and its noise to its chains.
            samples: Their indices: chains of equal index have equal noise.
            seed: Of that noise.
            on_step: Called with the number of chains that have moved a step.

        Raises:
            ConfigError: Without any sample, or if the chains diverge.
        """
        if len(samples) < 1:
            raise ConfigError("Annealed Langevin dynamics were asked for no sample: ask for n >= 1.")
        device = next(energy.parameters()).device
        for first in range(0, len(samples), self.batch_size):
            rows = slice(first, min(first + self.batch_size, len(samples)))
            noise = SampleNoise(seed, samples[rows], device=device)
            with frozen(energy):  # not while the caller has the batch
                x = prepare(rows, noise)
                options = {"moving": x.moving, "denoised": x.denoised, "on_step": on_step}
                end = self.langevin.run(x.energy, x.start, noise, **options)
            yield end

    def batches(
        self,
        energy: Energy,
        samples: Sequence[int],
        *,
        seed: int,
        posterior: Posterior | None = None,
        examples: Tensor | None = None,
        as_float: Callable[[Tensor], Tensor] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Iterator[Tensor]:
        """The samples, batch by batch, each of shape (at most batch_size, *event).

        Args:
            energy: The model.
            samples: Their indices.
            seed: The run's seed.
            posterior: q, for latents.
            examples: Training examples, shape (n, *event), for latents.
            as_float: What makes floats of examples that are bytes.
            on_step: Called with the number of samples that have moved a step.

        Raises:
            ConfigError: If the model does not allow samples of this kind, or if they diverge.
        """
        kind = self.check(energy, posterior, examples)
        p = next(energy.parameters())

        def prepare(_: slice, noise: SampleNoise) -> Chains:
            v = self.langevin.start(tuple(energy.event_shape), noise, dtype=p.dtype)
            if kind == "marginal":
                return Chains(free_energy(energy), (v,))
            if kind == "joint":
                h = self.langevin.start((energy.h_dim,), noise, dtype=p.dtype)
                return Chains(joint_energy(energy), (v, h), denoised=(True, False))
            rows = examples[noise.integers(len(examples)).to(examples.device)].to(v.device)
            rows = (rows if as_float is None else as_float(rows)).to(v.dtype)
            return Chains(visible_energy(energy, posterior_mean(posterior, rows)), (v,))

        for end in self.run(energy, prepare, samples, seed=seed, on_step=on_step):
            yield end[0]

    def draw(self, energy: Energy, samples: Sequence[int], **options: object) -> Tensor:
        """All samples at once, shape (n, *event); the options are those of :meth:`batches`."""
        return torch.cat(list(self.batches(energy, samples, **options)))
