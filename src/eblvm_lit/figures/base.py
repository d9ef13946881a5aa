"""The base class of figures, and a helper that draws two panels side by side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eblvm_lit.data.applicable import MayNotApply
from eblvm_lit.data.base import ArrayDataModule, Window
from eblvm_lit.figures.style import INK, TICK_STEPS, new_figure, styled
from eblvm_lit.methods.base import Method

__all__ = ["INK", "TICK_STEPS", "Picture", "new_figure", "plane", "window_in_units"]


class Picture(MayNotApply):
    """The base class of figures that show a method and its data.

    Figures are made without pyplot: they change no global state, and need not be closed. All figures have the style
    :data:`~eblvm_lit.figures.style.STYLE`.

    Attributes:
        name: The name, without suffix, of the file to which the figure is saved.
    """

    name: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "draw" in vars(cls):
            cls.draw = styled(cls.draw)

    def prepare(self) -> None:
        """Check before the first iteration that all files needed by the figure exist.

        Raises:
            DataError: If a file is missing.
        """

    @abstractmethod
    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure for a method and its data.

        Args:
            method: The method, on any device.
            data: The data on which the method was trained, after ``setup``.
            generator: Source of all randomness, on the method's device.

        Returns:
            The figure; None if it does not apply to this method or these data.
        """


def window_in_units(data: ArrayDataModule) -> Window:
    """Return the window of two-dimensional data in the units of the data.

    Example:
        >>> from eblvm_lit.data.toy import Checkerboard
        >>> window_in_units(Checkerboard())
        ((-0.25, 1.25), (-0.25, 1.25))
    """
    corners = torch.tensor(data.window, dtype=torch.float64).T
    (x0, y0), (x1, y1) = data.in_units(corners).tolist()
    return (x0, x1), (y0, y1)


def _aspect(bounds: Window) -> str | float:
    """Return the aspect ratio of a panel: equal units on both axes, or a square panel if the window is far from square.

    Columns of a table may have units that cannot be compared, such as metres and years.
    """
    width, height = (high - low for low, high in bounds)
    return "equal" if max(width, height) <= 3 * min(width, height) else width / height


def plane(figure: Figure, bounds: Window, titles: tuple[str, str], names: Sequence[str] | None = None) -> list[Axes]:
    """Add two panels side by side that show the same window of the plane.

    Args:
        figure: The figure to which the panels are added.
        bounds: The window, ((x0, x1), (y0, y1)).
        titles: The titles of the two panels.
        names: The names of the two coordinates; by default v_1 and v_2.

    Example:
        >>> left, right = plane(new_figure(7, 3), ((0, 1), (0, 2)), ("data", "model"))
        >>> left.get_title(), right.get_ylim()
        ('data', (np.float64(0.0), np.float64(2.0)))
    """
    names = names or ("$v_1$", "$v_2$")
    panels = list(figure.subplots(1, 2, sharex=True, sharey=True))
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title)
        panel.set(xlim=bounds[0], ylim=bounds[1], aspect=_aspect(bounds))
        panel.set_xlabel(names[0])
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
    panels[0].set_ylabel(names[1])
    return panels
