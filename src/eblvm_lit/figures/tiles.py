"""Many small images as one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from eblvm_lit.figures.base import INK, new_figure

__all__ = ["boards", "show_tiles", "tile"]


def tile(
    images: Tensor, image_shape: tuple[int, int, int], background: float = 1.0, columns: int | None = None
) -> Tensor:
    """Lay images out on a board, row by row, one pixel apart.

    Args:
        images: Shape (n, *event), with C H W numbers each.
        image_shape: (C, H, W), C = 1 (grey) or 3 (colour).
        background: Value of the gaps and of places without an image.
        columns: Images in a row; as many as make a square board, if not given.

    Returns:
        Shape (rows (H + 1) - 1, columns (W + 1) - 1, C), on the CPU.

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


def show_tiles(
    axes: Axes,
    images: Tensor,
    image_shape: tuple[int, int, int],
    limits: tuple[float, float],
    title: str,
    columns: int | None = None,
) -> None:
    """Draw images side by side, without ticks.

    Args:
        axes: Where.
        images: Shape (n, *event).
        image_shape: (C, H, W), C = 1 (grey) or 3 (colour).
        limits: Values of black and white.
        title: What they are.
        columns: Images in a row; as many as make a square board, if not given.
    """
    low, high = limits
    board = tile((images - low) / (high - low), image_shape, columns=columns).clamp_(0, 1).numpy()
    axes.imshow(board, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    axes.set_title(title, fontsize=10, color=INK, pad=6)


def boards(
    images: Mapping[str, Tensor],
    image_shape: tuple[int, int, int],
    limits: tuple[float, float] = (0, 255),
    columns: int | None = None,
    width: float = 3.8,
) -> Figure:
    """Boards of images side by side.

    Args:
        images: By the title of each board, shape (n, *event).
        image_shape: (C, H, W), C = 1 (grey) or 3 (colour).
        limits: Values of black and white.
        columns: Images in a row of a board; as many as make it square, if not given.
        width: Of a board, in inches.

    Example:
        >>> figure = boards({"data": torch.zeros(4, 9), "model": torch.zeros(4, 9)}, (1, 3, 3))
        >>> [panel.get_title() for panel in figure.axes], figure.get_size_inches().round(1).tolist()
        (['data', 'model'], [7.6, 4.1])
    """
    shapes = [tile(v, image_shape, columns=columns).shape[:2] for v in images.values()]
    figure = new_figure(width * len(images), max((width - 0.1) * height / across for height, across in shapes) + 0.4)
    for panel, (title, v) in zip(figure.subplots(1, len(images), squeeze=False)[0], images.items(), strict=True):
        show_tiles(panel, v, image_shape, limits, title, columns)
    return figure
