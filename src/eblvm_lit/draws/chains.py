"""Samples of a method that are drawn by Markov chains, and the tensors from which the chains start."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import tensor_of
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import Draws
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.base import Method
from eblvm_lit.posteriors.base import Posterior, posterior_mean
from eblvm_lit.samplers.conditional import draw_visible
from eblvm_lit.samplers.gibbs import Gibbs
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.samplers.sampler import Sampler

__all__ = ["ChainDraws"]

N_LATENTS = 10_000  # chains use the posterior means of at most this many training examples


class ChainDraws(Draws):
    """Samples of a method, drawn by the Markov chains of a sampler.

    Most chains move v by the free energy F(v), move v and h by E(v, h), or move v by E(., h) with h fixed at latents of
    training examples. :class:`~eblvm_lit.samplers.sampler.Sampler` describes all kinds of chains.

    Args:
        sampler: The sampler that runs the chains.
        method: The method.
        data: The method's data; they are set up here if training examples are needed.
        starts: The value of :attr:`starts` if it is known, for example from a shared model.
        boxed: Whether chains of plain Langevin dynamics start uniformly in the smallest box around the training
            examples instead of in [0, 1].

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GaussianLatentModel(v_dim=2, h_dim=3)), device="cpu")
        >>> draws = ChainDraws(Sampler(dynamics=Gibbs(n_steps=5)), method, None)
        >>> draws.title, draws.draw(4, seed=0).shape
        ('Gibbs samples, 5 sweeps', torch.Size([4, 2]))
    """

    def __init__(
        self,
        sampler: Sampler,
        method: Method,
        data: ArrayDataModule,
        *,
        starts: Mapping[str, Tensor] | None = None,
        boxed: bool = False,
    ) -> None:
        self.sampler = sampler
        self.method = method
        self.data = data
        self.energy = cast(Energy, method.parts.energy)
        self.boxed = boxed and isinstance(sampler.dynamics, Langevin)
        self.title = sampler.dynamics.title
        self.n_steps = sampler.dynamics.n_steps
        self._known = starts or {}

    @property
    def kind(self) -> str | None:
        """The kind of chain that :class:`~eblvm_lit.samplers.sampler.Sampler` runs; None if sampling is impossible."""
        return self.sampler.kind_for(self.energy, self.method.parts.posterior, torch.empty(0))

    @cached_property
    def starts(self) -> dict[str, Tensor]:
        """A dict of the tensors, besides noise, from which the chains start.

        ``latents`` are the posterior means of the first 10,000 training examples, shape (n, H). ``box`` contains the
        lowest and the highest training value of each variable, shape (2, *event). Most models need neither.
        """
        like = tensor_of(self.energy, self.method.device)
        name = "latents" if self.kind == "posterior" else "box" if self.boxed else None
        if name is None:
            return {}
        if name in self._known:
            return {name: self._known[name].to(like)}
        v = self.examples(N_LATENTS if name == "latents" else None).to(like)
        if name == "latents":
            return {name: posterior_mean(cast(Posterior, self.method.parts.posterior), v)}
        return {name: torch.stack(v.aminmax(dim=0))}

    def examples(self, n: int | None = None) -> Tensor:
        """Return the first n training examples (by default all) as the model sees them, shape (n, *event)."""
        self.data.setup()
        return self.data.as_float(self.data.splits.train[:n])

    def of_means(self) -> Draws | None:
        """Return an object whose Gibbs chains yield the means E[v|h] instead of samples, or None for other dynamics."""
        if not isinstance(self.sampler.dynamics, Gibbs):
            return None
        sampler = copy.copy(self.sampler)
        sampler.dynamics = self.sampler.dynamics.of_means()
        return ChainDraws(sampler, self.method, self.data, starts=self._known)

    def draw(self, n: int, *, seed: int, on_step: Callable[[int], None] | None = None) -> Tensor:
        """Draw the first n samples; see :meth:`Draws.draw`."""
        return self.part(range(n), seed=seed, on_step=on_step)

    def part(self, samples: Sequence[int], *, seed: int, on_step: Callable[[int], None] | None = None) -> Tensor:
        """Draw the samples with the given indices, shape (n, *event)."""
        like = tensor_of(self.energy, self.method.device) if isinstance(self.energy, Energy) else torch.empty(0)
        generator = keyed_generator(seed, "samples", device=like.device)
        if self.kind == "posterior":
            latents = self.starts["latents"]
            # The indices of the latents are drawn on the CPU, where the first numbers do not depend on how many numbers
            # are drawn. On a GPU they do, and sample i would get other latents in another batch.
            generator = keyed_generator(seed, "samples")
            rows = torch.randint(len(latents), (max(samples) + 1,), generator=generator)[list(samples)]
            h = latents[rows.to(latents.device)]
            return draw_visible(self.sampler, self.energy, h, seed=seed, samples=samples, on_step=on_step)
        sampler = copy.copy(self.sampler)
        if self.boxed:
            sampler.dynamics = cast(Langevin, sampler.dynamics).within(*self.starts["box"])
        noise_seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        posterior = self.method.parts.posterior
        return sampler.draw(self.energy, samples, seed=noise_seed, posterior=posterior, on_step=on_step)
