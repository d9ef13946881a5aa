"""Whether a metric is better when it is higher or when it is lower, by the words of its name."""

from __future__ import annotations

__all__ = ["direction"]

# Words of a metric's name.
HIGHER = frozenset(
    ("likelihood", "auroc", "aupr", "accuracy", "inception", "second", "cosine", "precision", "recall", "coverage")
)
LOWER = frozenset(("fisher", "fid", "kid", "fd", "kd", "fpr95", "rmse", "ksd", "kl", "loss", "error", "mmd"))
# A standard error and a deviation say how sure another number is, and the norm of a gradient how long a step is.
SPREADS = frozenset(("standard", "std", "norm"))
# Two words that say together what neither says alone. The error of a log Z has a sign: the best is zero.
PAIRS = {frozenset(("classifier", "score")): 1, frozenset(("divergence", "error")): -1, frozenset(("z", "error")): 0}
# A critic's estimate of a divergence is a lower bound: the higher the better the critic, and the lower the better the
# model.
NEITHER = frozenset(("divergence",))


def direction(metric: str) -> int:
    """Whether a metric is better when higher (1), when lower (-1), or neither (0).

    Example:
        >>> [direction(name) for name in ("test/auroc_svhn", "val/fisher (last 3)", "test/log_z_standard_error")]
        [1, -1, 0]
        >>> [direction(name) for name in ("val/fisher_divergence", "fisher_divergence_error", "val/loss_grad_norm")]
        [0, -1, 0]
        >>> [direction(name) for name in ("classifier_score", "classifier_score_std", "learned_log_z_error")]
        [1, 0, 0]
    """
    words = set(metric.split(" ")[0].split("/")[-1].split("_"))
    if words & SPREADS:
        return 0
    for pair, way in PAIRS.items():
        if pair <= words:
            return way
    if words & NEITHER:
        return 0
    return bool(words & HIGHER) - bool(words & LOWER)
