"""The base classes of generated data sets, and the checkerboard."""

# Annotations are not postponed: subclasses in other modules inherit these fields, and their signatures are evaluated.
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
    """A fixed sample of a distribution; a subclass sets the sizes and the name, and implements :meth:`sample`.

    Each split is drawn with a generator keyed by (sample_seed, sample_name, split): all training seeds use the
    same points, and no split depends on the size of another.

    Args:
        batch_size: Rows of a training batch.
        eval_batch_size: Rows of a validation or test batch.
        seed: Seed of the order of the training batches.
        sample_seed: Seed of the points.

    Attributes:
        sizes: Numbers of training, validation and test points.
        sample_name: The name that keys the generator of the points.

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
        """Draw the three splits."""
        generators = [keyed_generator(self.sample_seed, self.sample_name, split) for split in Splits._fields]
        return Splits(*map(self.sample, self.sizes, generators))


class ToyDataModule(SampledData):
    """A sample of a distribution on the plane; a subclass sets the window.

    Args:
        batch_size, eval_batch_size, seed, sample_seed: As in the base class.
    """

    event_shape = (2,)
    bounds: ClassVar[Window]
    sizes = (50_000, 10_000, 10_000)

    def log_density(self, v: torch.Tensor) -> torch.Tensor | None:  # noqa: ARG002 - of those that have a density
        """log p(v), shape (B,), of v (B, 2); None where there is no density, or none that is known."""
        return None


class Checkerboard(ToyDataModule):
    """The uniform distribution on two squares of the unit square that touch at its centre.

        p(v) = 2 on [0, ½]² ∪ [½, 1]², 0 elsewhere

    so that no model's mean log-likelihood exceeds log 2.

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
        """Draw v = (u + k) / 2, u uniform on the unit square and k ∈ {0, 1} the square; shape (n, 2)."""
        square = torch.randint(2, (n, 1), generator=generator)
        return (torch.rand(n, 2, generator=generator, dtype=torch.float32) + square) / 2

    def log_density(self, v: torch.Tensor) -> torch.Tensor:
        """log 2 on the two squares and minus infinity elsewhere, shape (B,), of v (B, 2)."""
        lower = ((v >= 0) & (v < 0.5)).all(1)
        upper = ((v >= 0.5) & (v <= 1)).all(1)
        return torch.where(lower | upper, math.log(2), -math.inf).to(v.dtype)
