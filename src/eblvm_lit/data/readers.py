"""Functions that read arrays and tables from files, one per format: .npy, .npz, .mat, .pt, .csv, .tsv, .parquet."""

from __future__ import annotations

import functools
import pickle
import re
import zipfile
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
        DataError: If the file is missing, empty or damaged, has no such array or column, or contains text, objects,
            NaN or infinite numbers; the message names the row and the column, both counted from 0 as NumPy does.

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
        eblvm_lit.errors.DataError: .../points.csv: row 0, column kind is 'a', and no number: ...

        The arrays of one file may be named by their splits:

        >>> np.savez(path.with_suffix(".npz"), x_train=np.ones((2, 3)), x_test=np.zeros((1, 3)))
        >>> read(path.with_suffix(".npz")).split.tolist()
        ['train', 'train', 'test']
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder: for a folder of images, use data=image_folder data.path={path}")
    if path.suffix.lower() not in READERS:
        raise DataError(f"{path} is no file of a known format ({', '.join(READERS)}): convert it to one of them.")
    if not path.is_file():
        raise DataError(f"There is no file {path}: set data.path to a file of examples.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.")
    table = READERS[path.suffix.lower()](path, names or Names())
    if table.values.ndim < 2 or table.values.size == 0:
        raise DataError(f"{path} holds no examples: its array has the shape {table.values.shape}.")
    check_finite(path, table)
    return table


# ------------------------------------------------------------------ readers of array files


def _read_npy(path: Path, names: Names) -> Table:
    return table_of(path, {"": _without_pickle(path, lambda: np.load(path, allow_pickle=False))}, names)


def _read_npz(path: Path, names: Names) -> Table:
    return table_of(path, _without_pickle(path, lambda: read_arrays(path)), names)


def _read_mat(path: Path, names: Names) -> Table:
    from scipy.io import loadmat  # imported here, because the import is slow

    try:
        content = loadmat(str(path))
    except NotImplementedError:
        raise DataError(f"{path} is a MATLAB 7.3 file: save it with -v7, or as .npy or .csv.") from None
    except (ValueError, TypeError, OSError) as error:
        raise _damaged(path, error) from None
    return table_of(path, {name: array for name, array in content.items() if not name.startswith("__")}, names)


def _read_pt(path: Path, names: Names) -> Table:
    import torch

    from eblvm_lit.core.tensors import at_least_float32  # here, because it imports torch

    content: Any = _without_pickle(path, lambda: torch.load(path, map_location="cpu", weights_only=True))
    if isinstance(content, tuple | list) and len(content) == 2:
        content = {"x": content[0], "y": content[1]}
    arrays = content if isinstance(content, Mapping) else {"": content}
    found: dict[str, np.ndarray] = {}
    for name, part in arrays.items():
        if isinstance(part, torch.Tensor):
            # Both types of 16-bit floats are converted to float32, because NumPy has no bfloat16.
            found[str(name)] = at_least_float32(part.detach()).to_dense().numpy()
        elif name == names.label_key or str(name).lower() in LABELS:
            found[str(name)] = np.array(part)  # labels in words
    if not found:
        raise DataError(f"{path} holds no tensor: save a tensor, a pair (x, y), or a dictionary of tensors.")
    return table_of(path, found, names)


def _without_pickle(path: Path, load: Callable[[], Any]) -> Any:
    """Load a file; raise a short DataError if it contains objects that only pickle can read."""
    try:
        return load()
    except (pickle.UnpicklingError, zipfile.BadZipFile, ValueError, OSError, EOFError, RuntimeError, KeyError) as error:
        if isinstance(error, pickle.UnpicklingError) or "allow_pickle" in str(error):
            raise DataError(
                f"{path} holds Python objects, which are not loaded because they may run code: save numbers only."
            ) from None
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as {path.suffix}: {' '.join(str(error).split()) or type(error).__name__}.")


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
    try:
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
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} holds no examples below its header.") from None
    except pd.errors.ParserError as error:
        raise _damaged(path, error) from None
    numbers = list(map(str, range(len(words))))
    if not header and len(words) > 1 and words in (numbers, ["", *numbers[:-1]]):
        # pandas names columns 0, 1, ... if they have no names; below a row of examples there may be decimals, too, but
        # this row is then hardly 0, 1, ...
        rest = frame.iloc[1:].apply(pd.to_numeric, errors="coerce")
        header = not words[0] or bool((rest % 1 > 0).any(axis=None))
        frame = frame.iloc[1:] if header else frame
    if header and len(words) != frame.shape[1]:
        raise DataError(
            f"{path} has {len(words)} names of columns and {frame.shape[1]} columns: give each column a name, or none."
        )
    return _table_of_frame(path, frame.set_axis(words, axis=1) if header else frame, names, named=header)


def _read_parquet(path: Path, names: Names) -> Table:
    try:
        frame = pd.read_parquet(path)
    except ImportError:
        raise DataError(f"{path} needs the package pyarrow: install it, or save the table as .csv or .npy.") from None
    except (ValueError, OSError) as error:
        raise _damaged(path, error) from None
    return _table_of_frame(path, frame.rename(columns=str), names, named=True)


def _table_of_frame(path: Path, frame: pd.DataFrame, names: Names, *, named: bool) -> Table:
    """Choose the columns of a data frame that hold the examples, the labels and the split names."""
    if names.key is not None or names.label_key is not None:
        raise DataError(f"{path} is a table: name its columns by data.columns and data.label_column.")
    if named and "" in frame.columns and len(frame.columns) > 1:
        frame = frame.drop(columns="")  # a column without a name holds the row numbers that pandas writes
    if named:  # names may be numerals, which a configuration reads as numbers
        columns = names.columns and [str(column) for column in names.columns]
        label, split = (None if name is None else str(name) for name in (names.label_column, names.split_column))
        names = names._replace(columns=columns, label_column=label, split_column=split)
    others = [name for name in (names.label_column, names.split_column) if name is not None]
    chosen = [name for name in frame.columns if name not in others] if names.columns is None else list(names.columns)
    if unknown := [name for name in (*chosen, *others) if name not in frame.columns]:
        known = ", ".join(map(str, frame.columns))
        raise DataError(f"{path} has no column {unknown[0]!r}; its columns are {known}.")
    if not chosen:
        raise DataError(f"{path} has no columns beside {', '.join(map(str, others))}: nothing is left to model.")
    repeated = {*frame.columns[frame.columns.duplicated()]} & {*chosen, *others}
    if repeated:
        name = min(map(str, repeated))
        raise DataError(f"{path} has several columns that are called {name}: give each its own name.")
    columns = [_column_of_numbers(path, cast(pd.Series, frame[name]), name) for name in chosen]
    labels = None if names.label_column is None else frame[names.label_column].to_numpy()
    split = None if names.split_column is None else frame[names.split_column].to_numpy()
    return Table(np.stack(columns, axis=1), labels, split, tuple(map(str, chosen)) if named else None)


def _column_of_numbers(path: Path, column: pd.Series, name: object) -> np.ndarray:
    """Convert a column to float64; raise an error that names the first row with text or a missing value."""
    # as text, dates and times are refused, although pandas would convert them to numbers
    values = column.astype(str) if column.dtype.kind in "mM" else column
    numbers = np.asarray(pd.to_numeric(values, errors="coerce"), dtype=np.float64)
    bad = np.flatnonzero(np.isnan(numbers))
    if len(bad):
        value = column.iloc[bad[0]]
        what = f"{path}: row {bad[0]}, column {name} is"
        if pd.isna(value):
            raise DataError(f"{what} missing or NaN, {len(bad):,} in all: fill it in or leave the row out.")
        fix = "leave the column out by data.columns=[...], or name it by data.label_column"
        raise DataError(f"{what} {str(value)!r}, and no number: {fix}.")
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
