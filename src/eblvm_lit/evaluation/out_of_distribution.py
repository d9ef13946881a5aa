"""The detection of outliers by a model's energy, and the sets of outliers."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import interpolate

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule, image_shape_of
from eblvm_lit.data.images import ValueRange, resample
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import ExampleMetric
from eblvm_lit.evaluation.detection import detection
from eblvm_lit.evaluation.outlier_score import has_outlier_score, parts_at_levels, scores_to_rank
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity

__all__ = [
    "Constant",
    "DataSet",
    "OutOfDistribution",
    "OutlierSet",
    "UniformNoise",
    "detection",
    "fitted_to",
]


class OutlierSet(ABC):
    """The base class of outlier sets: examples that the model's energy should distinguish from data."""

    def prepare(self, data: ArrayDataModule) -> None:  # noqa: B027 - most sets need no preparation
        """Check before training that :meth:`draw` will work with the data, and raise an error if it will not."""

    @abstractmethod
    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Return m outliers, shape (m, *event), with the dtype and device of the data v; each outlier set chooses m."""


class _Uniform(OutlierSet):
    """The base class of outliers that consist of uniform random numbers in an interval."""

    def __init__(self, *, low: float | None = None, high: float | None = None) -> None:
        self.low = low
        self.high = high

    def numbers(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw uniform numbers with the dtype and device of v; a bound that is None is the minimum or maximum of v."""
        low = v.min() if self.low is None else self.low
        high = v.max() if self.high is None else self.high
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=v.dtype, device=v.device)


class UniformNoise(_Uniform):
    """Outliers whose values are independent uniform random numbers; there are as many outliers as examples.

    Args:
        low: Lower end of the values; None for the smallest value of the data.
        high: Upper end of the values; None for the largest value of the data.

    Example:
        >>> noise = UniformNoise().draw(torch.tensor([[-1.0, 1.0]]).expand(50, 2), torch.Generator().manual_seed(0))
        >>> noise.shape, bool((noise.abs() <= 1).all()), bool((noise < -0.5).any())
        (torch.Size([50, 2]), True, True)
    """

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw outliers in the shape of v; see :meth:`OutlierSet.draw`."""
        return self.numbers(v, v.shape, generator)


class Constant(_Uniform):
    """Outliers that are constant: all values of an outlier are the same uniform random number, as in a grey image.

    There are as many outliers as examples.

    Args:
        low: Lower end of the values; None for the smallest value of the data.
        high: Upper end of the values; None for the largest value of the data.

    Example:
        >>> w = Constant(low=-1, high=1).draw(torch.zeros(5, 2), torch.Generator())
        >>> w.shape, bool((w[:, 0] == w[:, 1]).all()), len(w.unique())
        (torch.Size([5, 2]), True, 5)
    """

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw outliers in the shape of v; see :meth:`OutlierSet.draw`."""
        return self.numbers(v, (len(v), *[1] * (v.dim() - 1)), generator).expand_as(v)


class DataSet(OutlierSet):
    """The test split of another data set, converted to the size, the channels and the value range of the data.

    Square uint8 images that must shrink by an integer factor are averaged over squares of pixels and rounded to uint8,
    exactly as ``data.size`` does with the data: otherwise, a model could distinguish outliers by the traces of another
    filter. All other images are resized bilinearly with antialiasing. Colours are converted to grey by averaging the
    channels, and grey is converted to colour by repeating the channel.

    Args:
        data: The data module of the other data set; its ``image_shape`` must be set.
        n_max: Largest number of examples; the first ones are used. None uses all.
        value_range: Value range of the data with which the outliers are compared.
    """

    def __init__(
        self, *, data: ArrayDataModule, n_max: PositiveInt | None = None, value_range: ValueRange = "unit"
    ) -> None:
        self.data = data
        self.n_max = n_max
        self.value_range = value_range

    def prepare(self, data: ArrayDataModule) -> None:
        """Load the other data set, and raise an error if its files are missing or the data are not images."""
        if len(data.event_shape) != 3:
            raise ConfigError(
                f"Examples of shape {tuple(data.event_shape)} are no images to compare with those of "
                f"{type(self.data).__name__}: leave that outlier set out, or choose data of shape (C, H, W)."
            )
        self.data.setup()

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Return the other set's converted test images, shape (m, *event); see :meth:`OutlierSet.draw`."""
        self.data.setup()
        rows = self.data.splits.test[: self.n_max]
        w = self.data.as_float(_reduced(rows.view(len(rows), *image_shape_of(self.data)), v.shape[-2:])).to(v)
        own = getattr(self.data, "value_range", "unit")  # data without the attribute value_range are in [0, 1]
        if own != self.value_range:
            w = 2 * w - 1 if own == "unit" else (w + 1) / 2
        return fitted_to(w, v)


def _reduced(images: Tensor, size: Sequence[int]) -> Tensor:
    """Shrink square uint8 images (m, C, H, H) if H is a multiple of the target size; else return them unchanged."""
    square = images.shape[-1] == images.shape[-2] and size[0] == size[1]
    fit = square and images.dtype == torch.uint8 and images.shape[-1] % size[0] == 0
    return resample(images, padding=0, size=size[0]) if fit else images


def fitted_to(w: Tensor, v: Tensor) -> Tensor:
    """Convert images w (m, C', H', W') to the channels and the size of images v (n, C, H, W).

    Example:
        >>> fitted_to(torch.rand(5, 3, 8, 8), torch.zeros(2, 1, 4, 4)).shape
        torch.Size([5, 1, 4, 4])
    """
    if w.shape[1] != v.shape[1]:
        w = w.mean(1, keepdim=True).expand(-1, v.shape[1], -1, -1)
    if w.shape[2:] != v.shape[2:]:
        w = interpolate(w, size=v.shape[2:], mode="bilinear", antialias=True, align_corners=False)
    return w


class OutOfDistribution(
    ExampleMetric,
    emits={
        "auroc_*": Quantity(1, "", "the area under the curve of true against false positives; 0.5 is chance"),
        "aupr_*": Quantity(1, "", "the area under the curve of precision against recall"),
        "fpr95_*": Quantity(-1, "", "the share of outliers taken for data where 95 % of the data are kept"),
    },
):
    r"""The detection of outliers by the negative free energy: ``auroc_<set>``, ``aupr_<set>`` and ``fpr95_<set>``.

    Examples are ranked by -F(v). F is the free energy if the free energy is tractable. Otherwise F is the bound
    :math:`E_q[E(v, h) + \log q(h|v)] \ge F(v)` with the method's posterior, or E(v, h) at the h that the method's
    encoder returns. Only the order of the examples matters: if F ends in a function that saturates, they are ranked by
    the values before that function. Reference: Kan et al. 2022, section 6.3 (data are the positive class).

    A model that knows the noise level ranks by F at the smallest level, which is -log p(v) up to log Z. With ``levels``
    it also ranks by F(v, t) at larger levels t: ``auroc_<set>_at_<level>``, and so on. Fine details count less there.

    Args:
        sets: The sets of outliers by name; a set that is None is skipped.
        n_particles: Number of latents drawn per example for the bound.
        levels: Further noise levels, in units of the data's variance; models that do not know the level ignore them.

    Raises:
        ConfigError: Raised by :meth:`compute` if F of an example is NaN; infinite values are allowed.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> metric = OutOfDistribution(sets={"noise": UniformNoise()})
        >>> list(metric.compute(method, torch.zeros(5, 2), torch.Generator()))
        ['auroc_noise', 'aupr_noise', 'fpr95_noise']
    """

    needs = "a tractable F(v), or an energy with a posterior or an encoder"

    def __init__(
        self,
        *,
        sets: Mapping[str, OutlierSet | None],
        n_particles: PositiveInt = 10,
        levels: Sequence[PositiveFloat] = (),
    ) -> None:
        self.sets = {name: outliers for name, outliers in sets.items() if outliers is not None}
        self.n_particles = n_particles
        self.levels = levels

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        return has_outlier_score(method.parts)

    def prepare(self, method: Method, data: ArrayDataModule) -> None:
        """Load the other data sets; raise an error if their images cannot be resized to the shape of the data."""
        for outliers in self.sets.values():
            outliers.prepare(data)

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute how well the energy separates each outlier set from the data v; see :meth:`ExampleMetric.compute`.

        The random numbers of each set depend only on the generator's seed and the set's name.
        """

        def keyed(*keys: str) -> torch.Generator:
            # The generator depends on the seed, not on the state of the given generator: otherwise, another set of
            # outliers would change the numbers of the sets after it.
            return keyed_generator(generator.initial_seed(), *keys, device=generator.device)

        found = {}
        for suffix, parts in parts_at_levels(method.parts, self.levels).items():
            scores = functools.partial(scores_to_rank, parts, n_particles=self.n_particles)
            inside = scores(v, keyed("data"))
            for name, outliers in self.sets.items():
                own = keyed("outliers", name)
                outside = scores(outliers.draw(v, own), own, name=f"the outliers {name!r}")
                values = detection(inside, outside)
                found |= {f"{key}_{name}{suffix}": value for key, value in values.items()}
        return found
