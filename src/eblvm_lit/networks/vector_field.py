"""A neural vector field, such as a Fisher critic."""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor, nn

from eblvm_lit.networks.layers import linear_layers

__all__ = ["VectorField"]


class VectorField(nn.Module):
    """A map from R^d to R^d: linear layers of width d with ELU between them.

    With three layers it is the published critic (Bao et al. 2021, appendix).

    Args:
        v_dim: The size d of v, which is also the width of all layers.
        n_layers: The number of linear layers.

    Example:
        >>> import torch
        >>> VectorField(v_dim=2)(torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """

    def __init__(self, *, v_dim: PositiveInt, n_layers: PositiveInt = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(*linear_layers([v_dim] * (n_layers + 1), nn.ELU)[:-1])

    def forward(self, v: Tensor) -> Tensor:
        """Compute the vector field at v (B, *event); the result has the shape of v."""
        return self.layers(v.flatten(1)).view_as(v)
