"""What every figure offers, and the look they share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pytorch_lightning import LightningModule

from eblvm_lit.data.base import ArrayDataModule

__all__ = ["INK", "Picture", "frame", "new_figure"]

INK = "#333a45"  # of frames, ticks and letters
DPI = 150


class Picture(ABC):
    """A figure about a method and its data.

    Figures are matplotlib's objects, not pyplot's: nothing global is touched, and nothing needs closing.

    Attributes:
        name: Stem of the file it is saved to.
    """

    name: str

    @abstractmethod
    def draw(self, method: LightningModule, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it.

        Args:
            method: The method, with its parts as attributes, on some device.
            data: The data it was trained on, set up.
            generator: Source of all randomness, on the method's device.

        Returns:
            The figure; None where it does not apply to this method or these data.
        """


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, ready for screens.

    Example:
        >>> new_figure(4, 3).get_size_inches().tolist()
        [4.0, 3.0]
    """
    return Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")


def frame(axes: Axes, title: str | None = None) -> None:
    """Give axes the common look: thin grey frame, small ticks, a title in plain type."""
    for spine in axes.spines.values():
        spine.set(color=INK, linewidth=0.6)
    axes.tick_params(color=INK, labelcolor=INK, labelsize=8, width=0.6, length=3)
    if title is not None:
        axes.set_title(title, fontsize=10, color=INK, pad=6)
