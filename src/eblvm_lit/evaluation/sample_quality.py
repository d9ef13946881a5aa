"""Distances between a model's images and data: FID, KID, Inception score, and others by other networks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from eblvm_lit.core.ranks import rank_and_size
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.evaluation.criteria.base import SampleCriterion
from eblvm_lit.evaluation.features.base import FeatureExtractor
from eblvm_lit.evaluation.features.reference import ReferenceImages
from eblvm_lit.evaluation.features.sets import FeatureSet, collect
from eblvm_lit.evaluation.samples.image_source import ImageSource
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.io import write_json

__all__ = ["SampleQuality"]

log = logging.getLogger(__name__)


class SampleQuality(Metric):
    """Criteria such as FID, computed from one pass of a model's images through one network.

    The network determines the names of the metrics: ``fid``, ``kid`` and ``inception_score`` by Inception,
    ``fd_classifier`` by a classifier. A record of how they were computed is written to
    ``<save_dir>/<first name>.json``. Validations and the final test differ in the number of samples alone.

    Args:
        images: Where the model's images come from.
        features: The network.
        reference: What they are compared with.
        criteria: What is computed, by name.
        n_samples: Number of images for the test split's numbers.
        n_samples_at_validation: Number of images at validations.
        save_dir: Folder of the record.

    Raises:
        ConfigError: Without a criterion, or for fewer than two images.
    """

    collective = True

    def __init__(
        self,
        *,
        images: ImageSource,
        features: FeatureExtractor,
        reference: ReferenceImages,
        criteria: Mapping[str, SampleCriterion | None],
        n_samples: int = 50_000,
        n_samples_at_validation: int = 1000,
        save_dir: str,
    ) -> None:
        self.criteria = {name: criterion for name, criterion in criteria.items() if criterion is not None}
        if not self.criteria:
            raise ConfigError("The quality of samples needs at least one criterion.")
        if min(n_samples, n_samples_at_validation) < 2:
            raise ConfigError(
                "A covariance needs n_samples >= 2 and n_samples_at_validation >= 2, "
                f"not {n_samples} and {n_samples_at_validation}."
            )
        if not features.classifies and any(criterion.needs_logits for criterion in self.criteria.values()):
            raise ConfigError(
                f"The network {features.name} knows no classes, which the Inception score needs: set "
                "criteria.inception_score=null."
            )
        self.images, self.features, self.reference, self.save_dir = images, features, reference, save_dir
        self.n_samples = {"test": n_samples, "val": n_samples_at_validation}
        self._records: dict[str, Any] = {}
        self._warned: set[int] = set()

    def names(self, method: Method, data: ArrayDataModule) -> Sequence[str] | None:
        """The names of the numbers; see :meth:`Metric.names`."""
        if not self.images.supports(method, data):
            return []
        found: list[str] = []
        for criterion in self.criteria.values():
            names = criterion.names(self.features.titles)
            if names is None:
                return None
            found += names
        return found

    def prepare(self, method: Method, data: ArrayDataModule) -> None:
        """Load or train the network, and compute the features of the reference images, unless they are cached."""
        if self.images.supports(method, data):
            for n in self.n_samples.values():
                self._check(n, data)
            self._load(method, data)

    def _check(self, n: int, data: ArrayDataModule) -> None:
        for criterion in self.criteria.values():
            criterion.check(n, self.reference.size(data))

    def _load(self, method: Method, data: ArrayDataModule) -> tuple[FeatureSet, Path]:
        self.features.prepare(data)
        rows = any(criterion.needs_rows for criterion in self.criteria.values())
        return self.reference.load(data, self.features, device=method.device, rows=rows)

    def evaluate(
        self,
        method: Method,
        data: ArrayDataModule,
        split: str,
        generator: torch.Generator,  # noqa: ARG002 - the images are keyed by the run's seed
    ) -> dict[str, float]:
        """Compare the model's images with data; see :meth:`Metric.evaluate`."""
        if not self.images.supports(method, data):
            return {}
        n = self.n_samples[split]
        self._check(n, data)
        reference, path = self._load(method, data)
        self._warn_of_bias(min(n, reference.n))
        images = self.images.images(method, data, n)
        samples = collect(
            self.features,
            lambda i: images[i],
            n,
            device=method.device,
            rows=any(criterion.needs_rows for criterion in self.criteria.values()),
            logits=any(criterion.needs_logits for criterion in self.criteria.values()),
        )
        found: dict[str, float] = {}
        for criterion in self.criteria.values():
            found |= criterion.compute(samples, reference, self.features.titles)
        self._record(split, found, n, {"split": self.reference.split, "n": reference.n, "file": str(path)})
        return found

    def _warn_of_bias(self, n: int) -> None:
        dim = self.features.dim
        if n <= dim and n not in self._warned and rank_and_size()[0] == 0:
            self._warned.add(n)
            log.warning(
                "%d images in %d dimensions of features: their covariance is not of full rank, and distances of sets "
                "are biased upwards.",
                n,
                dim,
            )

    def _record(self, split: str, found: Mapping[str, float], n: int, reference: Mapping[str, Any]) -> None:
        """Write the last numbers of each split, with the settings they were computed with."""
        settings = {name: criterion.describe() for name, criterion in self.criteria.items()}
        self._records[split] = {
            "values": dict(found),
            "n_samples": n,
            "features": self.features.describe(),
            "reference": dict(reference),
            "criteria": settings,
        }
        if rank_and_size()[0] == 0:
            write_json(Path(self.save_dir) / f"{next(iter(found))}.json", self._records)
