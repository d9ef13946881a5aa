"""Noise that belongs to a sample and not to the batch it is drawn in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eblvm_lit.core.seeding import derive_seed

__all__ = ["SampleNoise"]


class SampleNoise:
    """Standard normal numbers of each sample's own.

    Those of sample i are a function of (seed, i) and of what was asked for before: the same in a batch of 1 and of 64,
    in this process and in another. An index that is given twice gets the same numbers twice, which is how samples
    share their noise.

    Args:
        seed: The run's seed.
        samples: Index of each sample of the batch.
        device: Where the numbers are drawn; a GPU draws others than a CPU.

    Example:
        >>> one, all_four = SampleNoise(0, [2]), SampleNoise(0, [0, 1, 2, 3])
        >>> a, b = one((3,)), all_four((3,))
        >>> a.shape, b.shape, bool((a[0] == b[2]).all())
        (torch.Size([1, 3]), torch.Size([4, 3]), True)
    """

    def __init__(self, seed: int, samples: Sequence[int], *, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        # Consecutive seeds: hashes of 50,000 indices to 32 bits would meet.
        base = derive_seed(seed, "samples")
        self.generators = [torch.Generator(self.device).manual_seed((base + i) % 2**32) for i in samples]

    def __len__(self) -> int:
        return len(self.generators)

    def __call__(self, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32) -> Tensor:
        """The next numbers, shape (B, *shape)."""
        options = {"dtype": dtype, "device": self.device}
        return torch.stack([torch.randn(shape, generator=g, **options) for g in self.generators])

    def integers(self, high: int) -> Tensor:
        """One integer in [0, high) for each sample, shape (B,)."""
        options = {"device": self.device}
        return torch.cat([torch.randint(high, (1,), generator=g, **options) for g in self.generators])
