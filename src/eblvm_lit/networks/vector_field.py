"""Vector fields."""

from __future__ import annotations

from torch import Tensor, nn

from eblvm_lit.errors import ConfigError

__all__ = ["VectorField"]


class VectorField(nn.Module):
    """Linear layers of one width with ELU between them: a map of R^d to itself.

    With three layers the published critic (Bao et al. 2021, appendix).

    Args:
        v_dim: Size d of v, and width of all layers.
        n_layers: Number of linear layers.

    Raises:
        ConfigError: For a number below one.

    Example:
        >>> import torch
        >>> VectorField(v_dim=2)(torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """

    def __init__(self, *, v_dim: int, n_layers: int = 3) -> None:
        super().__init__()
        if v_dim < 1 or n_layers < 1:
            raise ConfigError(f"A vector field needs v_dim and n_layers >= 1, not {v_dim} and {n_layers}.")
        layers: list[nn.Module] = []
        for _ in range(n_layers):
            layers += [nn.Linear(v_dim, v_dim), nn.ELU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, v: Tensor) -> Tensor:
        """The field, shape (B, *event), of v (B, *event)."""
        return self.layers(v.flatten(1)).view_as(v)
