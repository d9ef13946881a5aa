"""A small convolutional classifier for images of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

__all__ = ["ImageClassifier"]


class ImageClassifier(nn.Module):
    """A classifier of four 3x3 convolutions, average pooling to 2 x 2 pixels, and two linear layers.

    The second and the fourth convolution halve the resolution.

    Args:
        v_shape: The channels, height and width of an image.
        n_classes: The number of logits.
        width: The number of channels of the first two convolutions; the others have twice as many.
        out_dim: The number of features that the last layer maps to the logits.

    Example:
        >>> features, logits = ImageClassifier(v_shape=[3, 8, 10], n_classes=5)(torch.zeros(7, 3, 8, 10))
        >>> features.shape, logits.shape
        (torch.Size([7, 128]), torch.Size([7, 5]))
    """

    def __init__(self, *, v_shape: Sequence[int], n_classes: int, width: int = 32, out_dim: int = 128) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        sizes = (v_shape[0], width, 1), (width, width, 2), (width, 2 * width, 1), (2 * width, 2 * width, 2)
        for n_in, n_out, stride in sizes:
            layers += [nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, out_dim), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(out_dim, n_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):  # PyTorch's default weights are too small for short training
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(cast(Tensor, layer.bias))
        self.to(memory_format=torch.channels_last)  # a convolution's output has the format of its kernel

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the features (B, out_dim) and logits (B, n_classes) of images v (B, C, H, W)."""
        features = self.body(v)
        return features, self.head(features)
