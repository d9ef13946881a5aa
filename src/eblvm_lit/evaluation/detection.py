"""AUROC, AUPR and FPR95 of a score that separates data from outliers."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_average_precision, binary_roc

__all__ = ["detection"]


def detection(inside: Tensor, outside: Tensor) -> dict[str, float]:
    r"""Compute AUROC, AUPR and FPR95 of a score that should be higher for data than for outliers.

    AUROC is the probability that :math:`s(v) > s(w)` for data v and an outlier w, where ties count half. AUPR is the
    area under the precision-recall curve with the data as the positive class. FPR95 is the fraction of outliers whose
    score is above the threshold that 95 % of the data exceed. All three depend only on the ranks of the scores; an
    infinite score has the first or the last rank.

    Args:
        inside: Scores of data, shape (n,).
        outside: Scores of outliers, shape (m,).

    Example:
        >>> detection(torch.tensor([5.0, 7.0]), torch.tensor([1.0, 6.0]))["auroc"]
        0.75
    """
    scores = torch.cat([inside, outside]).double()
    labels = torch.cat([torch.ones_like(inside), torch.zeros_like(outside)]).long()
    # Pass ranks that are scaled to [0, 1]: torchmetrics applies a sigmoid to scores outside of this interval, where
    # rounding turns scores such as 50 and 60 into ties.
    ranks = scores.unique(return_inverse=True)[1].double() / len(scores)
    false_positives, true_positives, _ = binary_roc(ranks, labels)
    fpr95 = false_positives[torch.searchsorted(true_positives, 0.95)]
    values = {"auroc": binary_auroc(ranks, labels), "aupr": binary_average_precision(ranks, labels), "fpr95": fpr95}
    return {name: float(value) for name, value in values.items()}
