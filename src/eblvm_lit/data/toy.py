"""The base classes of generated data sets, and the checkerboard data set."""

# There is no "from __future__ import annotations" here, because it would turn annotations into strings. Subclasses in
# other modules inherit these dataclass fields. The check of a configuration evaluates their annotations in the module
# of the subclass, and some names in such strings may be unknown there.
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule, Splits, Window

__all__ = ["Checkerboard", "SampledData", "ToyDataModule"]


@dataclass(kw_only=True, eq=False)
class SampledData(ArrayDataModule):
    """A fixed sample of a distribution; a subclass sets ``sizes`` and ``sample_name``, and implements :meth:`sample`.

    Each split is drawn with its own random generator, keyed by (sample_seed, sample_name, split). So the points are the
    same for all training seeds, and no split depends on the size of another.

    Args:
        batch_size: Number of examples in a training batch.
        eval_batch_size: Number of examples in a validation or test batch.
        seed: Seed of the order of the training batches.
        sample_seed: Seed of the points.

    Attributes:
        sizes: Numbers of training, validation and test points.
        sample_name: The name of the distribution, part of the key of the random generators.

    Example:
        >>> one, other = Checkerboard(seed=1), Checkerboard(seed=2)
        >>> bool((one.load().train == other.load().train).all())
        True
    """

    sizes: ClassVar[tuple[int, int, int]]
    sample_name: ClassVar[str]

    sample_seed: Seed = 0

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Draw n points, shape (n, *event_shape), float32."""

    def load(self) -> Splits:
        """Draw the three splits, each with its own random generator."""
        generators = [keyed_generator(self.sample_seed, self.sample_name, split) for split in Splits._fields]
        return Splits(*map(self.sample, self.sizes, generators))


class ToyDataModule(SampledData):
    """A sample of a distribution on the plane; a subclass sets the window that figures show.

    Args:
        batch_size, eval_batch_size, seed, sample_seed: As in the base class.
    """

    event_shape = (2,)
    bounds: ClassVar[Window]
    sizes = (50_000, 10_000, 10_000)

    def log_density(self, v: torch.Tensor) -> torch.Tensor | None:  # noqa: ARG002 - for subclasses
        """Compute log p(v), shape (B,), for points v (B, 2); None if the density is not known."""
        return None


class Checkerboard(ToyDataModule):
    """The uniform distribution on two diagonally opposite quarters of the unit square.

        p(v) = 2 on [0, ½]² ∪ [½, 1]², 0 elsewhere

    so that the expected log-likelihood of a model is at most log 2.

    Reference: Bao et al. 2020 (BiSM), toy experiment. 60,000 training and 10,000 test points as there, and
    10,000 additional validation points. Splits are of shape (n, 2).

    Example:
        >>> v = Checkerboard().sample(1000, torch.Generator().manual_seed(0))
        >>> bool(((v < 0.5).sum(1) != 1).all())  # both coordinates in the lower half, or neither
        True
    """

    sample_name = "checkerboard"
    sizes = (60_000, 10_000, 10_000)
    bounds = ((-0.25, 1.25), (-0.25, 1.25))

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Draw n points v = (u + k) / 2, shape (n, 2), with u uniform on the unit square and k uniform on {0, 1}."""
        square = torch.randint(2, (n, 1), generator=generator)
        return (torch.rand(n, 2, generator=generator, dtype=torch.float32) + square) / 2

    def log_density(self, v: torch.Tensor) -> torch.Tensor:
        """Compute log p(v), shape (B,), for v (B, 2): log 2 on the two squares and minus infinity elsewhere."""
        lower = ((v >= 0) & (v < 0.5)).all(1)
        upper = ((v >= 0.5) & (v <= 1)).all(1)
        return torch.where(lower | upper, math.log(2), -math.inf).to(v.dtype)
