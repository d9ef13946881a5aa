"""Labels beside points, placed so that they cover neither points nor each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from eblvm_lit.figures.style import INK

__all__ = ["place_labels"]

SIZE = 7  # of a label; all lengths are in points
RADIUS = 3.5  # of a point with its margin
DISTANCES = (5.0, 11.0, 18.0, 26.0, 36.0)
LEADER = 10.0  # labels farther away get a line to their point


def place_labels(
    axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[tuple[float, float, str]]
) -> list[Annotation]:
    """Write labels beside points, each where it covers least of the points and of the earlier labels.

    Args:
        axes: Where; all else must have been drawn into it.
        points: What must stay visible, in data coordinates.
        labels: The x and y of a point, and its text.

    Returns:
        The labels.

    Example:
        >>> from eblvm_lit.figures.style import new_figure
        >>> axes = new_figure(4, 3).subplots()
        >>> dots = axes.scatter([0, 1, 1.01], [0, 1, 1])
        >>> one, other = place_labels(axes, [(0, 0), (1, 1), (1.01, 1)], [(1, 1, "one"), (1.01, 1, "other")])
        >>> one.get_text(), one.get_position() == other.get_position()
        ('one', False)
    """
    figure = axes.get_figure()
    figure.draw_without_rendering()  # the layout decides where the points are
    pixels, inside = figure.dpi / 72, axes.get_window_extent()
    taken = [Bbox([[x, y], [x, y]]).padded(RADIUS * pixels) for x, y in axes.transData.transform(points)]
    placed = []
    for x, y, text in labels:
        style = {"textcoords": "offset points", "fontsize": SIZE, "color": INK, "zorder": 4, "in_layout": False}
        leader = {"arrowstyle": "-", "color": INK, "linewidth": 0.4, "shrinkA": 0, "shrinkB": RADIUS}
        size = axes.annotate(text, (x, y), xytext=(0, 0), **style)
        box = size.get_window_extent()
        size.remove()
        origin = axes.transData.transform((x, y))
        best = None
        for distance, dx, dy in _candidates(box.width / pixels, box.height / pixels):
            here = Bbox.from_bounds(origin[0] + dx * pixels, origin[1] + dy * pixels, box.width, box.height)
            cost = sum(_overlap(here, other) for other in taken) + 2 * (_area(here) - _overlap(here, inside))
            cost = cost / _area(here) + 0.002 * distance  # a free place far away is better than one half covered
            if best is None or cost < best[0]:
                best = cost, distance, (dx, dy), here
        _, distance, offset, here = best
        arrow = leader if distance > LEADER else None
        placed.append(axes.annotate(text, (x, y), xytext=offset, va="bottom", ha="left", arrowprops=arrow, **style))
        taken.append(here)
    return placed


def _candidates(width: float, height: float) -> Iterator[tuple[float, float, float]]:
    """Distances from a point, and the lower left corner of a label relative to the point, the nearest first."""
    for r in DISTANCES:
        d = 0.7 * r
        yield from ((r, x, y) for x, y in ((r, -height / 2), (-r - width, -height / 2)))
        yield from ((r, x, y) for x in (d, -d - width) for y in (d, -d - height))
        yield from ((r, -width / 2, y) for y in (r, -r - height))


def _area(box: Bbox) -> float:
    return box.width * box.height


def _overlap(one: Bbox, other: Bbox) -> float:
    shared = Bbox.intersection(one, other)
    return 0.0 if shared is None else _area(shared)
