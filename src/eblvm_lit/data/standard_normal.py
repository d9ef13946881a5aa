"""Samples of a standard normal distribution, whose score is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.errors import ConfigError

__all__ = ["StandardNormalData"]


@dataclass(kw_only=True, eq=False)
class StandardNormalData(ArrayDataModule):
    """Samples of a standard normal distribution.

        p(v) = N(v; 0, I_d): the marginal over v of a GRBM with W = b = c = 0 and sigma = 1

    Reference: Bao et al. 2021, appendix F.3: 20,000 samples of such a GRBM. Splits are of shape (16000, d), (2000, d)
    and (2000, d), each drawn with a separate generator.

    Args:
        v_dim: The dimension d.
        batch_size: Rows of a training batch.
        eval_batch_size: Rows of a validation or test batch.
        seed: Seed of the order of the training batches.
        sample_seed: Seed of the points.

    Raises:
        ConfigError: If v_dim is below one.

    Example:
        >>> data = StandardNormalData(v_dim=3)
        >>> [tuple(split.shape) for split in data.load()], data.score(torch.ones(1, 3)).tolist()
        ([(16000, 3), (2000, 3), (2000, 3)], [[-1.0, -1.0, -1.0]])
    """

    sizes = (16_000, 2_000, 2_000)
    sample_name = "standard_normal"

    v_dim: int
    sample_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.v_dim < 1:
            raise ConfigError(f"data.v_dim must be at least 1, and is {self.v_dim}.")
        self.event_shape = (self.v_dim,)

    def score(self, v: torch.Tensor) -> torch.Tensor:
        """grad_v log p(v) = -v, shape (B, d)."""
        return -v

    def load(self) -> Splits:
        """Draw the three splits."""
        return Splits(
            *(
                torch.randn(
                    n,
                    *self.event_shape,
                    generator=keyed_generator(self.sample_seed, self.sample_name, split),
                    dtype=torch.float32,
                )
                for n, split in zip(self.sizes, Splits._fields, strict=True)
            )
        )
