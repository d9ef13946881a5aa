"""Functions that format numbers and lists of names for messages and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["listing", "significant"]


def significant(value: float, digits: int = 4) -> str:
    """Format a number with ``digits`` significant digits, or more if it has more digits before the decimal point.

    Whole numbers have no decimals. Numbers below 0.001, and numbers of 1e15 or more, have three significant digits.

    Example:
        >>> [significant(value) for value in (12000, -0.29341234, 2.6e-5, 1906.32, 98765.4, 0.0)]
        ['12,000', '-0.2934', '2.6e-05', '1,906', '98,765', '0']
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    size = math.floor(math.log10(abs(value)))
    if value == round(value) and size < 15:
        return f"{value:,.0f}"
    return f"{value:.3g}" if not -4 < size < 15 else f"{value:,.{max(digits - 1 - size, 0)}f}"


def listing(names: Sequence[object], most: int = 6) -> str:
    """Join names by commas; if there are more than ``most`` names, show only the first names and the last one.

    Example:
        >>> listing(["x", "y"]), listing(range(100))
        ('x, y', '0, 1, 2, 3, 4, ..., 99')
    """
    words = [str(name) for name in names]
    return ", ".join(words if len(words) <= most else [*words[: most - 1], "...", words[-1]])
