"""Functions that read arrays and tables from files, one per format: .npy, .npz, .mat, .pt, .csv, .tsv, .parquet."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from eblvm_lit.data.tables import LABELS, Names, Table, check_finite, table_of
from eblvm_lit.errors import DataError
from eblvm_lit.utils.io import read_arrays

__all__ = ["read"]


def read(path: Path, names: Names | None = None) -> Table:
    r"""Read the examples of a file in the format given by its suffix.

    Nothing is unpickled: arrays of Python objects are refused.

    Args:
        path: The file.
        names: The arrays or columns that are read; by default those that the file's format suggests.

    Raises:
        DataError: If the file is missing or of another format, has no such array or column, or contains text, NaN or
            infinite numbers; the message names the row and the column, both counted from 0 as NumPy does.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "points.csv"
        >>> _ = path.write_text("x,y,kind\n0.5,1,a\n2,3,b\n")
        >>> table = read(path, Names(label_column="kind"))
        >>> table.columns, table.values.tolist(), table.labels.tolist()
        (('x', 'y'), [[0.5, 1.0], [2.0, 3.0]], ['a', 'b'])
        >>> read(path)
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.DataError: .../points.csv: row 0, column kind is 'a', and no number, ...

        The arrays of one file may be named by their splits:

        >>> np.savez(path.with_suffix(".npz"), x_train=np.ones((2, 3)), x_test=np.zeros((1, 3)))
        >>> read(path.with_suffix(".npz")).split.tolist()
        ['train', 'train', 'test']
    """
    if path.suffix.lower() not in READERS:
        raise DataError(
            f"{path} is no file of a known format ({', '.join(READERS)}): convert it to one of them, or read a folder "
            f"of images by data=image_folder data.path={path}"
        )
    if not path.is_file():
        raise DataError(f"There is no file {path}: set data.path to a file of examples.")
    table = READERS[path.suffix.lower()](path, names or Names())
    check_finite(path, table)
    return table


# ------------------------------------------------------------------ readers of array files


def _read_npy(path: Path, names: Names) -> Table:
    return table_of(path, {"": np.load(path, allow_pickle=False)}, names)


def _read_npz(path: Path, names: Names) -> Table:
    return table_of(path, read_arrays(path), names)


def _read_mat(path: Path, names: Names) -> Table:
    from scipy.io import loadmat  # imported here, because the import is slow

    content = loadmat(str(path))
    return table_of(path, {name: array for name, array in content.items() if not name.startswith("__")}, names)


def _read_pt(path: Path, names: Names) -> Table:
    import torch

    from eblvm_lit.core.tensors import at_least_float32  # here, because it imports torch

    content: Any = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, tuple | list) and len(content) == 2:
        content = {"x": content[0], "y": content[1]}
    arrays = content if isinstance(content, Mapping) else {"": content}
    found: dict[str, np.ndarray] = {}
    for name, part in arrays.items():
        if isinstance(part, torch.Tensor):
            # Both types of 16-bit floats are converted to float32, because NumPy has no bfloat16.
            found[str(name)] = at_least_float32(part.detach()).numpy()
        elif name == names.label_key or str(name).lower() in LABELS:
            found[str(name)] = np.array(part)  # labels in words
    return table_of(path, found, names)


# ------------------------------------------------------------------ readers of tables


def _read_text(path: Path, names: Names, separator: str | None = None) -> Table:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        n_blank, first = next(((i, line) for i, line in enumerate(file) if line.strip()), (0, ""))
    separator = separator or (";" if ";" in first else "," if "," in first else r"\s+")
    words = [word.strip().strip('"') for word in re.split(separator, first.lstrip("#").strip())]
    header = first.startswith("#")  # numpy.savetxt writes column names as a comment
    try:
        np.asarray([word or "nan" for word in words], dtype=np.float64)
    except ValueError:
        header = True
    frame = pd.read_csv(
        path,
        sep=separator,
        header=None,
        names=None,
        skiprows=n_blank + header,
        encoding="utf-8-sig",
        skip_blank_lines=True,
        low_memory=False,
    )
    numbers = list(map(str, range(len(words))))
    if not header and len(words) > 1 and words in (numbers, ["", *numbers[:-1]]):
        # pandas names columns 0, 1, ... if they have no names; below a row of examples there may be decimals, too, but
        # this row is then hardly 0, 1, ...
        rest = frame.iloc[1:].apply(pd.to_numeric, errors="coerce")
        header = not words[0] or bool((rest % 1 > 0).any(axis=None))
        frame = frame.iloc[1:] if header else frame
    return _table_of_frame(path, frame.set_axis(words, axis=1) if header else frame, names, named=header)


def _read_parquet(path: Path, names: Names) -> Table:
    return _table_of_frame(path, pd.read_parquet(path), names, named=True)


def _table_of_frame(path: Path, frame: pd.DataFrame, names: Names, *, named: bool) -> Table:
    """Choose the columns of a data frame that hold the examples, the labels and the split names."""
    if names.key is not None or names.label_key is not None:
        raise DataError(f"{path} is a table: name its columns by data.columns and data.label_column.")
    frame = frame.rename(columns=str)  # names may be numerals, which a configuration reads as numbers
    if "" in frame.columns and len(frame.columns) > 1:
        frame = frame.drop(columns="")  # a column without a name holds the row numbers that pandas writes
    if not frame.columns.is_unique:
        raise DataError(f"{path} has several columns of one name: give each its own.")
    others = [str(name) for name in (names.label_column, names.split_column) if name is not None]
    chosen = [name for name in frame.columns if name not in others]
    if names.columns is not None:
        chosen = [str(name) for name in names.columns]
    if unknown := [name for name in (*chosen, *others) if name not in frame.columns]:
        known = ", ".join(frame.columns)
        raise DataError(f"{path} has no column {unknown[0]!r}; its columns are {known}.")
    columns = [_column_of_numbers(path, cast(pd.Series, frame[name]), name) for name in chosen]
    labels = None if names.label_column is None else frame[str(names.label_column)].to_numpy()
    split = None if names.split_column is None else frame[str(names.split_column)].to_numpy()
    return Table(np.stack(columns, axis=1), labels, split, tuple(chosen) if named else None)


def _column_of_numbers(path: Path, column: pd.Series, name: object) -> np.ndarray:
    """Convert a column to float64; raise an error that names the first row with text or a missing value."""
    # as text, dates and times are refused, although pandas would convert them to numbers
    values = column.astype(str) if column.dtype.kind in "mM" else column
    numbers = np.asarray(pd.to_numeric(values, errors="coerce"), dtype=np.float64)
    bad = np.flatnonzero(np.isnan(numbers))
    if len(bad):
        raise DataError(
            f"{path}: row {bad[0]}, column {name} is {str(column.iloc[bad[0]])!r}, and no number, as in {len(bad)} "
            "rows: leave them out, choose columns by data.columns=[...], or name the labels by data.label_column."
        )
    return numbers


# For each suffix, the function that reads files with this suffix.
READERS: dict[str, Callable[[Path, Names], Table]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_text,
    ".tsv": functools.partial(_read_text, separator="\t"),
    ".parquet": _read_parquet,
    ".mat": _read_mat,
    ".pt": _read_pt,
}
