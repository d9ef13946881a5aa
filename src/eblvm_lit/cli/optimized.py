"""The metric that a search optimizes."""

from __future__ import annotations

from collections.abc import Mapping

from eblvm_lit.errors import ConfigError

__all__ = ["optimized_value"]


def optimized_value(metrics: Mapping[str, float], name: str | None) -> float | None:
    """The value that a sweeper reads; None without a name.

    Raises:
        ConfigError: If there is no such metric.

    Example:
        >>> optimized_value({"val/loss": 2.0}, "val/loss")
        2.0
    """
    if name is not None and name not in metrics:
        raise ConfigError(f"optimized_metric={name}: this run has no such metric; it has {', '.join(metrics)}.")
    return None if name is None else metrics[name]
