"""Who draws the samples of a method, decided once for runs, figures, metrics and commands."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import Draws
from eblvm_lit.draws.chains import ChainDraws
from eblvm_lit.draws.generator import GeneratedImages
from eblvm_lit.energies.base import Energy, is_movable
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
from eblvm_lit.samplers.dynamics import Dynamics
from eblvm_lit.samplers.gibbs import Gibbs
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.samplers.sampler import Kind, Sampler, in_large_batches

__all__ = ["DrawnAsTheRun", "FittingSampler", "as_sampler", "draws_of"]


class FittingSampler(Sampler):
    """The dynamics given for images of deep models, and what fits other models better, as :meth:`fitting` says.

    Args:
        dynamics: What moves the chains of images; the rest is as of :class:`~eblvm_lit.samplers.sampler.Sampler`.
        kind: As there.
        batch_size: As there.
        denoise_latents: As there.
        bfloat16: As there.
        n_steps: Gibbs sweeps, or steps of plain Langevin dynamics, where these draw.
        step_size: Of plain Langevin dynamics. The default fits models that are smooth on a scale of 0.05: a / 0.05^2 is
            well below one.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> sampler = FittingSampler(dynamics=AnnealedLangevin())
        >>> sampler.fitting(GRBM(v_dim=2, h_dim=3), images=False).dynamics.title
        'Gibbs samples, 1000 sweeps'
    """

    def __init__(
        self,
        *,
        dynamics: Dynamics,
        kind: Kind = "auto",
        batch_size: PositiveInt = 100,
        denoise_latents: bool = False,
        bfloat16: bool = False,
        n_steps: NonNegativeInt = 1000,
        step_size: PositiveFloat = 1e-3,
    ) -> None:
        super().__init__(
            dynamics=dynamics, kind=kind, batch_size=batch_size, denoise_latents=denoise_latents, bfloat16=bfloat16
        )
        self.n_steps = n_steps
        self.step_size = step_size

    def fitting(self, energy: Energy | None, *, images: bool) -> Sampler:
        """Gibbs sampling where p(h|v) and p(v|h) can be drawn, plain Langevin dynamics of points, else this sampler."""
        if Gibbs.supports(energy):
            return as_sampler(Gibbs(n_steps=self.n_steps), energy)
        if not images and is_movable(energy):
            return as_sampler(Langevin(n_steps=self.n_steps, step_size=self.step_size), energy)
        return self


def as_sampler(sampler: Sampler | Dynamics | None, energy: Energy | None) -> Sampler:
    """A sampler as it is; dynamics as the sampler that draws many samples at a time by them; None as the default.

    Example:
        >>> as_sampler(Gibbs(n_steps=5), None).dynamics.n_steps
        5
    """
    if sampler is None:
        return FittingSampler(dynamics=AnnealedLangevin())
    return in_large_batches(sampler, energy) if isinstance(sampler, Dynamics) else sampler


def draws_of(
    method: Method,
    data: ArrayDataModule,
    sampler: Sampler | Dynamics | None = None,
    *,
    generator: GeneratedImages | None = None,
    starts: Mapping[str, Tensor] | None = None,
) -> Draws | None:
    """Decide who draws the samples of a method.

    This is its generator, where it has one; else the sampler of the configuration or, where that is a
    :class:`FittingSampler`, what fits the model.

    Args:
        method: The method.
        data: Its data, which need not be set up; only their shape is asked for.
        sampler: The sampler of the configuration; the published annealed Langevin dynamics, and what fits other models
            better, if there is none.
        generator: How a generator draws; as its defaults say if not given.
        starts: What chains start from, where that is known: see :attr:`Draws.starts`.

    Returns:
        The draws; None where nothing can draw from the model.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.toy import Checkerboard
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)), seed=0, device="cpu")
        >>> draws_of(method, Checkerboard()).title
        'Gibbs samples, 1000 sweeps'
    """
    generated = (generator or GeneratedImages()).draws(method)
    if generated is not None:
        return generated
    energy = method.parts.energy
    chosen = as_sampler(sampler, energy)
    if isinstance(chosen, FittingSampler):
        # of a class it may be a property, which would read the files
        images = type(data).image_shape is not None or data.image_shape is not None
        chosen = chosen.fitting(energy, images=images)
    draws = ChainDraws(chosen, method, data, starts=starts, boxed=True)
    return None if draws.kind is None else draws


class DrawnAsTheRun:
    """Takes the samples that the run draws: the base of metrics and of their sources.

    Args:
        sampler: The run's sampler: see :func:`draws_of`.
        langevin: The steps towards the prior of a model that learns one; not used for others.
    """

    def __init__(self, *, sampler: Sampler | Dynamics | None = None, langevin: Langevin | None = None) -> None:
        self.sampler = sampler
        self.generator = GeneratedImages(langevin=langevin)

    def draws(self, method: Method, data: ArrayDataModule) -> Draws | None:
        """Who draws; None where nothing can."""
        return draws_of(method, data, self.sampler, generator=self.generator)
