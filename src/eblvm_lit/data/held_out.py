"""The classes that training and validation leave out, so that they are outliers in the test split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.numbers import listing

__all__ = ["labels_of_classes", "without_classes"]


def labels_of_classes(classes: Sequence[int | str], labels: Any, names: Sequence[str] | None) -> torch.Tensor:
    """Convert classes that are given by label or by name to labels.

    Args:
        classes: The labels or the names of the classes.
        labels: The labels of the three splits, arrays or tensors; None if the data have none.
        names: The names of the labels 0, 1, ...; None if they have no names.

    Returns:
        The labels of the classes, int64, shape (len(classes),).

    Raises:
        ConfigError: If the data do not have one label per example, or if no test example has one of the classes.

    Example:
        >>> labels_of_classes(["frog", 0], [np.arange(2)] * 3, ["bird", "frog"])
        tensor([1, 0])
    """
    if labels is None or labels[2].ndim != 1:
        raise ConfigError(
            "data.held_out_classes needs data with one label per example: leave it out, or choose others."
        )
    # names may be numerals, as in the column of labels "1", "2", "x": they are names, and not the labels 0, 1, 2
    found = [names.index(str(one)) if names is not None and str(one) in names else one for one in classes]
    known = np.unique(labels[2]).tolist()
    if odd := [one for one in found if one not in known]:
        listed = listing(names or known)
        raise ConfigError(f"data.held_out_classes: no test example has the class {odd[0]!r}; the classes are {listed}.")
    return torch.tensor(found)


def without_classes(
    parts: Sequence[Any], labels: Any, classes: Sequence[int | str], names: Any = None
) -> Sequence[Any]:
    """Leave all rows of some classes out of the training and the validation part.

    Args:
        parts: Arrays or tensors with a row for each example of the training, validation and test split.
        labels: The labels of the three splits; None if the data have none.
        classes: The labels or the names of the classes.
        names: The names of the labels 0, 1, ...; None if they have no names.

    Returns:
        The parts, with fewer rows in the first two; the parts themselves if there are no such classes.

    Example:
        >>> without_classes([np.array([5, 6, 7])] * 3, [np.array([0, 1, 0])] * 3, [1])
        [array([5, 7]), array([5, 7]), array([5, 6, 7])]
    """
    if not classes:
        return parts
    outliers = labels_of_classes(classes, labels, names)
    rest = [part[~np.isin(known, outliers)] for part, known in zip(parts[:2], labels[:2], strict=True)]
    if not all(map(len, rest)):
        raise ConfigError("data.held_out_classes leaves no example for training or for validation: name fewer classes.")
    return [*rest, parts[2]]
