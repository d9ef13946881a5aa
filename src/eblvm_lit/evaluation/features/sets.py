"""Feature statistics of a set of images, computed in batches and by several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from eblvm_lit.core.ranks import gather_rows, rank_and_size
from eblvm_lit.evaluation.features.base import FeatureExtractor
from eblvm_lit.evaluation.frechet import Gaussian, Moments
from eblvm_lit.utils.progress import progress_bar

__all__ = ["FeatureSet", "collect"]


class FeatureSet(NamedTuple):
    """Features of n images: mean and covariance, and optionally all features (n, D) and logits (n, K), on the CPU."""

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
    """Pass n images through a network once, and collect the statistics of its features.

    Of R processes each computes every R-th image; all of them get the statistics of all images.

    Args:
        features: The network, prepared.
        fetch: The images of given numbers (B,) in {0..n-1}: uint8, shape (B, C, H, W).
        n: Number of images.
        device: Where the network is evaluated.
        rows: Whether the features are kept.
        logits: Whether the logits are.
    """
    rank, size = rank_and_size()
    moments, kept, classes = Moments(features.dim), [], []
    own = torch.arange(rank, n, size)
    with progress_bar(f"features of {features.name}", len(own), visible=rank == 0) as on_step:
        for numbers in own.split(features.batch_size):
            found = features.extract(fetch(numbers).to(device))
            moments.update(found.rows)
            if rows:
                kept.append(found.rows.cpu())
            if logits:
                classes.append(cast(Tensor, found.logits).cpu())
            on_step(len(numbers))
    return FeatureSet(n, moments.gaussian(), _gather(kept, n), _gather(classes, n))


def _gather(parts: list[Tensor], n: int) -> Tensor | None:
    return gather_rows(torch.cat(parts), n) if parts else None
