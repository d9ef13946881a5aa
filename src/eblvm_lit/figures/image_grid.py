"""Figures of many small images: each panel is a grid of images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from eblvm_lit.figures.style import new_figure, styled

__all__ = ["image_grid", "label_rows", "tile"]


def tile(
    images: Tensor, image_shape: tuple[int, int, int], background: float = 1.0, columns: int | None = None
) -> Tensor:
    """Arrange images on a grid, row by row, with gaps of one pixel.

    Args:
        images: The images, shape (n, *event), each with C H W values.
        image_shape: The shape (C, H, W) of an image, with C = 1 (grey) or 3 (colour).
        background: Value of the gaps and of places without an image.
        columns: Number of images in a row; None arranges the images in about a square.

    Returns:
        The image of the whole grid, shape (rows (H + 1) - 1, columns (W + 1) - 1, C), on the CPU.

    Example:
        >>> tile(torch.arange(4.0), (1, 1, 1), background=9).squeeze(-1).int()
        tensor([[0, 9, 1],
                [9, 9, 9],
                [2, 9, 3]], dtype=torch.int32)
    """
    channels, height, width = image_shape
    columns = columns or math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    board = torch.full((rows, columns, channels, height + 1, width + 1), background, dtype=torch.float32)
    places = board.view(-1, channels, height + 1, width + 1)
    places[: len(images), :, :-1, :-1] = images.detach().reshape(-1, *image_shape).float().cpu()
    return board.permute(0, 3, 1, 4, 2).reshape(rows * (height + 1), columns * (width + 1), channels)[:-1, :-1]


@styled
def image_grid(
    rows: Sequence[Sequence[tuple[str, Tensor]]],
    image_shape: tuple[int, int, int],
    *,
    limits: tuple[float, float] = (0, 255),
    columns: int | None = None,
    width: float = 3.8,
    height_ratios: Sequence[float] = (1,),
) -> Figure:
    """Draw panels of images in rows, without ticks.

    Args:
        rows: The rows of panels; a panel is a pair of its title and its images, shape (n, *event).
        image_shape: The shape (C, H, W) of an image, with C = 1 (grey) or 3 (colour).
        limits: The values that are drawn black and white, respectively.
        columns: Number of images in a row of a panel; None makes panels that are about square.
        width: The width of a panel, in inches.
        height_ratios: The heights of the rows of panels relative to each other; panels of the last row fill ``width``.

    Example:
        >>> figure = image_grid([[("data", torch.zeros(4, 9)), ("model", torch.zeros(4, 9))]], (1, 3, 3))
        >>> [panel.get_title() for panel in figure.axes], figure.get_size_inches().round(1).tolist()
        (['data', 'model'], [7.6, 4.1])
    """
    low, high = limits
    boards = [
        [tile((v - low) / (high - low), image_shape, columns=columns).clamp_(0, 1) for _, v in row] for row in rows
    ]
    tallest = max((width - 0.1) * board.shape[0] / board.shape[1] for board in boards[-1])
    height = tallest * sum(height_ratios) / height_ratios[-1] + 0.4 * len(rows)
    figure = new_figure(width * len(rows[0]), height)
    panels = figure.subplots(len(rows), len(rows[0]), squeeze=False, height_ratios=height_ratios)
    for axes, row, shown in zip(panels, rows, boards, strict=True):
        for panel, (title, _), board in zip(axes, row, shown, strict=True):
            panel.imshow(board.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            panel.set_axis_off()
            panel.set_title(title)
    return figure


@styled
def label_rows(panel: Axes, labels: Sequence[str], height: int) -> None:
    """Write a label to the left of each row of images in a panel, and widen the figure to make space for the labels.

    Args:
        panel: A panel of :func:`image_grid`.
        labels: The labels, from the top row down.
        height: The height of an image, in pixels.

    Example:
        >>> figure = image_grid([[("", torch.zeros(6, 9))]], (1, 3, 3), columns=2)
        >>> label_rows(figure.axes[0], ["first", "second", "third"], 3)
        >>> [(text.get_text(), text.get_position()) for text in figure.axes[0].texts][:2]
        [('first', (-1.5, 1.0)), ('second', (-1.5, 5.0))]
    """
    figure = panel.get_figure(root=True)
    if figure is not None:
        figure.set_figwidth(figure.get_figwidth() + 0.07 * max(map(len, labels)))
    for row, label in enumerate(labels):
        panel.text(-1.5, row * (height + 1) + (height - 1) / 2, label, ha="right", va="center")
