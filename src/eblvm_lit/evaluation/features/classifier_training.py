"""The training of a classifier on a data set's labels, and its test accuracy."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.evaluation.features.image_bytes import as_images
from eblvm_lit.networks.image_classifier import ImageClassifier
from eblvm_lit.utils.progress import progress_bar

__all__ = ["accuracy", "centred", "fit"]

ROWS = 500


def centred(images: Tensor) -> Tensor:
    """Convert uint8 images to floats in [-1, 1].

    Example:
        >>> centred(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([-1.,  1.])
    """
    return images.float() / 127.5 - 1


def fit(
    network: ImageClassifier, data: ArrayDataModule, *, n_steps: int, batch_size: int, lr: float, seed: int
) -> None:
    """Minimise the cross-entropy of the training labels with Adam and cosine annealing of the learning rate.

    Args:
        network: The network, which is trained in place, on the CPU.
        data: The data, after ``setup``, with class labels (n,) or with attributes of zeros and ones (n, n_attributes).
        n_steps: Number of batches.
        batch_size: Number of images in a batch, drawn with replacement.
        lr: Initial learning rate.
        seed: Seed of the batches.
    """
    images = data.splits.train
    labels = cast(Splits, data.labels).train
    generator = keyed_generator(seed, "classifier", "batches")
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    # Metrics are evaluated under torch.no_grad, but training needs gradients.
    with torch.enable_grad(), progress_bar("classifier", n_steps) as on_step:
        for _ in range(n_steps):
            chosen = torch.randint(len(images), (batch_size,), generator=generator)
            _, logits = network(centred(as_images(data, images[chosen])))
            loss = _loss(logits, labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            on_step(1)


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    if labels.dim() == 1:
        return cross_entropy(logits, labels)
    return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


@torch.no_grad()
def accuracy(network: ImageClassifier, data: ArrayDataModule) -> float:
    """Compute the fraction of the test split's labels or attribute values that the network predicts correctly."""
    images = data.splits.test
    labels = cast(Splits, data.labels).test
    right = 0
    for rows in torch.arange(len(images)).split(ROWS):
        _, logits = network(centred(as_images(data, images[rows])))
        found = logits.argmax(-1) if labels.dim() == 1 else (logits > 0).long()
        right += int((found == labels[rows]).sum())
    return right / labels.numel()
