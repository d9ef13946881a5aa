"""Which way metrics get better."""

from __future__ import annotations

__all__ = ["direction"]

# Words of a metric's name.
HIGHER = frozenset(("likelihood", "auroc", "aupr", "accuracy", "inception", "second"))
LOWER = frozenset(("fisher", "fid", "kid", "fd", "kd", "fpr95", "rmse", "ksd", "kl", "loss"))


def direction(metric: str) -> int:
    """Which way a metric gets better: 1 up, -1 down, 0 where neither is.

    Example:
        >>> [direction(name) for name in ("test/auroc_svhn", "val/fisher (last 3)", "test/log_z")]
        [1, -1, 0]
    """
    words = set(metric.split(" ")[0].split("/")[-1].split("_"))
    return bool(words & HIGHER) - bool(words & LOWER)
