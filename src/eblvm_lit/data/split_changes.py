"""Functions that compare the splits of a data set with the splits on which a checkpoint was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from eblvm_lit.data.splitting import NAMES, PURPOSES

__all__ = ["as_integers", "changed_splits", "n_trained_on"]


def as_integers(digests: Sequence[bytes]) -> Tensor:
    r"""Return the first 64 bits of each digest as integers, int64, shape (n,).

    Of a million different examples, two have equal integers with probability 3e-8.

    Example:
        >>> as_integers([b"\x01" + bytes(15), b"\x02" + bytes(15)])
        tensor([1, 2])
    """
    return torch.from_numpy(np.frombuffer(b"".join(one[:8] for one in digests), "<i8").astype(np.int64))


def changed_splits(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> str:
    """Describe how many examples each split has gained and lost; return an empty string if nothing has changed.

    Args:
        before: The state of the data module in a checkpoint: sorted digests of the examples by split, int64.
        now: The state of the present data module.

    Example:
        >>> before = {"train": torch.tensor([1, 2, 3]), "val": torch.tensor([4]), "test": torch.tensor([5])}
        >>> changed_splits(before, {**before, "train": torch.tensor([2, 3, 6, 7])})
        '2 added and 1 removed for training'
    """
    parts = []
    for name, purpose in zip(NAMES, PURPOSES, strict=True):
        added = int((~torch.isin(now[name], before[name])).sum())
        removed = int((~torch.isin(before[name], now[name])).sum())
        if counts := [f"{n} {what}" for n, what in ((added, "added"), (removed, "removed")) if n]:
            parts.append(f"{' and '.join(counts)} for {purpose}")
    return ", ".join(parts)


def n_trained_on(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> int:
    """Count the test examples that were training examples of a checkpoint, or of the runs that it resumed.

    Examples that were already in both splits do not count; this is possible if the user has divided the data.

    Example:
        >>> before = {"train": torch.tensor([1, 2, 3]), "test": torch.tensor([3, 5]), "earlier": torch.tensor([8])}
        >>> n_trained_on(before, {"test": torch.tensor([2, 3, 7, 8])})
        2
    """
    trained = torch.cat([before["train"], before["earlier"]])
    new = now["test"][~torch.isin(now["test"], before["test"])]
    return int(torch.isin(new, trained).sum())
