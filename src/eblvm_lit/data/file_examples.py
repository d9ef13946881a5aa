"""The examples of files of arrays and tables: read, divided into splits, and with labels as numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from eblvm_lit.data.arrangement import CHANNELS, channels_first, labels_of, pixels_of
from eblvm_lit.data.readers import read
from eblvm_lit.data.splitting import WORDS, digests_of, fraction_of, refuse_empty, split_of
from eblvm_lit.data.tables import Names, Table
from eblvm_lit.errors import ConfigError, DataError

__all__ = ["Examples", "examples_of", "read_examples", "stamp_of"]


class Examples(NamedTuple):
    """The examples read from all files, divided into splits but not yet standardised.

    Attributes:
        parts: The examples of the training, validation and test split, of one dtype: vectors (n, d), or images
            (n, C, H, W).
        labels: The labels of each split; None if there are none.
        class_names: The names of the labels 0, 1, ...; None if the labels are numbers.
        columns: The names of the columns of vectors; None if they have none.
        stored: The dtype in the file.
        splits_given: Whether the validation or the test split was given, and not drawn from the training examples.
    """

    parts: list[np.ndarray]
    labels: list[np.ndarray] | None
    class_names: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    stored: np.dtype
    splits_given: bool = False

    @property
    def are_images(self) -> bool:
        """Whether the examples are images."""
        return self.parts[0].ndim == 4

    def name(self, column: int) -> str:
        """Return the name of a column, or its index."""
        return str(column) if self.columns is None else self.columns[column]


def stamp_of(path: Path) -> tuple[int, int] | None:
    """Return the size and the modification time of a file, which change with its content; None if there is no file."""
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None


# Cached, because a run builds its data three times, but should read the files only once.
@functools.lru_cache(maxsize=1)
def read_examples(
    paths: tuple[Path | None, ...],
    stamps: tuple[Any, ...],  # noqa: ARG001 - part of the cache's key: a file that has changed is read again
    names: Names,
    seed: int,
    sizes: tuple[float, float],
    image_size: tuple[int, ...] | None,
) -> Examples:
    """Read the files, and draw each split that has no file or rows of its own from the training examples.

    Args:
        paths: One file for all splits, or the files of the training, validation and test split; the last two may be
            None.
        stamps: The sizes and modification times of the files.
        names: What is read of the files.
        seed: The seed of the hash.
        sizes: The sizes of the validation and the test split.
        image_size: The size of images that are stored as vectors.
    """
    where = str(paths[0])
    found = [None if path is None else read(path, names) for path in paths]
    tables = [part and part._replace(values=channels_first(part.values, where)) for part in found]
    if len(tables) > 1 and names.split_column is None and any(part and part.split is not None for part in tables):
        raise DataError(
            "A file of data.train, data.val or data.test has arrays of several splits: set data.path instead."
        )
    given = _by_word(where, cast(Table, tables[0])) if len(tables) == 1 else tables
    examples = examples_of(where, given, seed, sizes)
    return examples if image_size is None else _as_images(examples, image_size, where)


def _as_images(examples: Examples, size: tuple[int, ...], where: str) -> Examples:
    """Reshape vectors to grey images of the size (H, W), or to images of the size (C, H, W)."""
    size = size if len(size) == 3 else (1, *size)
    if size[0] not in CHANNELS:
        raise ConfigError(f"data.image_size={list(size)} is [C, H, W] with C = 1 or 3 channels.")
    shape = examples.parts[0].shape[1:]
    if shape != (math.prod(size),):
        raise ConfigError(
            f"{where} has examples of the shape {shape}, and data.image_size={list(size)} needs vectors of "
            f"{math.prod(size)} values."
        )
    images = [part.reshape(-1, *size) for part in examples.parts]
    return examples._replace(parts=pixels_of(images, where), columns=None)


def examples_of(where: str, given: Sequence[Table | None], seed: int, sizes: tuple[float, float]) -> Examples:
    """Convert the table of each split to examples; a split that has no table takes examples of the training table.

    Args:
        where: Where the tables come from, for messages.
        given: The tables of the training, validation and test split; the last two may be None.
        seed: The seed of the hash.
        sizes: The sizes of the validation and the test split.

    Raises:
        DataError: If a split has no example, or the examples are neither vectors nor images of one shape.

    Example:
        >>> given = [Table(np.random.default_rng(0).normal(size=(100, 2))), Table(np.ones((5, 2))), None]
        >>> [len(part) for part in examples_of("arrays", given, 0, (0.1, 0.1)).parts]
        [89, 5, 11]
    """
    first = given[0]
    if first is None:
        raise DataError(f"{where} has no example for training.")
    fractions = [
        0.0 if part is not None else fraction_of(size, len(first.values))
        for part, size in zip(given[1:], sizes, strict=True)
    ]
    split = split_of(digests_of(first.values), seed=seed, val=fractions[0], test=fractions[1])
    held_out = [part or _rows(first, split == i) for i, part in enumerate(given[1:], start=1)]
    parts = [_rows(first, split == 0), *held_out]
    refuse_empty([len(part.values) for part in parts], where)
    if other := next((part for part in parts if part.values.shape[1:] != first.values.shape[1:]), None):
        raise DataError(
            f"Training examples have the shape {first.values.shape[1:]}, and others {other.values.shape[1:]}: "
            "they must be alike."
        )
    values = [part.values for part in parts]
    labels, class_names = labels_of([part.labels for part in parts], where)
    pixels = pixels_of(values, where) if first.values.ndim == 4 else values
    given_splits = any(part is not None for part in given[1:])
    return Examples(pixels, labels, class_names, first.columns, first.values.dtype, given_splits)


def _by_word(where: str, table: Table) -> list[Table | None]:
    """Divide a table into splits by its column of split names; without such a column, all rows are for training."""
    if table.split is None:
        return [table, None, None]
    words = [str(word).strip().lower() for word in table.split]
    if odd := {*words} - {*WORDS}:
        raise DataError(f"{where}: the column of splits has the word {min(odd)!r}: it must be train, val or test.")
    split = np.array([WORDS[word] for word in words])
    return [_rows(table, split == i) if (split == i).any() else None for i in range(3)]


def _rows(table: Table, chosen: np.ndarray) -> Table:
    labels, split = (None if part is None else part[chosen] for part in (table.labels, table.split))
    return Table(table.values[chosen], labels, split, table.columns)
