"""Your own examples in files of arrays or tables: points, vectors of any size, and images."""

# There is no "from __future__ import annotations" here, because it would turn annotations into strings. Subclasses in
# other modules inherit these dataclass fields. The check of a configuration evaluates their annotations in the module
# of the subclass, and some names in such strings may be unknown there.
import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import Fraction, Seed
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.arrangement import CHANNELS
from eblvm_lit.data.base import Splits
from eblvm_lit.data.file_examples import Examples, read_examples, stamp_of
from eblvm_lit.data.held_out import without_classes
from eblvm_lit.data.images import PixelData
from eblvm_lit.data.split_changes import as_integers
from eblvm_lit.data.splitting import NAMES, PURPOSES, digests_of
from eblvm_lit.data.tables import Names
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.numbers import listing

__all__ = ["ArrayFile"]

log = logging.getLogger(__name__)

DARK = 64  # a warning says that images are dark if the brightest byte is below this value


@dataclass(kw_only=True, eq=False)
class ArrayFile(PixelData):
    r"""Your own examples in one file, or in one file per split: points, vectors or images.

    A file of the formats .npy, .npz, .csv, .tsv, .parquet, .mat or .pt holds vectors (n, d), or images (n, H, W),
    (n, C, H, W) or (n, H, W, C) of bytes or floats. A hash of an example's content decides to which split
    it belongs, so that it stays there when other examples are added, removed or reordered. Splits can also be given, by
    ``train``, ``val`` and ``test``, or by ``split_column``; a split that is not given is then taken from the training
    examples by the hash.

    Columns of vectors are standardised: models receive

    .. math:: v = (x - m) / s

    with the mean m and the standard deviation s of each column of the training split; :meth:`in_units` inverts this.
    Columns of whole numbers get uniform noise in [0, 1) first, because no density follows them otherwise.

    Args:
        path: The file; None if ``train`` is given.
        train, val, test: The files of given splits.
        names: What is read of the files; see :class:`~eblvm_lit.data.tables.Names`.
        val_size: The fraction of validation examples, or their number, which is turned into a fraction.
        test_size: The same for test examples.
        split_seed: The seed of the hash.
        standardise: Whether columns of vectors are standardised.
        dequantise: Whether columns of whole numbers get noise; None means yes. Images get none.
        flatten: Whether images are vectors of C H W values, for models of vectors.
        image_size: The size (H, W) or (C, H, W) of images that the file stores as vectors; None if it stores none.
        shape: The shape of an example, (d,) or (C, H, W); None reads it from the file. A run keeps it in its
            configuration, and with it ``mean`` and ``std``, so that a trained model can be used without the file, and
            that its units do not change if the file does.
        mean: The means m; None computes them.
        std: The standard deviations s; None computes them.
        value_range, binarize, flip, held_out_classes, batch_size, eval_batch_size, seed: As in the base class.

    Raises:
        DataError: If a file is missing or cannot be used.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "points.npy"
        >>> np.save(path, np.random.default_rng(0).normal(5, 2, size=(1000, 2)))
        >>> data = ArrayFile(path=path)
        >>> data.setup()
        >>> [len(split) for split in data.splits], abs(data.splits.train.std().item() - 1) < 1e-3
        ([813, 87, 100], True)
        >>> abs(data.in_units(data.splits.train).mean().item() - 5) < 0.1
        True
        >>> data.find_options()[1]
        '1,000 points in 2 columns (float64 as float32), 813 for training, 87 for validation, 100 for testing; ...'
    """

    path: str | Path | None = None
    train: str | Path | None = None
    val: str | Path | None = None
    test: str | Path | None = None
    key: str | None = None
    label_key: str | None = None
    columns: Sequence[str | int] | None = None
    label_column: str | int | None = None
    split_column: str | int | None = None
    val_size: PositiveInt | Fraction = 0.1
    test_size: PositiveInt | Fraction = 0.1
    split_seed: Seed = 0
    standardise: bool = True
    dequantise: bool | None = None
    flatten: bool = False
    image_size: Annotated[Sequence[PositiveInt], Field(min_length=2, max_length=3)] | None = None
    shape: Sequence[PositiveInt] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[PositiveFloat] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = tuple(self.shape or self._examples().parts[0].shape[1:])
        self.image_shape = shape if len(shape) == 3 else None
        self.event_shape = (math.prod(shape),) if self.flatten else shape

    # ------------------------------------------------------------------ standardised values and the units of the data

    @functools.cached_property
    def _scaling(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The mean and standard deviation used to standardise each column; None if v is not standardised."""
        if not self.standardise or self.binarize is not None or self.image_shape is not None:
            return None
        if self.mean is not None and self.std is not None:
            return np.asarray(self.mean, dtype=np.float64), np.asarray(self.std, dtype=np.float64)
        examples = self._examples()
        train = self._with_noise(examples)[0]
        constant = np.flatnonzero((examples.parts[0] == examples.parts[0][:1]).all(0))
        if len(constant):
            names = listing([examples.name(column) for column in constant])
            raise DataError(
                f"{self._where}: all training rows have one value in column {names}: leave it out by "
                "data.columns=[...], or set data.standardise=false. If the rows are images, set data.image_size."
            )
        return train.mean(0), train.std(0)

    def in_units(self, v: Tensor) -> Tensor:
        """Convert standardised v to the units of the data: x = m + s v, with the means m and standard deviations s."""
        if self._scaling is None:
            return super().in_units(v)
        mean, std = (torch.as_tensor(part, device=v.device) for part in self._scaling)
        return (mean + std * v.double()).to(v.dtype)

    def from_units(self, x: Tensor) -> Tensor:
        """Invert :meth:`in_units`: standardise x by v = (x - m) / s."""
        if self._scaling is None:
            return super().from_units(x)
        mean, std = (torch.as_tensor(part, device=x.device) for part in self._scaling)
        return ((x.double() - mean) / std).to(x.dtype)

    @property
    def unit_of_v(self) -> Tensor | None:
        """The standard deviations s in x = m + s v, which convert v to the units of the data, shape (d,), float64."""
        return None if self._scaling is None else torch.as_tensor(self._scaling[1])

    # ------------------------------------------------------------------ loading of the examples

    def load(self) -> Splits:
        """Read the files; see :meth:`ArrayDataModule.load`."""
        examples = self._examples()
        self.class_names = examples.class_names
        self.column_names = examples.columns
        outside = any(part.min() < 0 or part.max() > 1 for part in examples.parts)
        if self.binarize is not None and not examples.are_images and outside:
            raise DataError(
                f"{self._where} has values outside of [0, 1], but data.binarize needs values in [0, 1]. If the rows "
                "are images, set data.image_size."
            )
        if examples.are_images or self.binarize is not None:
            parts = [self.binarised(_pixels(part), name) for part, name in zip(examples.parts, NAMES, strict=True)]
            if parts[0].dtype != torch.uint8 and self.value_range == "symmetric":
                parts = [2 * part - 1 for part in parts]
            return Splits(*(part.flatten(1) if self.flatten else part for part in parts))
        mean, std = self._scaling or (0.0, 1.0)
        parts = [(part - mean) / std for part in self._with_noise(examples)]
        return Splits(*(torch.from_numpy(part.astype(np.float32)) for part in parts))

    def load_labels(self) -> Splits | None:
        """Return the labels of each split as int64 tensors; None if there are none."""
        labels = self._examples().labels
        return None if labels is None else Splits(*map(torch.from_numpy, labels))

    def example_digests(self) -> Splits:
        """Return a digest of each example, computed before noise is added and columns are standardised."""
        return Splits(*(as_integers(digests_of(part)) for part in self._examples().parts))

    def known_columns(self) -> Sequence[str] | None:
        """Return the names of the columns of vectors; see :meth:`ArrayDataModule.known_columns`."""
        try:
            return self._examples().columns
        except (ConfigError, DataError):  # the file is gone, but the model can still be used
            return None

    def find_options(self) -> tuple[dict[str, Any], str]:
        """Find the shape of an example, the scaling of v, and, if there are too few examples, a smaller batch size.

        Returns:
            The values, which a run keeps in its configuration, and a line that says what was understood.
        """
        examples = self._examples()
        found: dict[str, Any] = {}
        if self.shape is None:
            found["shape"] = list(examples.parts[0].shape[1:])
        if self._scaling is not None and self.mean is None:
            found["mean"], found["std"] = (part.tolist() for part in self._scaling)
        sizes = [len(part) for part in examples.parts]
        notes = self._notes(examples)
        self._warn(examples)
        if sizes[0] < self.batch_size:
            found["batch_size"] = sizes[0]
            notes.append(f"batches of all {sizes[0]} training examples")
        counts = ", ".join(f"{n:,} for {purpose}" for n, purpose in zip(sizes, PURPOSES, strict=True))
        return found, "; ".join([f"{self._described(examples, sum(sizes))}, {counts}", *notes])

    def _described(self, examples: Examples, n: int) -> str:
        shape = examples.parts[0].shape[1:]
        if examples.are_images:
            return f"{n:,} {CHANNELS[shape[0]]} images of {shape[1]} x {shape[2]} pixels ({examples.stored})"
        what = "points" if shape[0] <= 3 else "vectors"
        named = "" if examples.columns is None else f" {listing(examples.columns)}"
        columns = f"{shape[0]} column{'s' * (shape[0] > 1)}{named}"
        return f"{n:,} {what} in {columns} ({examples.stored} as float32)"

    def _notes(self, examples: Examples) -> list[str]:
        """Return notes on labels, scaling and columns of whole numbers for the log line of :meth:`find_options`."""
        notes = []
        if examples.labels is not None:
            values = np.unique(np.concatenate([part.ravel() for part in examples.labels]))
            names = examples.class_names or [str(value) for value in values]
            notes.append(f"labels {listing(names)}")
        if self._scaling is not None:
            notes.append("columns are standardised")
        if self.binarize is not None:
            notes.append(f"values become bits by data.binarize={self.binarize}")
        elif whole := [examples.name(column) for column in _whole(examples)]:
            what = f"column{'s' * (len(whole) > 1)} {listing(whole)} of whole numbers"
            bare = f"{what} get no noise, and a density on them has no bound: data.dequantise=true adds it"
            notes.append(bare if self.dequantise is False else f"uniform noise in [0, 1) is added to {what}")
        return notes

    def _warn(self, examples: Examples) -> None:
        """Warn of held-out examples that are also training examples, and of images that are dark."""
        train = examples.parts[0]
        types = sorted({part.dtype for part in examples.parts}, key=lambda dtype: dtype.itemsize)
        # equal numbers of two types of floats are equal in the shorter type
        common = types[0] if all(dtype.kind == "f" for dtype in types) else np.result_type(*types)
        seen = {*digests_of(train.astype(common, copy=False))} if examples.splits_given else set()
        for part, purpose in zip(examples.parts[1:], PURPOSES[1:], strict=True):
            digests = digests_of(part.astype(common, copy=False)) if examples.splits_given else []
            if rows := [row for row, one in enumerate(digests) if one in seen]:
                log.warning(
                    "%s examples for %s are also for training, first row %d.", f"{len(rows):,}", purpose, rows[0]
                )
        if train.dtype == np.uint8 and examples.are_images and 0 < (brightest := int(train.max())) < DARK:
            log.warning(
                "No pixel is brighter than %d of 255: if this is white, divide the images by %d.", brightest, brightest
            )

    # ------------------------------------------------------------------ reading of the files

    @property
    def _where(self) -> str:
        return str(self.path if self.path is not None else self.train)

    def _examples(self) -> Examples:
        """Return the examples; those for training and for validation have none of the held-out classes."""
        examples = self._all_examples()
        facts = (examples.labels, self.held_out_classes, examples.class_names)
        parts = cast(list[np.ndarray], without_classes(examples.parts, *facts))
        return examples._replace(parts=parts, labels=examples.labels and without_classes(examples.labels, *facts))

    def _all_examples(self) -> Examples:
        given = (self.train, self.val, self.test)
        if (self.path is None) == (self.train is None) or (self.path is not None and given != (None, None, None)):
            raise ConfigError("data=array needs a file: set either data.path, or data.train, data.val and data.test.")
        named = given if self.path is None else (self.path,)
        paths = tuple(None if path is None else Path(path).expanduser().absolute() for path in named)
        stamps = tuple(None if path is None else stamp_of(path) for path in paths)
        columns = None if self.columns is None else tuple(self.columns)
        names = Names(self.key, self.label_key, columns, self.label_column, self.split_column)
        size = None if self.image_size is None else tuple(self.image_size)
        return read_examples(paths, stamps, names, self.split_seed, (self.val_size, self.test_size), size)

    def _with_noise(self, examples: Examples) -> list[np.ndarray]:
        """Convert the vectors of each split to float64, and add uniform noise in [0, 1) to columns of whole numbers."""
        parts = [part.astype(np.float64) for part in examples.parts]
        whole = [] if self.dequantise is False else _whole(examples)
        for name, part in zip(NAMES, parts, strict=True):
            if len(whole):
                generator = keyed_generator(self.split_seed, "dequantise", name)
                part[:, whole] += torch.rand(len(part), len(whole), generator=generator, dtype=torch.float64).numpy()
        return parts


def _pixels(part: np.ndarray) -> Tensor:
    """Convert images, or vectors of numbers in [0, 1], to a tensor of bytes or of float32."""
    return torch.from_numpy(np.ascontiguousarray(part if part.ndim == 4 else part.astype(np.float32)))


def _whole(examples: Examples) -> list[int]:
    """Return the indices of the columns that hold only whole numbers, or an empty list for images."""
    if examples.are_images:
        return []
    return np.flatnonzero(np.all([(part == np.floor(part)).all(0) for part in examples.parts], axis=0)).tolist()
