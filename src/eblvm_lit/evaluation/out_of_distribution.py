"""Detection of outliers by the energy, and the sets of outliers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import interpolate

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule, image_shape_of
from eblvm_lit.data.images import ValueRange, resample
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import ExampleMetric
from eblvm_lit.evaluation.detection import detection
from eblvm_lit.evaluation.outlier_score import has_outlier_score, outlier_score
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity

__all__ = [
    "Constant",
    "DataSet",
    "OutOfDistribution",
    "OutlierSet",
    "UniformNoise",
    "check_images",
    "detection",
    "fitted_to",
]


class OutlierSet(ABC):
    """A set of outliers."""

    def prepare(self, data: ArrayDataModule) -> None:  # noqa: B027 - most need nothing
        """Raise early the errors that :meth:`draw` would raise with these data."""

    @abstractmethod
    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Outliers of the shape, type and device of the data v, in any number."""


class _Uniform(OutlierSet):
    """Uniform numbers between two ends."""

    def __init__(self, *, low: float | None = None, high: float | None = None) -> None:
        self.low = low
        self.high = high

    def numbers(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Uniform numbers of the type and device of the data v; an end that is not given is that of v."""
        low = v.min() if self.low is None else self.low
        high = v.max() if self.high is None else self.high
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=v.dtype, device=v.device)


class UniformNoise(_Uniform):
    """Independent uniform numbers, as many as data.

    Args:
        low: Lower end; None for the least value of the data.
        high: Upper end; None for the largest value.

    Example:
        >>> noise = UniformNoise().draw(torch.tensor([[-1.0, 1.0]]).expand(50, 2), torch.Generator().manual_seed(0))
        >>> noise.shape, bool((noise.abs() <= 1).all()), bool((noise < -0.5).any())
        (torch.Size([50, 2]), True, True)
    """

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Shape of v."""
        return self.numbers(v, v.shape, generator)


class Constant(_Uniform):
    """Examples of one value each, drawn uniformly: flat images, as many as data.

    Args:
        low: Lower end of the values; None for the least value of the data.
        high: Upper end; None for the largest value.

    Example:
        >>> w = Constant(low=-1, high=1).draw(torch.zeros(5, 2), torch.Generator())
        >>> w.shape, bool((w[:, 0] == w[:, 1]).all()), len(w.unique())
        (torch.Size([5, 2]), True, 5)
    """

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Shape of v."""
        return self.numbers(v, (len(v), *[1] * (v.dim() - 1)), generator).expand_as(v)


class DataSet(OutlierSet):
    """The test split of another data set, brought to the data's size and channels.

    Images shrink by a whole factor as data do (``data.size``), by means of squares of pixels rounded to bytes: another
    filter would tell equal images apart. By others they are resized bilinearly, antialiased. Colours become grey by
    their mean, grey is repeated; values are brought to the data's scale.

    Args:
        data: Its data module; ``image_shape`` must be set.
        n_max: Largest number of examples; the first ones are used.
        value_range: Scale of the data it is compared with.
    """

    def __init__(
        self, *, data: ArrayDataModule, n_max: PositiveInt | None = None, value_range: ValueRange = "unit"
    ) -> None:
        self.data = data
        self.n_max = n_max
        self.value_range = value_range

    def prepare(self, data: ArrayDataModule) -> None:
        """Load the other set, whose files may be missing, and check that these data are images."""
        check_images(data.event_shape, type(self.data).__name__)
        self.data.setup()

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Shape (m, *event)."""
        self.data.setup()
        rows = self.data.splits.test[: self.n_max]
        w = self.data.as_float(_reduced(rows.view(len(rows), *image_shape_of(self.data)), v.shape[-2:])).to(v)
        own = getattr(self.data, "value_range", "unit")  # sets that are no ImageDataModule are in [0, 1]
        if own != self.value_range:
            w = 2 * w - 1 if own == "unit" else (w + 1) / 2
        return fitted_to(w, v)


def _reduced(images: Tensor, size: Sequence[int]) -> Tensor:
    """Squares of bytes (m, C, H, H), smaller by a whole factor; others as they are."""
    (height, width) = images.shape[-2:]
    (wanted, other) = size
    fit = images.dtype == torch.uint8 and height == width and wanted == other and height % wanted == 0
    return resample(images, padding=0, size=wanted) if fit else images


def fitted_to(w: Tensor, v: Tensor) -> Tensor:
    """Images w (m, C', H', W') brought to the channels and the size of images v (n, C, H, W).

    Example:
        >>> fitted_to(torch.rand(5, 3, 8, 8), torch.zeros(2, 1, 4, 4)).shape
        torch.Size([5, 1, 4, 4])
    """
    if w.shape[1] != v.shape[1]:
        w = w.mean(1, keepdim=True).expand(-1, v.shape[1], -1, -1)
    if w.shape[2:] != v.shape[2:]:
        w = interpolate(w, size=v.shape[2:], mode="bilinear", antialias=True, align_corners=False)
    return w


def check_images(event_shape: Sequence[int], name: str) -> None:
    """Refuse data that are no images.

    Raises:
        ConfigError: Names the outlier set that they cannot be compared with.
    """
    if len(event_shape) != 3:
        raise ConfigError(
            f"Examples of shape {tuple(event_shape)} are no images to compare with those of {name}: leave that outlier "
            "set out, or choose data of shape (C, H, W)."
        )


class OutOfDistribution(
    ExampleMetric,
    emits={"auroc_*": Quantity(1), "aupr_*": Quantity(1), "fpr95_*": Quantity(-1)},
):
    r"""Detection of outliers by :math:`-F(v)`: ``auroc_<set>``, ``aupr_<set>`` and ``fpr95_<set>``.

    F is the free energy where it is tractable; elsewhere the bound :math:`E_q[E(v, h) + \log q(h|v)] \ge F(v)` of the
    method's posterior, or E(v, h) at the h that its encoder gives. The order of examples alone counts: where F ends in
    a function that saturates, they are ranked by what comes before it. Reference: Kan et al. 2022, section 6.3 (data
    are the positive class).

    Args:
        sets: Outliers by name.
        n_particles: Latents of each bound.

    Raises:
        ConfigError: By :meth:`compute`, where F is NaN; infinity has a rank.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> metric = OutOfDistribution(sets={"noise": UniformNoise()})
        >>> list(metric.compute(method, torch.zeros(5, 2), torch.Generator()))
        ['auroc_noise', 'aupr_noise', 'fpr95_noise']
    """

    def __init__(self, *, sets: Mapping[str, OutlierSet | None], n_particles: PositiveInt = 10) -> None:
        self.sets = {name: outliers for name, outliers in sets.items() if outliers is not None}
        self.n_particles = n_particles

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether the metric applies; see :meth:`Metric.applies`."""
        return has_outlier_score(method.parts)

    def prepare(self, method: Method, data: ArrayDataModule) -> None:
        """Load the other data sets, and refuse those that cannot be resized to the shape of these data."""
        for outliers in self.sets.values():
            outliers.prepare(data)

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Detection of each set among the data v; see :meth:`ExampleMetric.compute`.

        Random numbers are keyed by the generator's seed and the set's name.
        """

        def keyed(*keys: str) -> torch.Generator:
            # of the seed alone: what one set draws does not move the numbers of another
            return keyed_generator(generator.initial_seed(), *keys, device=generator.device)

        def scores(x: Tensor, name: str, generator: torch.Generator) -> Tensor:
            found = outlier_score(method.parts, x, generator, n_particles=self.n_particles)
            if found.isnan().any():
                raise ConfigError(f"The energy of {name} is not a number, and so has no rank among others.")
            return found

        inside = scores(v, "test data", keyed("data"))
        found = {}
        for name, outliers in self.sets.items():
            own = keyed("outliers", name)
            values = detection(inside, scores(outliers.draw(v, own), f"the outliers {name!r}", own))
            found |= {f"{key}_{name}": value for key, value in values.items()}
        return found
