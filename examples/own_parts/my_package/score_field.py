"""A figure: the score as arrows over the data."""

import torch
from matplotlib.figure import Figure

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.figures.base import Picture, new_figure
from eblvm_lit.methods.base import Method


class ScoreField(Picture):
    """Arrows along the model's score at the points of a grid, over 1,000 points of the data.

    Args:
        n: Number of arrows along each axis.
    """

    name = "score_field"

    def __init__(self, *, n: int = 20) -> None:
        self.n = n

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the data are points in the plane and the energy has a score."""
        return data.bounds is not None and isinstance(method.parts.energy, MarginalEnergy)

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the data and the arrows."""
        shown = torch.randperm(len(data.splits.train), generator=generator, device=generator.device)[:1000].cpu()
        x, y = (torch.linspace(low, high, self.n) for low, high in data.bounds)
        grid = torch.cartesian_prod(x, y)
        score = method.parts.energy.score(grid.to(method.device)).detach().cpu()
        figure = new_figure(4, 4)
        axes = figure.subplots()
        axes.set_title("score and data")
        axes.set(xlim=data.bounds[0], ylim=data.bounds[1], aspect="equal")
        axes.scatter(*data.splits.train[shown].T, s=4, color="#9db4cc", linewidths=0)
        axes.quiver(*grid.T, *score.T, angles="xy", width=0.004)
        return figure
