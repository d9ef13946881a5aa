"""The base class of feature extractors: networks whose features are used to compare images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.utils.quantities import WORDS

__all__ = ["FeatureExtractor", "Features", "Titles"]


class Features(NamedTuple):
    """The output of a network for B images: features (B, D), and class logits (B, K) or, without classes, None."""

    rows: Tensor
    logits: Tensor | None


class Titles(NamedTuple):
    """The names of the criteria's results; each name tells which network has computed the features."""

    frechet: str
    kernel: str
    inception_score: str
    suffix: str = ""  # the suffix that is appended to the names of all other criteria

    def of(self, criterion: str) -> str:
        """Append the network's suffix to the name of a criterion that has no field in this tuple.

        Example:
            >>> Titles("fd_raw", "kd_raw", "raw_score", "_raw").of("precision")
            'precision_raw'
        """
        return f"{criterion}{self.suffix}"


class FeatureExtractor(ABC):
    """The base class of fixed networks whose features are used to compare sets of images.

    Attributes:
        name: A short name, part of file names.
        titles: Names of the criteria computed from the network's features.
        dim: The number D of features.
        resize: A description of how the network resizes images.
        batch_size: Number of images passed through the network at a time.
        classifies: Whether the network returns class logits; final only after :meth:`prepare`.
        fingerprint: A digest of the network's weights, in hexadecimal digits; set by :meth:`prepare`.
        version: The version of weights that are part of the package; None for others. Set by :meth:`prepare`.
    """

    name: str
    titles: Titles
    dim: int
    resize: str
    batch_size: int
    classifies: bool = True
    fingerprint: str = ""
    version: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        WORDS.extend([cls.titles._asdict()] if hasattr(cls, "titles") else [])

    def lacking(self, data: ArrayDataModule) -> str:
        """Return a few words on what is not at hand of that which :meth:`prepare` needs; empty if nothing is lacking.

        Args:
            data: The reference data, after ``setup``.
        """
        return ""

    @abstractmethod
    def prepare(self, data: ArrayDataModule) -> None:
        """Load, download or train the network if necessary, so that errors are raised here and not by :meth:`extract`.

        Args:
            data: The reference data, after ``setup``.
        """

    @abstractmethod
    def extract(self, images: Tensor) -> Features:
        """Compute, without gradients, the features of images, and the class logits if the network returns them.

        Args:
            images: Grey or colour images, uint8, shape (B, C, H, W).

        Returns:
            Features and logits, float32, on the device of the images.
        """
