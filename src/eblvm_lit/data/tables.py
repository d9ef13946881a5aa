"""The table of examples of one file, and the choice of its arrays by their names: examples, labels and splits."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eblvm_lit.data.splitting import NAMES, WORDS
from eblvm_lit.errors import DataError

__all__ = ["LABELS", "Names", "Table", "check_finite", "table_of"]

log = logging.getLogger(__name__)

# The usual names, in lower case, of the array of examples and of the array of labels. The name of an array may also
# contain the name of a split, as in x_train; an array that is called train has the name "" without it.
EXAMPLES = ("x", "images", "data", "")
LABELS = ("y", "labels")


class Names(NamedTuple):
    """The names of the arrays or columns to read from a file; :func:`read` chooses them where a name is None.

    Attributes:
        key: The name of the array of examples, in .npz, .mat and .pt files. If each split has its own array, such as
            train_images and test_images, it is the name without the split.
        label_key: The name of the array of labels in these files, again without the split.
        columns: The columns that are read: names for a table, indices from 0 for an array (n, d).
        label_column: The label column of a table.
        split_column: The column of a table that says to which split a row belongs.
    """

    key: str | None = None
    label_key: str | None = None
    columns: Sequence[str | int] | None = None
    label_column: str | int | None = None
    split_column: str | int | None = None


class Table(NamedTuple):
    """The examples of one file.

    Attributes:
        values: The examples as stored, shape (n, d), (n, H, W), (n, C, H, W) or (n, H, W, C), of a numeric type.
        labels: The labels as stored, shape (n, ...); None if there are none.
        split: The split name of each row, shape (n,); None if neither a column nor the names of arrays give splits.
        columns: The names of the columns of a table; None for an array without names.
    """

    values: np.ndarray
    labels: np.ndarray | None = None
    split: np.ndarray | None = None
    columns: tuple[str, ...] | None = None


def check_finite(path: Path | str, table: Table) -> None:
    """Raise an error that names the first non-finite value, if there is one."""
    bad = np.argwhere(~np.isfinite(table.values))
    if len(bad):
        row, *place = bad[0].tolist()
        column = place[0] if table.columns is None else table.columns[place[0]]
        where = f"column {column}" if len(place) == 1 else f"pixel {tuple(place)}"
        raise DataError(
            f"{path}: row {row}, {where} is {table.values[tuple(bad[0])]}, the first of {len(bad):,} such values: fill "
            "them in or leave these rows out."
        )


def table_of(path: Path, arrays: Mapping[str, np.ndarray], names: Names) -> Table:
    """Choose the examples and the labels among the arrays of a file."""
    if names.label_column is not None or names.split_column is not None:
        raise DataError(f"{path} has no named columns: give the labels as another array, by data.label_key.")
    splits = {} if names.key in arrays else _arrays_by_split(arrays, names)
    if len(splits) == 1:
        return table_of(path, splits["train"], names)
    if splits:
        return _joined(path, {split: table_of(path, own, names) for split, own in splits.items()})
    values = np.asarray(arrays[_key(path, arrays, names.key, EXAMPLES, "data.key")])
    if values.dtype.kind not in "buif":
        raise DataError(f"{path} holds an array of type {values.dtype}: save an array of real numbers.")
    label_key = names.label_key or _usual(arrays, LABELS)
    labels = None
    if label_key is not None:
        labels = arrays[_key(path, arrays, label_key, LABELS, "data.label_key")]
        # MATLAB has no one-dimensional arrays: labels are stored as a row or as a column.
        labels = labels.reshape(-1) if labels.ndim == 2 and 1 in labels.shape else labels
        if len(labels) != len(values):
            raise DataError(
                f"{path} has {len(values):,} examples and {len(labels):,} labels: they must be as many. The first axis "
                f"of the shape {values.shape} counts the examples."
            )
    values = values[:, None] if values.ndim == 1 else values
    titles = arrays.get("columns")  # eblvm_lit.train stores the column names of a pandas frame in this array
    named = titles is not None and titles.dtype.kind == "U" and titles.shape == values.shape[1:]
    columns = tuple(map(str, titles)) if titles is not None and named else None
    if names.columns is None or values.ndim != 2:
        return Table(values, labels, None, columns)
    d = values.shape[1]
    numbers = {name: i for i, name in enumerate(columns or ())} | {i: i for i in range(-d, d)}
    if odd := [column for column in names.columns if column not in numbers]:
        known = ", ".join(columns) if columns else f"the numbers 0 to {d - 1}"
        raise DataError(f"{path} has no column {odd[0]!r}; its columns are {known}.")
    chosen = [numbers[column] for column in names.columns]
    return Table(values[:, chosen], labels, None, columns and tuple(columns[i] for i in chosen))


def _arrays_by_split(arrays: Mapping[str, np.ndarray], names: Names) -> dict[str, dict[str, np.ndarray]]:
    """Group the arrays of examples and of labels by the name of a split that their names contain.

    Other arrays, such as train_mask, are left out. If no name without a split is a usual one, any name counts.

    Returns:
        For each split, its arrays by their names without the split: {"x_train": a, "x_test": b} becomes
        {"train": {"x": a}, "test": {"x": b}}. Without arrays for training the result is empty.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    plain: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        words = re.findall(r"[^\W_]+", name)
        splits = [word for word in words if word.lower() in WORDS and not word.isdigit()]
        if len(splits) == 1:
            rest = "_".join(word for word in words if word != splits[0])
            found.setdefault(NAMES[WORDS[splits[0].lower()]], {})[rest] = array
        else:
            plain[name] = array

    def is_example(name: str) -> bool:
        return name == names.key or (names.key is None and name.lower() in EXAMPLES)

    def wanted(own: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        labels = {name: x for name, x in own.items() if name == names.label_key or name.lower() in LABELS}
        return labels | {name: x for name, x in own.items() if is_example(name)}

    known = {split: wanted(own) for split, own in found.items() if any(map(is_example, own))}
    if any(map(is_example, plain)):  # such as x and x_test
        return {"train": wanted(plain), **known} if known and "train" not in known else {}
    if "train" in known:
        return known
    return found if "train" in found and not plain and not known else {}


def _joined(path: Path, parts: Mapping[str, Table]) -> Table:
    """Join the tables of the splits into one table with the split of each row."""
    for split, part in parts.items():
        check_finite(f"{path}, {split}", part)
    types = {part.values.dtype for part in parts.values() if part.values.ndim > 2}
    if len({dtype.kind == "f" for dtype in types}) > 1:
        raise DataError(
            f"{path} has splits of {' and '.join(sorted(map(str, types)))}, whose pixels have different ranges: store "
            "them in one type."
        )
    labels = [part.labels for part in parts.values() if part.labels is not None]
    if 0 < len(labels) < len(parts):
        log.warning("%s: the labels are ignored, because one split has none.", path)
    return Table(
        np.concatenate([part.values for part in parts.values()]),
        np.concatenate(labels) if len(labels) == len(parts) else None,
        np.repeat(list(parts), [len(part.values) for part in parts.values()]),
    )


def _key(path: Path, arrays: Mapping[str, np.ndarray], given: str | None, usual: Sequence[str], option: str) -> str:
    """Choose the name of an array: the given name, or the only name, or a usual name in upper or lower case."""
    listed = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    if given is not None:
        if given not in arrays:
            raise DataError(f"{path} has no array {given!r}; it has {listed}: set {option} to one of them.")
        return given
    if len(arrays) == 1:
        return next(iter(arrays))
    found = _usual(arrays, usual)
    if found is None:
        raise DataError(f"{path} has the arrays {listed}: set data.key, and data.label_key if one of them is labels.")
    return found


def _usual(arrays: Mapping[str, np.ndarray], usual: Sequence[str]) -> str | None:
    """Return the name of the array with the first usual name, in any case; None if there is none or there are two."""
    for word in usual:
        if found := [name for name in arrays if name.lower() == word]:
            return found[0] if len(found) == 1 else None
    return None
