"""The base class of feature extractors, the networks in whose features images are compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.utils.quantities import WORDS

__all__ = ["FeatureExtractor", "Features", "Titles"]


class Features(NamedTuple):
    """A network's output for B images: features (B, D) and class logits (B, K), None without classes."""

    rows: Tensor
    logits: Tensor | None


class Titles(NamedTuple):
    """Names of the criteria; each name tells the network that was used."""

    frechet: str
    kernel: str
    inception_score: str
    suffix: str = ""  # of all other criteria

    def of(self, criterion: str) -> str:
        """The name of another criterion.

        Example:
            >>> Titles("fd_raw", "kd_raw", "raw_score", "_raw").of("precision")
            'precision_raw'
        """
        return f"{criterion}{self.suffix}"


class FeatureExtractor(ABC):
    """A fixed network in whose features sets of images are compared.

    Attributes:
        name: Short; part of the names of files.
        titles: Names of the criteria computed from its features.
        dim: D, the number of features.
        resize: How it resizes images.
        batch_size: Images at a time.
        classifies: Whether it gives logits of classes; final after :meth:`prepare`.
        fingerprint: A digest of its weights, in hexadecimal digits; set by :meth:`prepare`.
    """

    name: str
    titles: Titles
    dim: int
    resize: str
    batch_size: int
    classifies: bool = True
    fingerprint: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        WORDS.extend([cls.titles._asdict()] if hasattr(cls, "titles") else [])

    @abstractmethod
    def prepare(self, data: ArrayDataModule) -> None:
        """Load, download or train the network, unless that was done; raise early the errors of :meth:`extract`.

        Args:
            data: The reference data, set up.
        """

    @abstractmethod
    def extract(self, images: Tensor) -> Features:
        """Features of images, and logits where there are any, as float32 on their device; without gradients.

        Args:
            images: uint8, shape (B, C, H, W), grey or in colour.
        """
