"""The feature statistics of a set of images, computed in batches and by several processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import zip_longest
from typing import NamedTuple, cast

import torch
from torch import Tensor

from eblvm_lit.core.ranks import gather_objects, rank_and_size
from eblvm_lit.evaluation.features.base import FeatureExtractor
from eblvm_lit.evaluation.frechet import Gaussian, Moments
from eblvm_lit.utils.printing import say
from eblvm_lit.utils.progress import progress_bar

__all__ = ["FeatureSet", "collect", "cost_of"]

LONG = 60  # the number of seconds from which on the time and the memory of a network's features are told beforehand


class FeatureSet(NamedTuple):
    """The feature statistics of n images: mean and covariance and, optionally, features (n, D) and logits (n, K)."""

    n: int
    gaussian: Gaussian
    rows: Tensor | None = None
    logits: Tensor | None = None


def collect(
    features: FeatureExtractor,
    fetch: Callable[[Tensor], Tensor],
    n: int,
    *,
    device: torch.device | str = "cpu",
    rows: bool = False,
    logits: bool = False,
) -> FeatureSet:
    """Pass n images through a network, and collect the statistics of its features.

    Each of R processes computes every R-th batch; all processes return the statistics of all images. If this takes
    long, a line tells the time and the memory after the second batch; the first one takes longer, because it also reads
    the data and prepares the network.

    Args:
        features: The network, after ``prepare``.
        fetch: A function that maps B indices in {0..n-1} to the images with these indices, uint8, shape (B, C, H, W).
        n: Number of images.
        device: Device on which the network is evaluated.
        rows: Whether to keep the features of each image.
        logits: Whether to keep the class logits of each image.

    Returns:
        The statistics, on the CPU.
    """
    rank, size = rank_and_size()
    moments = Moments(features.dim)
    kept = []
    classes = []
    # Use the same batches as a single process does: the last digits of an image's features depend on its batch.
    batches = torch.arange(n).split(features.batch_size)[rank::size]
    with progress_bar(f"features of {features.name}", sum(map(len, batches)), visible=rank == 0) as on_step:
        for i, numbers in enumerate(batches):
            began = time.monotonic()
            found = features.extract(fetch(numbers).to(device))
            moments.update(found.rows)
            if rows:
                kept.append(found.rows.cpu())
            if logits:
                classes.append(cast(Tensor, found.logits).cpu())
            on_step(len(numbers))
            if i == 1 and rank == 0 and (seconds := (time.monotonic() - began) * len(batches)) >= LONG:
                say(cost_of(features.name, n, features.dim, seconds=seconds, rows=rows))
    return FeatureSet(n, moments.gaussian(), _gather(kept) if rows else None, _gather(classes) if logits else None)


def cost_of(name: str, n: int, dim: int, *, seconds: float, rows: bool) -> str:
    """Return a line with the time that n images take, and the memory that their features of D values need.

    The memory is that of the sums for the covariance, 16 D² bytes, and of the n D features in float32, if they are
    kept. Criteria that compare each sample with each example need twice as much again, in float64.

    Example:
        >>> cost_of("inception", 50_000, 2048, seconds=5400, rows=True)
        'features of inception: 50,000 images take about 90 minutes, and 455 MiB of memory'
    """
    mib = (16 * dim**2 + (4 * n * dim if rows else 0)) / 2**20
    return f"features of {name}: {n:,} images take about {seconds / 60:.0f} minutes, and {mib:,.0f} MiB of memory"


def _gather(own: list[Tensor]) -> Tensor:
    """Gather the batches of all processes, and put them in the order of the images."""
    return torch.cat([x for some in zip_longest(*gather_objects(own)) for x in some if x is not None])
