"""Samples of v given latents, given interpolated latents, or given some of the pixels (inpainting)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eblvm_lit.core.tensors import tensor_of
from eblvm_lit.energies.base import Energy, GibbsEnergy, MarginalEnergy, is_movable
from eblvm_lit.energies.noise_conditional import AtLevel, MarginalAtLevel
from eblvm_lit.errors import ConfigError
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.samplers.dynamics import Chains, Dynamics
from eblvm_lit.samplers.sample_noise import SampleNoise
from eblvm_lit.samplers.sampler import Sampler, of_every_level, with_latents

__all__ = ["can_inpaint", "draw_between", "draw_visible", "inpaint", "interpolate"]


def draw_visible(
    sampler: Sampler,
    energy: Energy,
    h: Tensor,
    *,
    seed: int,
    samples: Sequence[int] | None = None,
    start: Tensor | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Tensor:
    r"""Draw one v ~ p(v|h) for each h, by running the sampler's dynamics on v with h fixed.

    For annealed Langevin dynamics:

    .. math:: v \leftarrow v - \tfrac12 \varepsilon^2 \nabla_v E(v, h) + \sqrt{T_t}\, \varepsilon\, \xi, \quad
        v \leftarrow v - \sigma_0^2 \nabla_v E(v, h) \text{ at the end}

    Reference: Bao et al. 2020, section 5.2, and code.

    Args:
        sampler: The sampler, which sets the dynamics and the number of chains that run at a time.
        energy: The joint energy.
        h: Latents, shape (n, H); several of them may be equal.
        seed: The seed of the noise.
        samples: The index of each sample's noise; 0, ..., n - 1 if not given.
        start: The initial v of the chains, shape (n, *event); drawn by the dynamics (for annealed Langevin from
            0.5 + N(0, I)) if not given. The probability flow always draws it, because it starts at the largest level.
        on_step: A function that is called after each step with the number of samples that took it.

    Returns:
        The samples, shape (n, *event).

    Raises:
        ConfigError: If the chains diverge.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> short = Sampler(dynamics=AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0))
        >>> draw_visible(short, GaussianLatentModel(v_dim=2, h_dim=3), torch.zeros(5, 3), seed=0).shape
        torch.Size([5, 2])
    """
    h = h.to(tensor_of(energy, h.device))
    conditional = energy if isinstance(energy, GibbsEnergy) else None

    def prepare(rows: slice, noise: SampleNoise) -> Chains:
        # v is drawn even if a start is given, so that the noise of the steps is the same in both cases.
        v = sampler.dynamics.start(tuple(energy.event_shape), noise, dtype=h.dtype)
        if isinstance(energy, AtLevel | MarginalAtLevel) and "levels" in sampler.dynamics.kinds:
            return of_every_level(energy, None, v, h[rows])
        v = v if start is None else start[rows].to(h)
        return Chains(energy.energy, (v,), given=(h[rows],), conditional=conditional)

    return sampler.run(energy, prepare, range(len(h)) if samples is None else samples, seed=seed, on_step=on_step)


def interpolate(corners: Tensor, n: int) -> Tensor:
    r"""Interpolate linearly between two corners, or over the parallelogram spanned by three corners.

    .. math:: x_i = a + \tfrac{i}{n - 1} (b - a), \quad
        x_{ij} = a + \tfrac{i}{n - 1} (b - a) + \tfrac{j}{n - 1} (c - a), \quad i, j \in \{0, \dots, n - 1\}

    Args:
        corners: The corners a, b and optionally c, shape (2 or 3, *shape).
        n: The number of points along each side, at least 2.

    Returns:
        The points, shape (n, *shape), or (n^2, *shape) with j running fastest.

    Example:
        >>> interpolate(torch.tensor([0.0, 4.0]), 3).tolist()
        [0.0, 2.0, 4.0]
        >>> interpolate(torch.tensor([0.0, 10.0, 1.0]), 2).tolist()
        [0.0, 1.0, 10.0, 11.0]
    """
    line = torch.linspace(0, 1, n, dtype=corners.dtype, device=corners.device)
    weights = torch.cartesian_prod(*[line] * (len(corners) - 1)).view(-1, len(corners) - 1)
    return corners[0] + torch.tensordot(weights, corners[1:] - corners[0], dims=1)


def draw_between(
    sampler: Sampler,
    energy: Energy,
    latents: Sequence[Tensor],
    n: int,
    *,
    seed: int,
    images: Sequence[Tensor] | None = None,
    on_step: Callable[[int], None] | None = None,
) -> list[Tensor]:
    r"""Draw v ~ p(v|h) for latents h that are interpolated between given latents.

    With ``images`` each chain has its own noise, and starts at the same interpolation of the images' pixels (Bao et
    al. 2020, code). Without ``images`` all chains share one start and one noise sequence, and differ only in their
    latents (Bao et al. 2021, code).

    Args:
        sampler: The sampler, which sets the dynamics and the number of chains that run at a time; the chains of all
            sets run together.
        energy: The joint energy.
        latents: The corners of each set of latents, one tensor (2 or 3, H) for each set.
        n: The number of points along each side, corners included.
        seed: The seed of the noise.
        images: The corners between which the chains' starts are interpolated, one tensor (2 or 3, *event) for each set.
        on_step: A function that is called after each step with the number of samples that took it.

    Returns:
        One tensor of samples for each set, in the order of :func:`interpolate`.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> short = Sampler(dynamics=AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0))
        >>> line, square = torch.randn(2, 3), torch.randn(3, 3)
        >>> [len(v) for v in draw_between(short, GaussianLatentModel(v_dim=2, h_dim=3), [line, square], 4, seed=0)]
        [4, 16]
    """
    parts = [interpolate(corners, n) for corners in latents]
    h = torch.cat(parts)
    start = None if images is None else torch.cat([interpolate(corners, n) for corners in images])
    samples = [0] * len(h) if images is None else None
    v = draw_visible(sampler, energy, h, seed=seed, samples=samples, start=start, on_step=on_step)
    return list(v.split([len(part) for part in parts]))


def can_inpaint(energy: Energy | None, dynamics: Dynamics | None = None, posterior: Posterior | None = None) -> bool:
    """Return whether the dynamics can draw missing pixels of images under this energy.

    The energy needs F(v) or real latents; for dynamics of the kind ``gibbs``, a known p(h|v) or binary layers; and for
    the probability flow, every noise level and F(v) or a posterior. Gibbs sweeps can sample every energy of binary v.
    """
    if dynamics is not None and "levels" in dynamics.kinds:
        return isinstance(energy, MarginalAtLevel) or (isinstance(energy, AtLevel) and posterior is not None)
    if dynamics is not None and "gibbs" in dynamics.kinds:
        return isinstance(energy, GibbsEnergy)
    return is_movable(energy) or (dynamics is None and isinstance(energy, GibbsEnergy))


def inpaint(
    sampler: Sampler,
    energy: Energy,
    v: Tensor,
    keep: Tensor,
    *,
    seed: int,
    h: Tensor | None = None,
    posterior: Posterior | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Tensor:
    r"""Draw the missing pixels of images given the kept pixels.

    .. math:: v \leftarrow v + (1 - m) \odot \bigl(\sqrt{T_t}\, \varepsilon\, \xi
        - \tfrac12 \varepsilon^2 \nabla_v E\bigr), \quad v_0 = m \odot v + (1 - m) \odot (0.5 + \xi_0)

    m is 1 at kept pixels, which stay exactly the same. The last step also changes only missing pixels. With
    given latents h, the chains follow E(., h). Without them they follow the free energy or, for a model that has none,
    E(v, h) with real latents that move together with v and so adapt to the kept pixels. See
    :class:`~eblvm_lit.samplers.probability_flow.ProbabilityFlow` for models of every noise level. Reference: Bao et al.
    2021, code; Li et al. 2019.

    Args:
        sampler: The sampler, which sets the dynamics and the number of chains that run at a time; its kind is not used.
        energy: The joint energy.
        v: Images, shape (n, *event); the values of missing pixels are not used.
        keep: The mask m, 1 where a pixel is kept and 0 where it is missing, shape (n, *event).
        seed: The seed of the noise.
        h: Fixed latents, shape (n, H), or None.
        posterior: The posterior q, which the probability flow needs for a model without a tractable F(v).
        on_step: A function that is called after each step with the number of samples that took it.

    Returns:
        One completion of each image, shape (n, *event).

    Raises:
        ConfigError: If the model has neither a free energy nor real latents, or if the chains diverge.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> short = Sampler(dynamics=AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0))
        >>> v, keep = torch.ones(1, 3), torch.tensor([[1.0, 0.0, 1.0]])
        >>> (inpaint(short, GaussianLatentModel(v_dim=3, h_dim=2), v, keep, seed=0) == v).tolist()
        [[True, False, True]]
    """
    dynamics = sampler.dynamics
    if not can_inpaint(energy, dynamics if h is None else None, posterior):
        raise ConfigError(
            f"{type(dynamics).__name__} does not complete images of {type(energy).__name__}: use an energy with a "
            "tractable F(v) or real latents; with GibbsLangevin, one with a known p(h|v); with the probability flow, "
            "one of every noise level."
        )
    p = tensor_of(energy, v.device)
    v = v.to(p)
    missing = 1 - keep.to(p)
    conditional = energy if isinstance(energy, GibbsEnergy) else None

    def prepare(rows: slice, noise: SampleNoise) -> Chains:
        moving = missing[rows]
        start = dynamics.start(tuple(energy.event_shape), noise, dtype=p.dtype)
        start = torch.where(moving == 0, v[rows], start)
        if isinstance(energy, AtLevel | MarginalAtLevel) and "levels" in dynamics.kinds:
            given = None if h is None else h[rows].to(p)
            return of_every_level(energy, posterior, start, given)._replace(moving=(moving,))
        if h is not None:
            return Chains(energy.energy, (start,), given=(h[rows].to(p),), moving=(moving,), conditional=conditional)
        if conditional is not None and "gibbs" in dynamics.kinds:
            return with_latents(conditional, start)._replace(moving=(moving, 1.0))
        if isinstance(energy, MarginalEnergy):
            return Chains(energy.free_energy, (start,), moving=(moving,))
        joint = (start, dynamics.start_latents(energy.h_dim, noise, dtype=p.dtype))
        denoised = (True, sampler.denoise_latents)
        return Chains(energy.energy, joint, moving=(moving, 1.0), denoised=denoised)

    return sampler.run(energy, prepare, range(len(v)), seed=seed, on_step=on_step)
