"""Fits of a cost as a function of a size: a power law over the upper half of a range, or a straight line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Line", "PowerLaw", "fit_line", "fit_power_law"]

Numbers = Sequence[float]


class PowerLaw(NamedTuple):
    """A fitted power law y = scale * x ** exponent.

    Attributes:
        scale: The factor.
        exponent: The slope of log y as a function of log x.
        error: The exponent's standard error; None if only two points were fitted.
        first: The smallest x that was fitted.
    """

    scale: float
    exponent: float
    error: float | None
    first: float

    def __call__(self, x: Numbers) -> np.ndarray:
        """Compute the power law's y at x."""
        return self.scale * np.asarray(x, dtype=float) ** self.exponent

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2f}"
        return f"{self.exponent:.2f}{error}"


class Line(NamedTuple):
    """A fitted straight line y = intercept + slope * x.

    Attributes:
        intercept: The value of y at x = 0.
        slope: The increase of y per unit of x.
        r2: The coefficient of determination; 1 if y is constant.
    """

    intercept: float
    slope: float
    r2: float

    @property
    def ratio(self) -> float:
        """Return the slope divided by the intercept: the increase of y per unit of x, relative to y at 0."""
        return self.slope / self.intercept

    def __call__(self, x: Numbers) -> np.ndarray:
        """Compute the line's y at x."""
        return self.intercept + self.slope * np.asarray(x, dtype=float)

    def __str__(self) -> str:
        return f"{round(self.ratio, 3) + 0.0:.3f} (R² {self.r2:.3f})"  # + 0.0 turns -0.0 into 0.0


def fit_power_law(x: Numbers, y: Numbers) -> PowerLaw:
    """Fit a power law by least squares: a straight line of log y over log x.

    The fit uses only the upper half of the range: all x that are at least the geometric mean of the smallest and the
    largest x.

    Args:
        x: Positive sizes; at least two of them different.
        y: Positive costs.

    Example:
        >>> fit = fit_power_law([1, 2, 4, 8, 16, 32], [9, 9, 12, 48, 192, 768])
        >>> str(fit), fit.first
        ('2.00 ± 0.00', 8.0)
    """
    # Keep at least two different values of x, because a slope needs two.
    middle = min(math.sqrt(min(x) * max(x)), sorted(set(x))[-2])
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a >= middle * (1 - 1e-9)]
    a, b = np.array(points).T
    spread = np.square(a - a.mean()).sum()
    slope = float(((a - a.mean()) * (b - b.mean())).sum() / spread)
    residual = b - b.mean() - slope * (a - a.mean())
    error = math.sqrt(np.square(residual).sum() / (len(a) - 2) / spread) if len(a) > 2 else None
    return PowerLaw(float(np.exp(b.mean() - slope * a.mean())), slope, error, round(math.exp(a.min()), 9))


def fit_line(x: Numbers, y: Numbers) -> Line:
    """Fit a straight line of y on x by least squares, over the whole range.

    Args:
        x: Sizes; at least two of them different.
        y: Costs.

    Example:
        >>> line = fit_line([0, 1, 2, 4], [10.0, 12.0, 14.0, 18.0])
        >>> f"{line.ratio:.3f} {line.r2:.3f}"
        '0.200 1.000'
    """
    a = np.asarray(x, dtype=float)
    b = np.asarray(y, dtype=float)
    slope, intercept = np.polyfit(a, b, 1)
    total = np.square(b - b.mean()).sum()
    rest = np.square(b - intercept - slope * a).sum()
    return Line(float(intercept), float(slope), float(1 - rest / total) if total else 1.0)
