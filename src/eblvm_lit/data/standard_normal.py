"""Samples of a standard normal distribution, whose score is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import PositiveInt

from eblvm_lit.data.toy import SampledData

__all__ = ["StandardNormalData"]


@dataclass(kw_only=True, eq=False)
class StandardNormalData(SampledData):
    """Samples of a standard normal distribution.

        p(v) = N(v; 0, I_d): the marginal over v of a GRBM with W = b = c = 0 and sigma = 1

    Reference: Bao et al. 2021, appendix F.3: 20,000 samples of such a GRBM. Splits are of shape (16000, d), (2000, d)
    and (2000, d), each drawn with a separate generator.

    Args:
        v_dim: The dimension d of v.
        batch_size: Number of examples in a training batch.
        eval_batch_size: Number of examples in a validation or test batch.
        seed: Seed of the order of the training batches.
        sample_seed: Seed of the points.

    Example:
        >>> data = StandardNormalData(v_dim=3)
        >>> [tuple(split.shape) for split in data.load()], data.score(torch.ones(1, 3)).tolist()
        ([(16000, 3), (2000, 3), (2000, 3)], [[-1.0, -1.0, -1.0]])
    """

    sizes = (16_000, 2_000, 2_000)
    sample_name = "standard_normal"

    v_dim: PositiveInt

    def __post_init__(self) -> None:
        super().__post_init__()
        self.event_shape = (self.v_dim,)

    def score(self, v: torch.Tensor) -> torch.Tensor:
        """Return the score of the distribution, grad_v log p(v) = -v, shape (B, d)."""
        return -v

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Draw n independent points, shape (n, d)."""
        return torch.randn(n, self.v_dim, generator=generator, dtype=torch.float32)
