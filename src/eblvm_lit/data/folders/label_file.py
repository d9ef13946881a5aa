"""The labels of images, read from a CSV file with a column of file names and a column of labels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from eblvm_lit.errors import DataError

__all__ = ["in_order", "labels_of"]


def labels_of(table: Path, files: Sequence[Path]) -> tuple[list[str], int]:
    r"""Read the label of each image from a CSV file of two columns, with or without a header.

    The first column names files by their paths relative to the table's folder, or by their names if these are unique.
    A header is a first row that names no image; if it has columns ``file`` and ``label``, these are read.

    Args:
        table: The CSV file.
        files: The images, below the table's folder.

    Returns:
        The label of each image, and the number of rows that refer to none of the images.

    Raises:
        DataError: If the table cannot be read, if an image has no label, or if it has two.

    Example:
        >>> import tempfile
        >>> table = Path(tempfile.mkdtemp(), "labels.csv")
        >>> _ = table.write_text("label,file\ncat,a.png\ndog,b.png\ndog,c.png\n")
        >>> labels_of(table, [table.with_name("b.png"), table.with_name("a.png")])
        (['dog', 'cat'], 1)
    """
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:  # utf-8-sig accepts an optional byte-order mark
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table} cannot be read ({error}): save it as comma-separated text in UTF-8.") from error
    if short := [row for row in rows if len(row) < 2]:
        raise DataError(f"{table} has the row {short[0][0]!r}: each row is file,label, with a comma between them.")
    keys = _keys(table.parent, files)
    column, label = _columns(rows[0] if rows else [], keys)
    body = rows[1:] if rows and _key(rows[0][column]) not in keys else rows
    found: dict[Path, str] = {}
    unused = 0
    for row in body:
        path = keys.get(_key(row[column])) if len(row) > max(column, label) else None
        unused += path is None
        if path is not None and found.setdefault(path, row[label]) != row[label]:
            raise DataError(f"{table} has two labels for {row[column]}, {found[path]} and {row[label]}: keep one.")
    if missing := [path for path in files if path not in found]:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise DataError(f"{table} has no label for {missing[0].name}{more}: add a row file,label for each image.")
    return [found[path] for path in files], unused


def in_order(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct labels, sorted numerically if all are integers and alphabetically otherwise.

    Example:
        >>> in_order(["10", "9", "10"]), in_order(["b", "a", "10"])
        (('9', '10'), ('10', 'a', 'b'))
    """
    names = {*labels}
    return tuple(sorted(names, key=int if all(name.isdecimal() for name in names) else None))


def _key(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")


def _keys(folder: Path, files: Sequence[Path]) -> dict[str, Path]:
    """Return the path of each image, in a dict by the names that a table of labels may use for the image.

    The names are the paths relative to the table's folder, and the file names that are unique.
    """
    names: dict[str, list[Path]] = {}
    for path in files:
        names.setdefault(path.name, []).append(path)
    unique = {name: paths[0] for name, paths in names.items() if len(paths) == 1}
    return unique | {path.relative_to(folder).as_posix(): path for path in files}


def _columns(header: Sequence[str], keys: dict[str, Path]) -> tuple[int, int]:
    """Return the indices of the file column and the label column: 0 and 1, unless a header names these columns."""
    words = [cell.lower() for cell in header]
    if "file" in words and "label" in words and not any(_key(cell) in keys for cell in header):
        return words.index("file"), words.index("label")
    return 0, 1
