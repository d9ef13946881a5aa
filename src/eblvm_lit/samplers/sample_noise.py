"""Noise that depends on a sample's index, and not on the batch in which the sample is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from eblvm_lit.core.seeding import derive_seed

__all__ = ["SampleNoise"]

# The maximum number of random numbers that a batch of 64 samples draws at once; see SampleNoise.steps.
CHUNK = 2**22


class SampleNoise:
    """A set of random number generators, one for each sample of a batch.

    The numbers of sample i depend only on (seed, i) and on the earlier calls: they are the same in a batch of 1 and
    of 64, and in any process. Two samples with the same index share their noise.

    Args:
        seed: The run's seed.
        samples: The index of each sample of the batch.
        device: The device that draws the numbers; a GPU draws other numbers than a CPU.

    Example:
        >>> one, all_four = SampleNoise(0, [2]), SampleNoise(0, [0, 1, 2, 3])
        >>> a, b = one((3,)), all_four((3,))
        >>> a.shape, b.shape, bool((a[0] == b[2]).all())
        (torch.Size([1, 3]), torch.Size([4, 3]), True)
    """

    def __init__(self, seed: int, samples: Sequence[int], *, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        # The seeds are consecutive numbers, and so they are distinct. If each seed were a 32-bit hash of the sample's
        # index, some of 50,000 seeds would be equal.
        base = derive_seed(seed, "samples")
        self.generators = [torch.Generator(self.device).manual_seed((base + i) % 2**32) for i in samples]

    def __len__(self) -> int:
        return len(self.generators)

    def __call__(self, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw standard normal numbers, shape (B, *shape)."""
        return self.rows(lambda g: torch.randn(shape, generator=g, dtype=dtype, device=self.device))

    def rows(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        """Call ``draw`` with the generator of each sample, and stack the results, shape (B, *shape of one result)."""
        return torch.stack([draw(generator) for generator in self.generators])

    def steps(
        self, n: int, normal: int, uniform: int = 0, *, dtype: torch.dtype = torch.float32
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for each of n steps, standard normal numbers (B, normal) and uniform numbers in [0, 1) (B, uniform).

        The numbers of several steps are drawn together, to limit both the
        number of calls and the memory. How many steps are drawn together does not depend on the batch size, and so
        the numbers do not depend on it either.
        """
        length = max(1, min(50, CHUNK // (64 * (normal + uniform))))
        for first in range(0, n, length):
            rows = min(length, n - first)
            pieces = self((rows, normal), dtype=dtype), self.uniform((rows, uniform), dtype=dtype)
            yield from zip(*(piece.unbind(1) for piece in pieces), strict=True)

    def uniform(self, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw uniform numbers in [0, 1), shape (B, *shape)."""
        return self.rows(lambda g: torch.rand(shape, generator=g, dtype=dtype, device=self.device))

    def integers(self, high: int) -> Tensor:
        """Draw one uniform integer in [0, high) for each sample, shape (B,)."""
        return self.rows(lambda g: torch.randint(high, (), generator=g, device=self.device))
