"""The free energy of an energy with one to three real latents, by quadrature on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eblvm_lit.core.tensors import by_rows
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError

__all__ = ["QuadratureMarginal"]

MAX_LATENTS = 3
FIRST = 100  # the number of examples in the first, quick check of a grid
ELEMENTS = 2**18  # maximum number of pairs (node, v) evaluated at once; larger batches are split into blocks


class QuadratureMarginal(MarginalEnergy):
    r"""A wrapper that computes the free energy of a model with one to three real latents by the trapezoidal rule.

    .. math:: F(v) = -\log \sum_s w_s\, e^{-E(v, h_s)}, \quad w_s = \Delta^m\, 2^{-\#\{j : h_{sj} \text{ outermost}\}}

    The nodes h_s form a grid around a centre, with n nodes per axis at a distance :math:`\Delta`. The error falls
    faster than any power of :math:`\Delta` where E is smooth in h, and as :math:`\Delta^4` for the deep energies, whose
    ELU has a jump in its second derivative. :meth:`check` refuses a grid that is too small or too coarse. The wrapper
    shares the energy's parameters. Reference: Trefethen and Weideman 2014.

    Args:
        energy: The joint energy E(v, h), whose latents are real.
        half_width: Half the width of the grid along each axis.
        n_nodes: The odd number n of nodes per axis. With an odd n every second node forms a grid of the same width,
            with which :meth:`check` compares.
        centre: The centre of the grid, one number for each latent or one for all of them.

    Raises:
        ConfigError: If the energy has binary latents, no latents or more than three.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> model, v = GaussianLatentModel(v_dim=2, h_dim=1).double(), torch.zeros(5, 2).double()
        >>> marginal = QuadratureMarginal(energy=model, half_width=8.0, n_nodes=41)
        >>> torch.allclose(marginal.free_energy(v), model.free_energy(v), rtol=1e-12)
        True
    """

    continuous = True

    def __init__(
        self, *, energy: Energy, half_width: float, n_nodes: int, centre: float | Sequence[float] = 0.0
    ) -> None:
        super().__init__()
        name = type(energy).__name__
        m = energy.h_dim
        if not energy.continuous or not 1 <= m <= MAX_LATENTS:
            kind = "real" if energy.continuous else "binary"
            raise ConfigError(f"Quadrature needs 1 to {MAX_LATENTS} real latents, but {name} has {m} {kind} ones.")
        self.centre = (float(centre),) * m if isinstance(centre, int | float) else tuple(map(float, centre))
        self.event_shape = tuple(energy.event_shape)
        self.h_dim = m
        self.joint = energy
        self.half_width = half_width
        self.n_nodes = n_nodes

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, *event) and h (*L, B, m)."""
        return self.joint.energy(v, h)

    def at(self, v: Tensor) -> Callable[[Tensor], Tensor]:
        """Return E(v, .) of the wrapped energy; see :meth:`Energy.at`."""
        return self.joint.at(v)

    def nodes(self, like: Tensor) -> Tensor:
        """Return the quadrature nodes h_s, shape (S, m) with S = n^m, in the dtype and on the device of ``like``."""
        options = {"dtype": like.dtype, "device": like.device}
        axis = torch.linspace(-self.half_width, self.half_width, self.n_nodes, **options)
        return torch.stack(torch.meshgrid(*(axis + x for x in self.centre), indexing="ij"), -1).flatten(0, -2)

    def _n_outermost(self, like: Tensor) -> Tensor:
        """Count, for each node of the grid, the axes along which the node is outermost, shape (S,)."""
        outermost = torch.arange(self.n_nodes, device=like.device) % (self.n_nodes - 1) == 0
        return torch.stack(torch.meshgrid(*[outermost] * self.h_dim, indexing="ij")).sum(0).flatten()

    def log_weights(self, like: Tensor) -> Tensor:
        """Compute the logarithms of the quadrature weights w_s, shape (S,), with the dtype and device of ``like``."""
        step = 2 * self.half_width / (self.n_nodes - 1)
        return self.h_dim * math.log(step) - math.log(2) * self._n_outermost(like).to(like.dtype)

    def _log_joint(self, v: Tensor) -> Tensor:
        """Compute the unnormalised log density -E(v, h_s) for each v and each node h_s, shape (B, S)."""
        return -self.at(v)(self.nodes(v).unsqueeze(1).expand(-1, len(v), -1)).T

    def _by_rows(self, fn: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        return by_rows(fn, ELEMENTS // self.n_nodes**self.h_dim, v)

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the free energy F(v), shape (B,), for v (B, *event)."""
        return -self._by_rows(lambda v: (self._log_joint(v) + self.log_weights(v)).logsumexp(-1), v)

    def _probabilities(self, v: Tensor) -> Tensor:
        """Compute the posterior probability :math:`w_s p(h_s|v)` of each node h_s with weight w_s, shape (B, S)."""
        return (self._log_joint(v) + self.log_weights(v)).softmax(-1)

    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E[h|v], shape (B, m)."""
        return self._by_rows(lambda v: self._probabilities(v) @ self.nodes(v), v)

    def boundary_mass(self, v: Tensor) -> Tensor:
        """Compute the probability mass of p(h|v) on the outermost nodes of the grid, shape (B,)."""
        return self._by_rows(lambda v: self._probabilities(v)[:, self._n_outermost(v) > 0].sum(-1), v)

    def coarse_error(self, v: Tensor) -> Tensor:
        """Compute the absolute change of the free energy F(v) if only every second node per axis is used, shape (B,).

        It estimates the error of the coarser grid.
        """
        grid = [self.n_nodes] * self.h_dim
        every_second = [slice(None), *[slice(None, None, 2)] * self.h_dim]

        def gap(v: Tensor) -> Tensor:
            terms = self._log_joint(v) + self.log_weights(v)
            coarse = terms.unflatten(1, grid)[tuple(every_second)].flatten(1).logsumexp(-1)
            return (coarse + self.h_dim * math.log(2) - terms.logsumexp(-1)).abs()

        return self._by_rows(gap, v)

    @torch.no_grad()
    def check(self, v: Tensor, tolerance: float = 1e-6) -> None:
        """Raise an error if the grid is too small to contain p(h|v) or too coarse to resolve it.

        A mode of p(h|v) far outside of the grid is not detected.

        Args:
            v: Examples, shape (B, *event).
            tolerance: The largest allowed :meth:`boundary_mass` and :meth:`coarse_error`; float32 rounding needs a
                larger one than the default.

        Raises:
            ConfigError: If one of the two is larger, or not finite, for any example.
        """
        for some in (v[:FIRST], v[FIRST:]):  # first v[:FIRST], on which a grid that is too small usually fails
            mass = self.boundary_mass(some).max().item() if len(some) else 0.0
            if not mass <= tolerance:
                raise ConfigError(
                    f"The outermost nodes have {mass:.1e} of the mass of p(h|v), more than {tolerance:g}: raise "
                    "half_width, or move centre to where the latents are."
                )
        error = self.coarse_error(v).max().item()
        if not error <= tolerance:
            raise ConfigError(
                f"With half of the nodes the free energy moves by {error:.1e}, more than {tolerance:g}: raise n_nodes."
            )
