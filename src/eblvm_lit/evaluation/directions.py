"""Whether a metric is better when it is higher or when it is lower, by the words of its name."""

from __future__ import annotations

__all__ = ["direction"]

# Words of a metric's name.
HIGHER = frozenset(
    ("likelihood", "auroc", "aupr", "accuracy", "inception", "second", "cosine", "precision", "recall", "coverage")
)
LOWER = frozenset(("fisher", "fid", "kid", "fd", "kd", "fpr95", "rmse", "ksd", "kl", "loss", "error", "mmd"))
# A standard error says how sure another number is, and the norm of a gradient how long a step is. A critic's estimate
# of a divergence is a lower bound: the higher the better the critic, and the lower the better the model.
NEITHER = frozenset(("standard", "norm", "divergence"))


def direction(metric: str) -> int:
    """Whether a metric is better when higher (1), when lower (-1), or neither (0).

    Example:
        >>> [direction(name) for name in ("test/auroc_svhn", "val/fisher (last 3)", "test/log_z_standard_error")]
        [1, -1, 0]
        >>> [direction(name) for name in ("val/fisher_divergence", "fisher_divergence_error", "val/loss_grad_norm")]
        [0, -1, 0]
    """
    words = set(metric.split(" ")[0].split("/")[-1].split("_"))
    if words & NEITHER and not {"divergence", "error"} <= words:
        return 0
    return bool(words & HIGHER) - bool(words & LOWER)
