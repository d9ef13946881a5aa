"""A multilayer perceptron as the energy of v alone."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.ranges import Sizes
from eblvm_lit.energies.base import VisibleEnergy
from eblvm_lit.networks.layers import linear_layers

__all__ = ["MLPEnergy"]


class MLPEnergy(VisibleEnergy):
    r"""Linear layers with softplus between them, and a normal factor on request.

    .. math:: F(v) = a^\top f_n(\dots f_1(v)) + \frac{\|v\|^2}{2 s^2}, \quad f_i(x) = \mathrm{softplus}(A_i x + a_i)

    Four hidden layers of 128 units and no normal factor are published for points of the plane (Schroeder et al. 2023,
    arXiv:2307.06431). Far from the data the network is linear in v, and exp(-F) may have an infinite integral; with the
    normal factor it always has a finite one. A constant would cancel in p(v), so there is none.

    Args:
        v_dim: Size of v.
        widths: Width of each hidden layer.
        base_std: s, in the units of v; null for no normal factor.

    Example:
        >>> import torch
        >>> energy = MLPEnergy(v_dim=2, widths=[8, 8])
        >>> energy(torch.zeros(5, 2)).shape, energy.score(torch.zeros(5, 2)).shape
        (torch.Size([5]), torch.Size([5, 2]))
    """

    def __init__(
        self, *, v_dim: PositiveInt, widths: Sizes = (128, 128, 128, 128), base_std: PositiveFloat | None = None
    ) -> None:
        super().__init__()
        self.event_shape = (v_dim,)
        self.base_std = base_std
        layers = linear_layers([v_dim, *widths], nn.Softplus)
        self.network = nn.Sequential(*layers, nn.Linear(widths[-1], 1, bias=False))

    def free_energy(self, v: Tensor) -> Tensor:
        """F(v), shape (B,), of v (B, v_dim)."""
        value = self.network(v).squeeze(-1)
        return value if self.base_std is None else value + 0.5 * (v / self.base_std).square().sum(-1)
