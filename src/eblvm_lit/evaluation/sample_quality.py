"""Criteria that compare a model's images with data: FID, KID, the Inception score, and variants with other networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import PositiveInt

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import ImageSource
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.evaluation.criteria.base import SampleCriterion
from eblvm_lit.evaluation.features.base import FeatureExtractor
from eblvm_lit.evaluation.features.reference import ReferenceImages
from eblvm_lit.evaluation.features.sets import FeatureSet, collect
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity

__all__ = ["SampleQuality"]


class SampleQuality(
    Metric,
    emits={
        "classifier_version": Quantity(0, "", "the version of the package's classifier, if that is the network used")
    },
):
    """Criteria such as FID that compare a model's images with data, computed from the features of one network.

    Each image passes through the network once, for all criteria. The names of the numbers show which network is used:
    ``fid``, ``kid`` and ``inception_score`` use Inception, ``fd_classifier`` uses a classifier. Validations and the
    final test differ only in the number of samples. Distances are strongly biased upwards if there are no more samples
    than the network has features.

    Args:
        images: The source of the model's images.
        features: The network that computes features.
        reference: The images with which the model's images are compared.
        criteria: The criteria to compute, by name; a criterion that is None is skipped.
        n_samples: Number of the model's images for the final test.
        n_samples_at_validation: Number of the model's images at each validation.
    """

    needs = "what its source of images needs"  # the page of all metrics shows `needs` of the source instead
    collective = True

    def __init__(
        self,
        *,
        images: ImageSource,
        features: FeatureExtractor,
        reference: ReferenceImages,
        criteria: Mapping[str, SampleCriterion | None],
        n_samples: PositiveInt = 50_000,
        n_samples_at_validation: PositiveInt = 1000,
    ) -> None:
        self.criteria = {name: criterion for name, criterion in criteria.items() if criterion is not None}
        self.images = images
        self.features = features
        self.reference = reference
        self.n_samples = {"test": n_samples, "val": n_samples_at_validation}
        self.rows = any(criterion.needs_rows for criterion in self.criteria.values())
        self.logits = any(criterion.needs_logits for criterion in self.criteria.values())

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        return self.images.supports(method, data)

    def prepare(self, method: Method, data: ArrayDataModule) -> None:
        """Load or train the network, and compute the features of the reference images, unless they are cached.

        Raises:
            ConfigError: If a criterion needs more samples or examples than there are, or if it needs class logits and
                the network has none.
        """
        n = min(*self.n_samples.values(), self.reference.size(data))
        for name, criterion in self.criteria.items():
            most = min(n, getattr(criterion, "n_max", None) or n)
            if most < criterion.fewest:
                raise ConfigError(
                    f"The criterion {name} needs {criterion.fewest} samples and as many examples, but has only {most}: "
                    "draw more samples, also at validations, or change its settings."
                )
        self._load(method, data)
        if self.logits and not self.features.classifies:
            raise ConfigError(
                f"The network {self.features.name} has no classes, which the Inception score needs: set "
                "criteria.inception_score=null."
            )

    def _load(self, method: Method, data: ArrayDataModule) -> FeatureSet:
        self.features.prepare(data)
        return self.reference.load(data, self.features, device=method.device, rows=self.rows)

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Compare the model's images with data; see :meth:`Metric.evaluate`."""
        reference = self._load(method, data)
        n = self.n_samples[split]
        images = self.images.images(method, data, n)
        samples = collect(
            self.features, lambda i: images[i], n, device=method.device, rows=self.rows, logits=self.logits
        )
        version = self.features.version
        found: dict[str, float] = {} if version is None else {f"{self.features.name}_version": version}
        for criterion in self.criteria.values():
            found |= criterion.compute(samples, reference, self.features.titles)
        return found
