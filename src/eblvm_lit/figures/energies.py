"""A figure of the energies of data, and of noise or of a generator's samples and reconstructions."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import Draws
from eblvm_lit.draws.coding import reconstruct, reconstructs
from eblvm_lit.draws.generator import GeneratedImages
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.style import COLOURS, DASHES, new_figure
from eblvm_lit.methods.base import Method
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.posteriors.free_energy_bound import free_energy_bound, has_free_energy_bound

__all__ = ["Energies"]

LOOKS = {"training data": 0, "test data": 1, "uniform noise": 6, "samples": 2, "reconstructions": 3}
MAX_BINS = 50


class Energies(Picture):
    r"""A figure of histograms of F(v), or of its upper bound, for training data, test data and uniform noise.

    The left panel shows only the data: if training examples have lower energies than test examples, the model overfits.
    The right panel adds noise that is uniform between the smallest and the largest value of the data: a good model
    gives it higher energies. If F is not tractable, the figure shows its upper bound,
    :func:`~eblvm_lit.posteriors.free_energy_bound.free_energy_bound`.

    With ``images``, there is one panel, with test data, samples of the generator and reconstructions of the test data.
    If samples have lower energies than data, the energy lags behind the generator; if reconstructions have higher
    energies than data, the energy depends on details that the latents do not contain. Reference: Kan et al. 2022.

    Args:
        n: Number of noise examples or samples, and largest number of examples of each split.
        n_particles: Number of latents drawn per example for the bound.
        images: The source of the generator's samples; None draws the panels with noise.

    Example:
        >>> from types import SimpleNamespace
        >>> from torch import nn
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> data, parts = Digits(), MethodParts(energy=GRBM(v_dim=64, h_dim=3), generator=nn.Linear(3, 64))
        >>> data.setup()
        >>> method = SimpleNamespace(parts=parts, seed=0, h_dim=3, device="cpu", dtype=torch.float32)
        >>> for figure in (Energies(n=20), Energies(n=20, images=GeneratedImages())):
        ...     [panel.get_title() for panel in figure.draw(method, data, torch.Generator()).axes]
        ['data', 'data and noise']
        ['data, samples and reconstructions']
    """

    name = "energies"

    def __init__(
        self, *, n: PositiveInt = 2000, n_particles: PositiveInt = 10, images: GeneratedImages | None = None
    ) -> None:
        self.n = n
        self.n_particles = n_particles
        self.images = images

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the figure can be drawn: it needs F(v) or its bound and, with ``images``, a generator."""
        bounded = has_free_energy_bound(method.parts.energy, method.parts.posterior)
        return bounded and (self.images is None or self.images.supports(method, data))

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure; see :meth:`Picture.draw`."""
        energy = method.parts.energy
        posterior = method.parts.posterior
        drawn = None if self.images is None else self.images.draws(method)
        examples = self._examples(data, generator) if drawn is None else self._drawn(method, data, drawn)
        found = free_energies(method, posterior, examples, generator, self.n_particles)
        if found is None:
            return None
        data_only = {name: values for name, values in found.items() if name != "uniform noise"}
        panels = {"data": data_only, "data and noise": found}
        if drawn is not None:
            panels = {"data, samples and reconstructions": found}
        label = "$F(v)$" if isinstance(energy, MarginalEnergy) else r"$E_q[E(v, h) + \log q(h|v)]$"
        figure = new_figure(1.6 + 3.0 * len(panels), 3.1)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for panel, (title, values) in zip(axes, panels.items(), strict=True):
            histograms(panel, values, title, label)
        axes[0].set_ylabel("share of examples")
        return figure

    def _drawn(self, method: Method, data: ArrayDataModule, draws: Draws) -> dict[str, Tensor]:
        """Return test data, samples and reconstructions, each of shape (n, *event), on the method's device."""
        v = data.as_float(data.splits.test[: self.n]).to(device=method.device, dtype=method.dtype)
        examples = {"test data": v, "samples": draws.draw(self.n, seed=method.seed).view(-1, *v.shape[1:])}
        return {**examples, "reconstructions": reconstruct(method.parts, v)} if reconstructs(method.parts) else examples

    def _examples(self, data: ArrayDataModule, generator: torch.Generator) -> dict[str, Tensor]:
        """Return training data, test data and noise, each of shape (n, *event), on the CPU."""

        def some(rows: Tensor) -> Tensor:
            chosen = torch.randperm(len(rows), generator=generator, device=generator.device).cpu()[: self.n]
            return data.as_float(rows[chosen])

        train = some(data.splits.train)
        test = some(data.splits.test)
        u = torch.rand((self.n, *test.shape[1:]), generator=generator, device=generator.device).cpu()
        low = train.min()
        high = train.max()
        return {"training data": train, "test data": test, "uniform noise": low + (high - low) * u}


def free_energies(
    method: Method,
    posterior: Posterior | None,
    examples: dict[str, Tensor],
    generator: torch.Generator,
    n_particles: int,
) -> dict[str, np.ndarray] | None:
    """Compute F(v), or its upper bound, for each named set of examples v; return None if a value is not finite."""
    found = {}
    for name, v in examples.items():
        v = v.to(device=method.device, dtype=method.dtype)
        bound = free_energy_bound(method.parts.energy, posterior, v, generator, n_particles=n_particles)
        found[name] = bound.double().cpu().numpy()
    return found if all(np.isfinite(values).all() for values in found.values()) else None


def histograms(axes: Axes, values: dict[str, np.ndarray], title: str, label: str) -> None:
    """Draw several histograms with the same bins in one panel.

    Args:
        axes: The panel in which they are drawn.
        values: Arrays of numbers, each of shape (n,), by the name in the legend.
        title: The title of the panel.
        label: The label of the x axis.

    Example:
        >>> histograms(new_figure(4, 3).subplots(), {"test data": np.arange(3.0)}, "data", "F")
    """
    axes.set_title(title)
    # The bins only cover a range of quantiles, because a few outliers would make all bins too wide.
    ends = np.array([np.quantile(numbers, [0.002, 0.998]) for numbers in values.values()])
    ends = ends[:, 0].min(), ends[:, 1].max()
    n_bins = min(MAX_BINS, math.ceil(2 * math.sqrt(min(map(len, values.values())))))
    edges = np.histogram_bin_edges([], bins=n_bins, range=ends)
    for name, numbers in values.items():
        shares = np.histogram(numbers.clip(*ends), edges)[0] / len(numbers)
        look = {"color": COLOURS[LOOKS[name]], "linestyle": DASHES[LOOKS[name] % len(DASHES)]}
        axes.stairs(shares, edges, fill=True, alpha=0.25, color=look["color"])
        axes.stairs(shares, edges, linewidth=1.2, label=name, **look)
    axes.set_xlabel(label)
    axes.legend(handlelength=2.6)
