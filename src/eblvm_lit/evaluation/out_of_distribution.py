"""How well the energy tells data from what is not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from pytorch_lightning import LightningDataModule, LightningModule
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor
from torch.nn.functional import interpolate

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.data.images import ValueRange
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import ExampleMetric
from eblvm_lit.evaluation.free_energy_bound import free_energy_bound, has_free_energy_bound

__all__ = ["Constant", "DataSet", "OutOfDistribution", "OutlierSet", "UniformNoise", "detection"]


def detection(inside: Tensor, outside: Tensor) -> dict[str, float]:
    r"""AUROC, AUPR and FPR95 of a score that should be higher inside of the distribution.

    AUROC is the probability that :math:`s(v) > s(w)`, ties counting half; AUPR takes the data for the positive class;
    FPR95 is the part of the outliers above the score that 95 % of the data exceed. All are functions of the ranks:
    scores of any size will do.

    Args:
        inside: Scores of data, shape (n,).
        outside: Scores of outliers, shape (m,).

    Example:
        >>> detection(torch.tensor([5.0, 7.0]), torch.tensor([1.0, 6.0]))["auroc"]
        0.75
    """
    scores = torch.cat([inside, outside]).double().cpu().numpy()
    labels = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    false_positives, true_positives, _ = roc_curve(labels, scores, drop_intermediate=False)
    return {
        "auroc": float(roc_auc_score(labels, scores)),
        "aupr": float(average_precision_score(labels, scores)),
        "fpr95": float(false_positives[np.searchsorted(true_positives, 0.95)]),
    }


class OutlierSet(ABC):
    """Examples that are not data."""

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Raise what would stop :meth:`draw`."""

    @abstractmethod
    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Outliers of the shape, type and device of the data v, in any number."""


class UniformNoise(OutlierSet):
    """Independent uniform numbers, as many as data.

    Args:
        low: Lower end.
        high: Upper end.

    Example:
        >>> UniformNoise().draw(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5, 2])
    """

    def __init__(self, *, low: float = 0.0, high: float = 1.0) -> None:
        if not low < high:
            raise ConfigError(f"Uniform noise needs low < high, not {low} and {high}.")
        self.low, self.high = low, high

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Shape of v."""
        u = torch.rand(v.shape, generator=generator, dtype=v.dtype, device=v.device)
        return self.low + (self.high - self.low) * u


class Constant(OutlierSet):
    """Examples of one value each, drawn uniformly: flat images, as many as data.

    Args:
        low: Lower end of the values.
        high: Upper end.

    Example:
        >>> w = Constant().draw(torch.zeros(5, 2), torch.Generator())
        >>> w.shape, bool((w[:, 0] == w[:, 1]).all())
        (torch.Size([5, 2]), True)
    """

    def __init__(self, *, low: float = 0.0, high: float = 1.0) -> None:
        if not low < high:
            raise ConfigError(f"Constant examples need low < high, not {low} and {high}.")
        self.low, self.high = low, high

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Shape of v."""
        u = torch.rand(len(v), generator=generator, dtype=v.dtype, device=v.device)
        return (self.low + (self.high - self.low) * u).view(-1, *[1] * (v.dim() - 1)).expand_as(v)


class DataSet(OutlierSet):
    """The test split of another data set, brought to the data's size and channels.

    Images are resized (bilinear, antialiased where they shrink); colours become grey by their mean, grey is repeated;
    values are brought to the data's scale.

    Args:
        data: Its data module; ``image_shape`` must be set.
        n_max: Use so many examples at most, the first ones.
        value_range: Scale of the data it is compared with.

    Raises:
        ConfigError: If either set has no images, or for an unknown value_range.
    """

    def __init__(
        self, *, data: LightningDataModule, n_max: int | None = None, value_range: ValueRange = "unit"
    ) -> None:
        if data.image_shape is None:
            raise ConfigError(f"{type(data).__name__} has no images: it cannot be brought to another set's size.")
        if value_range not in ("unit", "symmetric"):
            raise ConfigError(f"An outlier set's value_range is 'unit' or 'symmetric', not {value_range!r}.")
        self.data, self.n_max, self.value_range = data, n_max, value_range

    def prepare(self) -> None:
        """Load the other set: its files may be missing."""
        self.data.setup()

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002 - these are what they are
        """Shape (m, *event)."""
        if v.dim() != 4:
            raise ConfigError(f"Examples of shape {tuple(v.shape[1:])} are no images to compare with others.")
        self.data.setup()
        w = self.data.as_float(self.data.splits.test[: self.n_max]).to(v)
        own = getattr(self.data, "value_range", "unit")  # sets that are no ImageDataModule are in [0, 1]
        if own != self.value_range:
            w = 2 * w - 1 if own == "unit" else (w + 1) / 2
        w = w.view(len(w), *self.data.image_shape)
        if w.shape[1] != v.shape[1]:
            w = w.mean(1, keepdim=True).expand(-1, v.shape[1], -1, -1)
        if w.shape[2:] != v.shape[2:]:
            w = interpolate(w, size=v.shape[2:], mode="bilinear", antialias=True, align_corners=False)
        return w


class OutOfDistribution(ExampleMetric):
    r"""Detection of outliers by :math:`-F(v)`: ``auroc_<set>``, ``aupr_<set>`` and ``fpr95_<set>``.

    F is the free energy where it is tractable; elsewhere the bound :math:`E_q[E(v, h) + \log q(h|v)] \ge F(v)` of the
    method's posterior. Reference: Kan et al. 2022, section 6.3 (data are the positive class).

    Args:
        sets: Outliers by name.
        n_particles: Latents of each bound.

    Raises:
        ConfigError: With no particle.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> method = LightningModule()
        >>> method.energy, metric = GRBM(v_dim=2, h_dim=3), OutOfDistribution(sets={"noise": UniformNoise()})
        >>> list(metric.compute(method, torch.zeros(5, 2), torch.Generator()))
        ['auroc_noise', 'aupr_noise', 'fpr95_noise']
    """

    def __init__(self, *, sets: Mapping[str, OutlierSet | None], n_particles: int = 10) -> None:
        if n_particles < 1:
            raise ConfigError(f"A bound of the free energy needs n_particles >= 1, not {n_particles}.")
        self.sets = {name: outliers for name, outliers in sets.items() if outliers is not None}
        self.n_particles = n_particles

    def prepare(self, method: LightningModule, data: ArrayDataModule) -> None:  # noqa: ARG002
        """Load the other data sets."""
        for outliers in self.sets.values():
            outliers.prepare()

    @torch.no_grad()
    def compute(self, method: LightningModule, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Detection of each set among the data v; see :meth:`ExampleMetric.compute`."""
        energy, posterior = getattr(method, "energy", None), getattr(method, "posterior", None)
        if not has_free_energy_bound(energy, posterior):
            return {}

        def scores(x: Tensor) -> Tensor:
            return -free_energy_bound(energy, posterior, x, generator, n_particles=self.n_particles)

        inside, found = scores(v), {}
        for name, outliers in self.sets.items():
            values = detection(inside, scores(outliers.draw(v, generator)))
            found |= {f"{key}_{name}": value for key, value in values.items()}
        return found
