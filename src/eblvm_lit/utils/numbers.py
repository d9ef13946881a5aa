"""Numbers and durations as people read them: significant digits, units of time."""

from __future__ import annotations

import math

__all__ = ["clock", "duration", "significant"]


def significant(value: float, digits: int = 4) -> str:
    """A number with some significant digits, or fewer where it is small or whole.

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


def clock(seconds: float) -> str:
    """A duration as a clock shows it.

    Example:
        >>> [clock(seconds) for seconds in (5.4, 3725, 200_000)]
        ['0:00:05', '1:02:05', '2d 07:33:20']
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}d {hour:02}:{minute:02}:{second:02}" if days else f"{hour}:{minute:02}:{second:02}"


def duration(seconds: float) -> str:
    """A duration in words, to two digits.

    Example:
        >>> [duration(seconds) for seconds in (12.3, 250, 5000, 20_000, 3.5e6)]
        ['12 s', '4 min', '83 min', '5.6 hours', '41 days']
    """
    for limit, unit, name in ((90, 1, "s"), (90 * 60, 60, "min")):
        if seconds < limit:
            return f"{round(seconds / unit)} {name}"
    unit, name = (3600, "hours") if seconds < 36 * 3600 else (86400, "days")
    number = seconds / unit
    return f"{number:.1f} {name}" if number < 10 else f"{number:,.0f} {name}"
