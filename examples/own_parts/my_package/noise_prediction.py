"""An objective: denoising score matching in units of the noise."""

from torch import Tensor

from eblvm_lit.objectives.base import Noise, ScoreFunction
from eblvm_lit.objectives.dsm import DSM


class NoisePrediction(DSM):
    """The loss 1/2 |sigma s + eps|^2, which is sigma^2 times DSM's loss, so that its size does not depend on sigma.

    Args:
        noise_std: sigma, in the units of v.
    """

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Compute the loss per example, shape (B,)."""
        return self.noise_std**2 * super().loss(score, v, noise)

    def cotangent(self, s: Tensor, v: Tensor, noise: Noise) -> Tensor:
        """Compute the derivative of the loss by the score s, shape (B, *event)."""
        return self.noise_std**2 * super().cotangent(s, v, noise)
