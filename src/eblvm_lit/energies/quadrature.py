"""The free energy of an energy of few real latents, by quadrature on a grid."""

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
FIRST = 100  # examples at which a grid is checked first
ELEMENTS = 2**18  # pairs of a node and a v; more v are computed one block after another


class QuadratureMarginal(MarginalEnergy):
    r"""A view of an energy of one to three real latents that has a free energy, by the trapezoidal rule.

    .. math:: F(v) = -\log \sum_s w_s\, e^{-E(v, h_s)}, \quad w_s = \Delta^m\, 2^{-\#\{j : h_{sj} \text{ outermost}\}}

    The nodes h_s are a grid of n nodes an axis, :math:`\Delta` apart, around a centre. The error falls faster than any
    power of :math:`\Delta` where E is smooth in h, and as :math:`\Delta^4` for the deep energies, whose ELU has a jump
    in its second derivative. :meth:`check` refuses a grid that is too small or too coarse. The energy's parameters are
    those of the view. Reference: Trefethen and Weideman 2014.

    Args:
        energy: E(v, h), whose latents are real.
        half_width: Half the width of the grid along each axis.
        n_nodes: n, odd: every second node is a grid, too, which :meth:`check` compares.
        centre: Of the grid, a number for each latent or one for all.

    Raises:
        ConfigError: For an energy of binary latents, none or more than three; or for a grid that is none.

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
            raise ConfigError(f"Quadrature needs 1 to {MAX_LATENTS} real latents, {name} has {m} {kind} ones.")
        if n_nodes < 5 or n_nodes % 2 == 0 or not half_width > 0:
            raise ConfigError(
                f"A grid of quadrature needs an odd n_nodes >= 5 and a half_width > 0, not {n_nodes} and {half_width}."
            )
        self.centre = (float(centre),) * m if isinstance(centre, int | float) else tuple(map(float, centre))
        self.event_shape = tuple(energy.event_shape)
        self.h_dim = m
        self.joint = energy
        self.half_width = half_width
        self.n_nodes = n_nodes

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h), shape (*L, B), of v (B, *event) and h (*L, B, m)."""
        return self.joint.energy(v, h)

    def at(self, v: Tensor) -> Callable[[Tensor], Tensor]:
        """E(v, .) of the energy; see :meth:`Energy.at`."""
        return self.joint.at(v)

    def nodes(self, like: Tensor) -> Tensor:
        """h_s, shape (S, m), S = n^m, of like's type and device."""
        options = {"dtype": like.dtype, "device": like.device}
        axis = torch.linspace(-self.half_width, self.half_width, self.n_nodes, **options)
        return torch.stack(torch.meshgrid(*(axis + x for x in self.centre), indexing="ij"), -1).flatten(0, -2)

    def _n_outermost(self, like: Tensor) -> Tensor:
        """In how many axes each node is outermost, shape (S,)."""
        outermost = torch.arange(self.n_nodes, device=like.device) % (self.n_nodes - 1) == 0
        return torch.stack(torch.meshgrid(*[outermost] * self.h_dim, indexing="ij")).sum(0).flatten()

    def log_weights(self, like: Tensor) -> Tensor:
        """log w_s, shape (S,), of like's type and device."""
        step = 2 * self.half_width / (self.n_nodes - 1)
        return self.h_dim * math.log(step) - math.log(2) * self._n_outermost(like).to(like.dtype)

    def _log_joint(self, v: Tensor) -> Tensor:
        """-E(v, h_s), shape (B, S)."""
        return -self.at(v)(self.nodes(v).unsqueeze(1).expand(-1, len(v), -1)).T

    def _by_rows(self, fn: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        return by_rows(fn, ELEMENTS // self.n_nodes**self.h_dim, v)

    def free_energy(self, v: Tensor) -> Tensor:
        """F(v), shape (B,), of v (B, *event)."""
        return -self._by_rows(lambda v: (self._log_joint(v) + self.log_weights(v)).logsumexp(-1), v)

    def _probabilities(self, v: Tensor) -> Tensor:
        """:math:`w_s p(h_s|v)`, shape (B, S)."""
        return (self._log_joint(v) + self.log_weights(v)).softmax(-1)

    def latent_mean(self, v: Tensor) -> Tensor:
        """E[h|v], shape (B, m)."""
        return self._by_rows(lambda v: self._probabilities(v) @ self.nodes(v), v)

    def boundary_mass(self, v: Tensor) -> Tensor:
        """The probability that the outermost nodes stand for, shape (B,)."""
        return self._by_rows(lambda v: self._probabilities(v)[:, self._n_outermost(v) > 0].sum(-1), v)

    def coarse_error(self, v: Tensor) -> Tensor:
        """How far F(v) is from its value with every second node, shape (B,): the error of that coarser rule."""
        grid = [self.n_nodes] * self.h_dim
        every_second = [slice(None), *[slice(None, None, 2)] * self.h_dim]

        def gap(v: Tensor) -> Tensor:
            terms = self._log_joint(v) + self.log_weights(v)
            coarse = terms.unflatten(1, grid)[tuple(every_second)].flatten(1).logsumexp(-1)
            return (coarse + self.h_dim * math.log(2) - terms.logsumexp(-1)).abs()

        return self._by_rows(gap, v)

    @torch.no_grad()
    def check(self, v: Tensor, tolerance: float = 1e-6) -> None:
        """Refuse a grid that does not hold p(h|v), or does not resolve it. A mode far outside of it is not seen.

        Args:
            v: Shape (B, *event).
            tolerance: Largest :meth:`boundary_mass` and :meth:`coarse_error`; rounding in float32 asks for more.

        Raises:
            ConfigError: Where one of them is larger, or not finite.
        """
        for some in (v[:FIRST], v[FIRST:]):  # a grid that does not fit seldom fits any
            mass = self.boundary_mass(some).max().item() if len(some) else 0.0
            if not mass <= tolerance:
                raise ConfigError(
                    f"The outermost nodes hold {mass:.1e} of p(h|v), more than {tolerance:g}: raise half_width, or "
                    "move centre to where the latents are."
                )
        error = self.coarse_error(v).max().item()
        if not error <= tolerance:
            raise ConfigError(
                f"With every second node the free energy is off by {error:.1e}, more than {tolerance:g}: raise n_nodes."
            )
