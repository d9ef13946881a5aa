"""Vector fields."""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor, nn

from eblvm_lit.networks.layers import linear_layers

__all__ = ["VectorField"]


class VectorField(nn.Module):
    """Linear layers of one width with ELU between them: a map of R^d to itself.

    With three layers the published critic (Bao et al. 2021, appendix).

    Args:
        v_dim: Size d of v, and width of all layers.
        n_layers: Number of linear layers.

    Example:
        >>> import torch
        >>> VectorField(v_dim=2)(torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """

    def __init__(self, *, v_dim: PositiveInt, n_layers: PositiveInt = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(*linear_layers([v_dim] * (n_layers + 1), nn.ELU)[:-1])

    def forward(self, v: Tensor) -> Tensor:
        """The field, shape (B, *event), of v (B, *event)."""
        return self.layers(v.flatten(1)).view_as(v)
