"""The choice between a method's generator and a sampler, which runs, figures, metrics and commands share."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import Draws
from eblvm_lit.draws.chains import ChainDraws
from eblvm_lit.draws.generator import GeneratedImages
from eblvm_lit.energies.base import Energy, is_movable
from eblvm_lit.energies.noise_conditional import knows_every_level
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
from eblvm_lit.samplers.dynamics import Dynamics
from eblvm_lit.samplers.gibbs import Gibbs
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.samplers.probability_flow import ProbabilityFlow
from eblvm_lit.samplers.sampler import Kind, Sampler, in_large_batches

__all__ = ["DrawnAsTheRun", "FittingSampler", "as_sampler", "draws_of"]


class FittingSampler(Sampler):
    """A sampler that uses the given dynamics for deep models of images, and chooses other dynamics for other models.

    :meth:`fitting` chooses the dynamics. The arguments without a description are those of
    :class:`~eblvm_lit.samplers.sampler.Sampler`.

    Args:
        dynamics: The dynamics for deep models of images.
        kind: See :class:`~eblvm_lit.samplers.sampler.Sampler`.
        batch_size: See :class:`~eblvm_lit.samplers.sampler.Sampler`.
        denoise_latents: See :class:`~eblvm_lit.samplers.sampler.Sampler`.
        bfloat16: See :class:`~eblvm_lit.samplers.sampler.Sampler`.
        n_steps: The number of Gibbs sweeps, or of steps of plain Langevin dynamics, where one of these is chosen.
        step_size: The step size a of plain Langevin dynamics. The default suits models that are smooth on a scale of
            0.05, because a / 0.05^2 is then well below one.

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
        """Choose the dynamics that suit a model.

        They are the probability flow for a model of every noise level, Gibbs sampling if p(h|v) and p(v|h) can be
        sampled, plain Langevin dynamics for other models of points, and otherwise those of this sampler.
        """
        if knows_every_level(energy):
            return as_sampler(ProbabilityFlow(), energy)
        if Gibbs.supports(energy):
            return as_sampler(Gibbs(n_steps=self.n_steps), energy)
        if not images and is_movable(energy):
            return as_sampler(Langevin(n_steps=self.n_steps, step_size=self.step_size), energy)
        return self


def as_sampler(sampler: Sampler | Dynamics | None, energy: Energy | None) -> Sampler:
    """Return a sampler unchanged; convert dynamics to a sampler with large batches, and None to the default sampler.

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
    """Return the object that draws a method's samples: by its generator or, if it has none, by a sampler's chains.

    The sampler is the one of the configuration; a :class:`FittingSampler` chooses the dynamics that suit the model.

    Args:
        method: The method.
        data: The method's data; they need not be set up, because only their shape is used.
        sampler: The sampler of the configuration. If there is none, it is a :class:`FittingSampler` with the published
            annealed Langevin dynamics.
        generator: The settings with which a generator draws; None uses the defaults.
        starts: The tensors that chains need at their start, if known; see :attr:`Draws.starts`.

    Returns:
        The draws, or None if the model cannot be sampled.

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
        # A class that defines image_shape, as a value or as a property, has images. The class is asked first, because
        # the property of its instance would read the files.
        images = type(data).image_shape is not None or data.image_shape is not None
        chosen = chosen.fitting(energy, images=images)
    draws = ChainDraws(chosen, method, data, starts=starts, boxed=True)
    return None if draws.kind is None else draws


class DrawnAsTheRun:
    """The base class of metrics and image sources that draw samples with the sampler or generator of the run.

    Args:
        sampler: The run's sampler; see :func:`draws_of`.
        langevin: The Langevin steps that sample a learnt prior of latents; used only for a model that has one.
    """

    def __init__(self, *, sampler: Sampler | Dynamics | None = None, langevin: Langevin | None = None) -> None:
        self.sampler = sampler
        self.generator = GeneratedImages(langevin=langevin)

    def draws(self, method: Method, data: ArrayDataModule) -> Draws | None:
        """Return the object that draws the method's samples, or None if the model cannot be sampled."""
        return draws_of(method, data, self.sampler, generator=self.generator)
