"""Deep energies whose latents have neither a tractable posterior nor a tractable marginal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.networks.residual_mlp import ResidualMLP

__all__ = ["DeepLatentEnergy", "DeepVectorEnergy"]


class DeepLatentEnergy(Energy):
    r"""Features of v, coupled with real latents, under a squared norm.

    .. math:: E(v, h) = \sum_k \mathrm{ELU}(A x + a)_k^2, \quad x = (g(v) + h,\; h), \quad g(v) = B\, g_1(v) + b

    The features g(v) cost a pass through the network, and are had once for all latents. E >= 0. Reference: Bao et
    al. 2020, section 5.2, and code; Bao et al. 2021.

    Args:
        network: g_1, a module that maps v (B, *event) to features (B, network.out_dim), and says network.event_shape.
        h_dim: Number of latents m.
        head_dim: Rows of A.

    Raises:
        ConfigError: For a size below one.

    Example:
        >>> from eblvm_lit.networks.mlp import MLP
        >>> deep = DeepLatentEnergy(network=MLP(sizes=[2, 8]), h_dim=3, head_dim=8)
        >>> deep.energy(torch.zeros(5, 2), torch.zeros(7, 5, 3)).shape
        torch.Size([7, 5])
    """

    continuous = True

    def __init__(self, *, network: nn.Module, h_dim: int, head_dim: int) -> None:
        super().__init__()
        if h_dim < 1 or head_dim < 1:
            raise ConfigError(f"A deep energy needs h_dim >= 1 and head_dim >= 1, not {h_dim} and {head_dim}.")
        self.event_shape, self.h_dim = tuple(network.event_shape), h_dim
        self.network = network
        self.f2h = nn.Linear(network.out_dim, h_dim)
        self.head = nn.Linear(2 * h_dim, head_dim)

    def features(self, v: Tensor) -> Tensor:
        """g(v), shape (B, m), of v (B, *event)."""
        return self.f2h(self.network(v))

    def energy_of_features(self, features: Tensor, h: Tensor) -> Tensor:
        """E, shape (*L, B), of g(v) (B, m) and h (*L, B, m)."""
        return elu(self.head(torch.cat([features + h, h], dim=-1))).square().sum(-1)

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h), shape (*L, B), of v (B, *event) and h (*L, B, m)."""
        return self.energy_of_features(self.features(v), h)


class DeepVectorEnergy(DeepLatentEnergy):
    r"""The deep energy of vectors, with residual blocks for a network.

    Its defaults are the published toy model's. Reference: Bao et al. 2021, code.

    Args:
        v_dim: Size of v.
        h_dim: Number of latents m.
        head_dim: Rows of A.
        widths: Width of each residual block of g_1.

    Raises:
        ConfigError: For a size below one, or no block.

    Example:
        >>> DeepVectorEnergy(v_dim=2, h_dim=10)(torch.zeros(5, 2), torch.zeros(5, 10)).shape
        torch.Size([5])
    """

    def __init__(
        self, *, v_dim: int, h_dim: int = 10, head_dim: int = 100, widths: Sequence[int] = (100, 100, 100)
    ) -> None:
        if min([v_dim, *widths]) < 1:
            raise ConfigError(f"A deep energy needs v_dim and widths >= 1, not {v_dim} and {list(widths)}.")
        super().__init__(network=ResidualMLP(sizes=[v_dim, *widths]), h_dim=h_dim, head_dim=head_dim)
