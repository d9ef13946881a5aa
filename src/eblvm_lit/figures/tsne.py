"""A figure of posterior means, laid out in the plane by t-SNE."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import PositiveInt
from sklearn.manifold import TSNE

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.posterior_means import posterior_means
from eblvm_lit.figures.base import Picture, new_figure
from eblvm_lit.figures.style import MARKERS
from eblvm_lit.methods.base import Method

__all__ = ["PosteriorMap"]

PERPLEXITY = 30.0  # the default of scikit-learn
MAX_CLASSES = 20  # the largest number of classes that are drawn in different colours


class PosteriorMap(Picture):
    """A figure of the posterior means E_q[h|v] of test examples, laid out by t-SNE and coloured by label.

    Points that are close in the figure are close in the latent space; distances between groups of points mean little.
    Reference: van der Maaten and Hinton 2008; Bao et al. 2020, section 5.2.

    Args:
        n: Largest number of examples, drawn at random.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> data, parts = Digits(), MethodParts(posterior=BernoulliPosterior(v_dim=64, h_dim=3))
        >>> data.setup()
        >>> method = SimpleNamespace(parts=parts, device="cpu", dtype=torch.float32)
        >>> PosteriorMap(n=20).draw(method, data, torch.Generator()).axes[0].get_title()
        't-SNE of posterior means, 20 test examples'
    """

    name = "tsne"

    def __init__(self, *, n: PositiveInt = 2000) -> None:
        self.n = n

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the figure can be drawn: it needs a posterior or an encoder with at least two latents."""
        encoding = method.parts.encoding
        return encoding is not None and encoding.h_dim > 1 and len(data.splits.test) > 2

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure; see :meth:`Picture.draw`."""
        test = data.splits.test
        rows = torch.randperm(len(test), generator=generator, device=generator.device).cpu()[: self.n].sort().values
        means = posterior_means(method, data, test[rows])
        if not np.isfinite(means).all() or (means == means[0]).all():
            return None
        perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
        points = TSNE(random_state=0, perplexity=perplexity).fit_transform(means)
        figure = new_figure(5.6, 4.8)
        axes = figure.subplots()
        axes.set_title(f"t-SNE of posterior means, {len(rows):,} test examples")
        axes.set(xticks=[], yticks=[], aspect="equal")
        labels = None if data.labels is None or data.labels.test.dim() != 1 else data.labels.test[rows].numpy()
        scatter(axes, points, labels, getattr(data, "class_names", None))
        return figure


def scatter(axes: Axes, points: np.ndarray, labels: np.ndarray | None, names: tuple[str, ...] | None) -> None:
    """Draw points, coloured by label and with a legend if they have labels.

    Args:
        axes: The axes in which they are drawn.
        points: The points, shape (n, 2).
        labels: The labels of the points, shape (n,), or None.
        names: The names of the labels 0, 1, ..., or None.
    """
    style = {"s": 12, "linewidths": 0, "alpha": 0.75}
    classes = [] if labels is None else np.unique(labels)
    if not 1 < len(classes) <= MAX_CLASSES:
        axes.scatter(*points.T, color=colormaps["tab10"](0), **style)
        return
    palette = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    for i, label in enumerate(classes):
        name = str(label) if names is None else names[label]
        axes.scatter(
            *points[labels == label].T, color=palette(i), marker=MARKERS[i % len(MARKERS)], label=name, **style
        )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=1.8, handletextpad=0.2)
