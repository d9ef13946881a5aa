"""The networks of BiDVL with the parameters of a step, the noise of a step, and one pass of the generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from eblvm_lit.core.functional import Params
from eblvm_lit.core.minibatch import WHOLE
from eblvm_lit.energies.base import Energy
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["Networks", "Noise", "Samples"]

# h_hat ~ N(0, I), and eps and eps_hat ~ N(0, I) of the encoder's h at v and at v_hat: each of shape (B, H). And v_hat
# (B, *event), where G(h_hat) has been computed.
Noise = dict[str, Tensor]


class Networks(NamedTuple):
    """The three networks as functions of the parameters of a step.

    Attributes:
        energy: E'(v; psi'), or E(v, h; psi) where it is not decoupled.
        encoder: q(h|v; omega_1).
        frozen_encoder: The encoder with its parameters held fixed: gradients go through its inputs alone.
        generator: G(h; omega_2), which maps h_hat ~ N(0, I) to v_hat.
        mean: Turns a mean over this process' rows into the mean over the whole minibatch.

    A baseline has no energy, or no encoder.
    """

    energy: Energy | None
    encoder: GaussianPosterior | None
    frozen_encoder: GaussianPosterior | None
    generator: nn.Module
    mean: Callable[[Tensor], Tensor] = WHOLE.mean

    def samples(self, noise: Noise) -> Tensor:
        """v_hat = G(h_hat), shape (B, *event); computed only if it has not been."""
        return noise["v_hat"] if "v_hat" in noise else self.generator(noise["h_hat"])


class Samples(NamedTuple):
    """One pass of the generator.

    Attributes:
        v_hat: G(h_hat), shape (B, *event), a constant.
        pull: The gradient in v_hat -> that in the generator's parameters, by name.
        buffers: The generator's buffers after the pass, by name.
    """

    v_hat: Tensor
    pull: Callable[[Tensor], Params]
    buffers: Params
