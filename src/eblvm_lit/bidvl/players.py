"""Who takes part in doubly variational learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params
from eblvm_lit.energies.base import Energy
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["Noise", "Players", "Samples", "draw_noise"]

# h_hat ~ N(0, I), and eps and eps_hat ~ N(0, I) of the encoder's h at v and at v_hat: each of shape (B, H). And v_hat
# (B, *event), where G(h_hat) has been computed.
Noise = dict[str, Tensor]


class Players(NamedTuple):
    """The three networks with the parameters they have here and now.

    Attributes:
        energy: E'(v; psi'), or E(v, h; psi) where it is not decoupled.
        encoder: q(h|v; omega_1).
        frozen_encoder: The same with parameters that are held fixed: a gradient goes through what it is given alone.
        generator: G(h; omega_2), which makes v_hat of h_hat ~ N(0, I).

    A baseline's energy, or its encoders, are None.
    """

    energy: Energy | None
    encoder: GaussianPosterior | None
    frozen_encoder: GaussianPosterior | None
    generator: nn.Module

    def samples(self, noise: Noise) -> Tensor:
        """v_hat = G(h_hat), shape (B, *event); computed only if it has not been."""
        return noise["v_hat"] if "v_hat" in noise else self.generator(noise["h_hat"])


class Samples(NamedTuple):
    """One pass of the generator.

    Attributes:
        v_hat: G(h_hat), shape (B, *event), a constant.
        pull: The gradient in v_hat -> that in the generator's parameters, by their names in ``omega``.
        buffers: Those of the generator after the pass, by their names in ``omega``.
    """

    v_hat: Tensor
    pull: Callable[[Tensor], Params]
    buffers: Params


def draw_noise(v: Tensor, h_dim: int, generator: torch.Generator) -> Noise:
    """Standard normal numbers for one step, of v's type and device, each of shape (B, h_dim).

    Example:
        >>> noise = draw_noise(torch.zeros(5, 2), 3, torch.Generator())
        >>> {name: tuple(value.shape) for name, value in noise.items()}
        {'h_hat': (5, 3), 'eps': (5, 3), 'eps_hat': (5, 3)}
    """
    size = (len(v), h_dim)
    return {
        name: torch.randn(size, generator=generator, dtype=v.dtype, device=v.device)
        for name in ("h_hat", "eps", "eps_hat")
    }
