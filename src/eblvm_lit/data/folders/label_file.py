"""The labels of images, read from a CSV file with a column of file names and a column of labels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from eblvm_lit.errors import DataError

__all__ = ["in_order", "labels_of"]


def labels_of(table: Path, files: Sequence[Path]) -> list[str]:
    r"""Read the label of each image from a CSV file whose rows are ``file,label``.

    The first column names files by their paths relative to the table's folder, or by their names if these are unique.
    Rows that name none of the images, such as a header, are skipped.

    Args:
        table: The CSV file.
        files: The images, below the table's folder.

    Raises:
        DataError: If an image has no label, or if it has two, or for a table of more columns.

    Example:
        >>> import tempfile
        >>> table = Path(tempfile.mkdtemp(), "labels.csv")
        >>> _ = table.write_text("file,label\na.png,cat\nb.png,dog\nc.png,dog\n")
        >>> labels_of(table, [table.with_name("b.png"), table.with_name("a.png")])
        ['dog', 'cat']
    """
    with table.open(encoding="utf-8-sig", newline="") as file:  # utf-8-sig accepts an optional byte-order mark
        rows = [[cell.strip() for cell in row] for row in csv.reader(file) if len(row) > 1]
    if wide := [row for row in rows if len(row) > 2]:
        raise DataError(f"{table}: each row is file,label, without other columns, which {','.join(wide[0])} has.")
    paths = _paths_by_name(table.parent, files)
    found: dict[Path, str] = {}
    for name, label in rows:
        if name in paths and found.setdefault(paths[name], label) != label:
            raise DataError(f"{table} has two labels for {name}, {found[paths[name]]} and {label}: keep one.")
    if missing := [path for path in files if path not in found]:
        raise DataError(
            f"{table} has no label for {missing[0].name}: add a row file,label for each image, in which file is its "
            "path below this folder."
        )
    return [found[path] for path in files]


def in_order(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct labels, sorted numerically if all are integers and alphabetically otherwise.

    Example:
        >>> in_order(["10", "9", "10"]), in_order(["b", "a", "10"])
        (('9', '10'), ('10', 'a', 'b'))
    """
    names = {*labels}
    return tuple(sorted(names, key=int if all(name.isdecimal() for name in names) else None))


def _paths_by_name(folder: Path, files: Sequence[Path]) -> dict[str, Path]:
    """Return the path of each image, in a dict by the names that a table of labels may use for the image.

    The names are the paths relative to the table's folder, and the file names that are unique.
    """
    names: dict[str, list[Path]] = {}
    for path in files:
        names.setdefault(path.name, []).append(path)
    unique = {name: paths[0] for name, paths in names.items() if len(paths) == 1}
    return unique | {path.relative_to(folder).as_posix(): path for path in files}
