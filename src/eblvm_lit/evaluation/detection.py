"""AUROC, AUPR and FPR95 of a score that separates data from outliers."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

__all__ = ["CRITERIA", "detection"]

CRITERIA = ("auroc", "aupr", "fpr95")


def detection(inside: Tensor, outside: Tensor) -> dict[str, float]:
    r"""AUROC, AUPR and FPR95 of a score that should be higher for data than for outliers.

    AUROC is the probability that :math:`s(v) > s(w)`, ties counting half; in AUPR the data are the positive class;
    FPR95 is the fraction of outliers above the score that 95 % of the data exceed. All depend on ranks alone, of
    which infinity has the first or the last.

    Args:
        inside: Scores of data, shape (n,).
        outside: Scores of outliers, shape (m,).

    Example:
        >>> detection(torch.tensor([5.0, 7.0]), torch.tensor([1.0, 6.0]))["auroc"]
        0.75
    """
    largest = torch.finfo(torch.float64).max  # scikit-learn refuses infinity, which has the rank of the largest number
    scores = torch.cat([inside, outside]).double().clamp(-largest, largest).cpu().numpy()
    labels = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    false_positives, true_positives, _ = roc_curve(labels, scores, drop_intermediate=False)
    values = (
        roc_auc_score(labels, scores),
        average_precision_score(labels, scores),
        false_positives[np.searchsorted(true_positives, 0.95)],
    )
    return {name: float(value) for name, value in zip(CRITERIA, values, strict=True)}
