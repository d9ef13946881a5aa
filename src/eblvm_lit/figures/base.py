"""The base class of figures, and panels that show the plane."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eblvm_lit.data.applicable import MayNotApply
from eblvm_lit.data.base import ArrayDataModule, Window
from eblvm_lit.figures.style import INK, TICK_STEPS, new_figure, styled
from eblvm_lit.methods.base import Method

__all__ = ["INK", "TICK_STEPS", "Picture", "new_figure", "plane"]


class Picture(MayNotApply):
    """A figure about a method and its data.

    Figures are matplotlib's objects, not pyplot's: nothing global is touched, and nothing needs closing. All have one
    style, :data:`~eblvm_lit.figures.style.STYLE`.

    Attributes:
        name: Stem of the file it is saved to.
    """

    name: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "draw" in vars(cls):
            cls.draw = styled(cls.draw)

    def prepare(self) -> None:
        """Check before the first iteration that needed files are there.

        Raises:
            DataError: If one is missing.
        """

    @abstractmethod
    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it.

        Args:
            method: The method, on some device.
            data: The data it was trained on, set up.
            generator: Source of all randomness, on the method's device.

        Returns:
            The figure; None where it does not apply to this method or these data.
        """


def plane(figure: Figure, bounds: Window, titles: tuple[str, str]) -> list[Axes]:
    """Two panels side by side that show one window of the plane.

    Args:
        figure: Where.
        bounds: The window.
        titles: Of the two panels.

    Example:
        >>> left, right = plane(new_figure(7, 3), ((0, 1), (0, 2)), ("data", "model"))
        >>> left.get_title(), right.get_ylim()
        ('data', (np.float64(0.0), np.float64(2.0)))
    """
    panels = list(figure.subplots(1, 2, sharex=True, sharey=True))
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title)
        panel.set(xlim=bounds[0], ylim=bounds[1], aspect="equal")
        panel.set_xlabel("$v_1$")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
    panels[0].set_ylabel("$v_2$")
    return panels
