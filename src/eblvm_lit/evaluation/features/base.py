"""What every network offers that images are compared by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule

__all__ = ["FeatureExtractor", "Features", "Titles"]


class Features(NamedTuple):
    """What a network says of B images: features (B, D) and class logits (B, K), None where it knows no classes."""

    rows: Tensor
    logits: Tensor | None


class Titles(NamedTuple):
    """What numbers computed from the features of a network are called: each name says which network that was."""

    frechet: str
    kernel: str
    inception_score: str


class FeatureExtractor(ABC):
    """A fixed network in whose features sets of images are compared.

    Attributes:
        name: Short; part of the names of files.
        titles: Names of the numbers computed from its features.
        dim: D, the number of features.
        resize: How it brings images to its size.
        batch_size: Images at a time.
    """

    name: str
    titles: Titles
    dim: int
    resize: str
    batch_size: int

    @abstractmethod
    def prepare(self, data: ArrayDataModule) -> None:
        """Load, fetch or train the network where that was not done yet; raise what would stop :meth:`extract`.

        Args:
            data: What its images are compared with, set up.
        """

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hexadecimal digits that tell its weights from all others, once :meth:`prepare` has run."""

    @abstractmethod
    def extract(self, images: Tensor) -> Features:
        """Features of images, and logits where there are any, as float32 on their device; without gradients.

        Args:
            images: uint8, shape (B, C, H, W), grey or in colour.
        """

    def describe(self) -> dict[str, str | int | float]:
        """What a number was computed with."""
        return {"extractor": self.name, "fingerprint": self.fingerprint, "dim": self.dim, "resize": self.resize}
