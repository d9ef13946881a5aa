"""An energy of v only, given by a multilayer perceptron."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.ranges import Sizes
from eblvm_lit.energies.base import VisibleEnergy
from eblvm_lit.networks.layers import linear_layers

__all__ = ["MLPEnergy"]


class MLPEnergy(VisibleEnergy):
    r"""The energy of v given by an MLP with softplus activations, with an optional normal factor.

    .. math:: F(v) = a^\top f_n(\dots f_1(v)) + \frac{\|v\|^2}{2 s^2}, \quad f_i(x) = \mathrm{softplus}(A_i x + a_i)

    For points in the plane, four hidden layers of 128 units without the normal factor are published (Schroeder et al.
    2023, arXiv:2307.06431). Far from the data the network is linear in v, and the integral of exp(-F) may be infinite;
    the normal factor makes it finite. The last layer has no bias, which would cancel in p(v).

    Args:
        v_dim: The size of v.
        widths: The width of each hidden layer.
        base_std: The standard deviation s of the normal factor, in the units of v; null for no normal factor.

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
        """Compute the energy F(v), shape (B,), for v (B, v_dim)."""
        value = self.network(v).squeeze(-1)
        return value if self.base_std is None else value + 0.5 * (v / self.base_std).square().sum(-1)
