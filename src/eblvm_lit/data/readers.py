"""Functions that read arrays and tables from files, one per format: .npy, .npz, .mat, .pt, .csv, .tsv, .parquet."""

from __future__ import annotations

import functools
import logging
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from eblvm_lit.data.splitting import NAMES, WORDS
from eblvm_lit.errors import DataError
from eblvm_lit.utils.io import read_arrays

__all__ = ["Names", "Table", "read"]

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
    _check_finite(path, table)
    return table


def _check_finite(path: Path | str, table: Table) -> None:
    """Raise an error that names the first non-finite value, if there is one."""
    bad = np.argwhere(~np.isfinite(table.values))
    if len(bad):
        row, *place = bad[0].tolist()
        column = place[0] if table.columns is None else table.columns[place[0]]
        where = f"column {column}" if len(place) == 1 else f"pixel {tuple(place)}"
        n_others = len({*bad[:, 0].tolist()}) - 1
        others = f", and {n_others:,} other rows have such values" if n_others else ""
        raise DataError(
            f"{path}: row {row}, {where} is {table.values[tuple(bad[0])]}{others}: fill them in or leave these rows "
            "out."
        )


# ------------------------------------------------------------------ readers of array files


def _read_npy(path: Path, names: Names) -> Table:
    return _table_of(path, {"": _without_pickle(path, lambda: np.load(path, allow_pickle=False))}, names)


def _read_npz(path: Path, names: Names) -> Table:
    return _table_of(path, _without_pickle(path, lambda: read_arrays(path)), names)


def _read_mat(path: Path, names: Names) -> Table:
    from scipy.io import loadmat  # imported here, because the import is slow

    try:
        content = loadmat(str(path))
    except NotImplementedError:
        raise DataError(f"{path} is a MATLAB 7.3 file: save it with -v7, or as .npy or .csv.") from None
    except (ValueError, TypeError, OSError) as error:
        raise _damaged(path, error) from None
    return _table_of(path, {name: array for name, array in content.items() if not name.startswith("__")}, names)


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
    return _table_of(path, found, names)


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


def _table_of(path: Path, arrays: Mapping[str, np.ndarray], names: Names) -> Table:
    """Choose the examples and the labels among the arrays of a file."""
    if names.label_column is not None or names.split_column is not None:
        raise DataError(f"{path} has no named columns: give the labels as another array, by data.label_key.")
    splits = {} if names.key in arrays else _arrays_by_split(arrays, names)
    if len(splits) == 1:
        return _table_of(path, splits["train"], names)
    if splits:
        return _joined(path, {split: _table_of(path, own, names) for split, own in splits.items()})
    values = np.asarray(arrays[_key(path, arrays, names.key, EXAMPLES, "data.key")])
    if values.dtype.kind not in "buif":
        kinds = {"O": "Python objects", "U": "text", "S": "text", "c": "complex numbers"}
        kind = kinds.get(values.dtype.kind, "records")
        raise DataError(f"{path} holds {kind} ({values.dtype}): save an array of real numbers.")
    label_key = names.label_key or _usual(arrays, LABELS)
    if names.label_key is None and label_key and label_key.lower() != LABELS[0]:
        many = arrays[label_key]  # an array of this name need not have a label for each example
        label_key = label_key if many.ndim and len(values) in (len(many), many.size) else None
    labels = None
    if label_key is not None:
        labels = arrays[_key(path, arrays, label_key, LABELS, "data.label_key")]
        # MATLAB has no one-dimensional arrays: labels are stored as a row or as a column.
        labels = labels.reshape(-1) if labels.ndim == 2 and 1 in labels.shape else labels
        if labels.ndim == 0 or len(labels) != len(values):
            n = 1 if labels.ndim == 0 else len(labels)
            last = " The last axis has as many: move it to the front." if values.shape[-1] == n > 1 else ""
            raise DataError(f"{path} has {len(values):,} examples and {n:,} labels: they must be as many.{last}")
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
        _check_finite(f"{path}, {split}", part)
        if part.values.shape[1:] != parts["train"].values.shape[1:]:
            raise DataError(
                f"{path}: examples of train have the shape {parts['train'].values.shape[1:]}, and those of {split} "
                f"{part.values.shape[1:]}: they must be alike."
            )
        if part.values.ndim < 2 or len(part.values) == 0:
            raise DataError(f"{path}, {split}, holds no examples: its array has the shape {part.values.shape}.")
        if part.values.ndim > 2 and (part.values.dtype.kind == "f") != (parts["train"].values.dtype.kind == "f"):
            raise DataError(
                f"{path}: the images of train are {parts['train'].values.dtype} and those of {split} "
                f"{part.values.dtype}, so that their pixels may have different ranges: store them in one type."
            )
    labels = [part.labels for part in parts.values() if part.labels is not None]
    if 0 < len(labels) < len(parts):
        log.warning("%s: the labels are ignored, because one split has none.", path)
        labels = []
    if len({part.shape[1:] for part in labels}) > 1:
        raise DataError(f"{path}: the labels of the splits have the shapes {', '.join(str(x.shape) for x in labels)}.")
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
