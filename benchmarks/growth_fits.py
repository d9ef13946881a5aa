"""Fits of cost against size: a power law over the upper half of a range, or a straight line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Line", "PowerLaw", "fit_line", "fit_power_law"]

Numbers = Sequence[float]


class PowerLaw(NamedTuple):
    """y = scale * x ** exponent.

    Attributes:
        scale: The factor.
        exponent: The slope of log y on log x.
        error: The exponent's standard error; none for two points.
        first: The smallest x that was fitted.
    """

    scale: float
    exponent: float
    error: float | None
    first: float

    def __call__(self, x: Numbers) -> np.ndarray:
        """y at x."""
        return self.scale * np.asarray(x, dtype=float) ** self.exponent

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2f}"
        return f"{self.exponent:.2f}{error}"


class Line(NamedTuple):
    """y = intercept + slope * x.

    Attributes:
        intercept: y at 0.
        slope: Of y.
        r2: The coefficient of determination; 1 where y is constant.
    """

    intercept: float
    slope: float
    r2: float

    @property
    def ratio(self) -> float:
        """The slope over the intercept: what one unit of x adds, in units of y at 0."""
        return self.slope / self.intercept

    def __call__(self, x: Numbers) -> np.ndarray:
        """y at x."""
        return self.intercept + self.slope * np.asarray(x, dtype=float)

    def __str__(self) -> str:
        return f"{round(self.ratio, 3) + 0.0:.3f} (R² {self.r2:.3f})"  # no minus before a zero


def fit_power_law(x: Numbers, y: Numbers) -> PowerLaw:
    """Least squares of log y on log x, where x is at least the geometric mean of its ends.

    Args:
        x: Positive sizes; at least two of them different.
        y: Positive costs.

    Example:
        >>> fit = fit_power_law([1, 2, 4, 8, 16, 32], [9, 9, 12, 48, 192, 768])
        >>> str(fit), fit.first
        ('2.00 ± 0.00', 8.0)
    """
    # one point is no slope
    middle = min(math.sqrt(min(x) * max(x)), sorted(set(x))[-2])
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a >= middle * (1 - 1e-9)]
    a, b = np.array(points).T
    spread = np.square(a - a.mean()).sum()
    slope = float(((a - a.mean()) * (b - b.mean())).sum() / spread)
    residual = b - b.mean() - slope * (a - a.mean())
    error = math.sqrt(np.square(residual).sum() / (len(a) - 2) / spread) if len(a) > 2 else None
    return PowerLaw(float(np.exp(b.mean() - slope * a.mean())), slope, error, round(math.exp(a.min()), 9))


def fit_line(x: Numbers, y: Numbers) -> Line:
    """Least squares of y on x, over the whole range.

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
