"""Data sets of the Hugging Face Hub, or folders in its layout, read by the ``datasets`` library."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image, ImageOps
from pydantic import PositiveInt

from eblvm_lit.data.arrangement import channels_first
from eblvm_lit.data.array_files import ArrayFile
from eblvm_lit.data.file_examples import Examples, examples_of
from eblvm_lit.data.splitting import WORDS
from eblvm_lit.data.tables import Table
from eblvm_lit.errors import ConfigError, DataError

__all__ = ["HubData"]

LABELS = ("label", "labels", "fine_label", "target")  # usual names of the label column
NUMBERS = ("int", "uint", "float", "double", "bool")  # prefixes of the names of numeric types


class Source(NamedTuple):
    """The arguments of :class:`HubData` that say which data set is loaded and how its images are decoded."""

    repo: str
    name: str | None
    revision: str | None
    columns: tuple[str | int, ...] | None
    label_column: str | int | None
    size: int | None
    channels: int | None


@dataclass(kw_only=True, eq=False)
class HubData(ArrayFile):
    """A data set from the Hugging Face Hub, whose examples are images, vectors, or the rows of numeric columns.

    A column of labels is optional. The package ``datasets`` (``pip install 'eblvm_lit[hub]'``) downloads the data set
    at the first use and keeps it in its own cache, whose folder the environment variable HF_HOME sets.
    With HF_HUB_OFFLINE=1 or HF_DATASETS_OFFLINE=1, only this cache is read. ``repo`` may also be a folder in the Hub's
    layout, such as ``train/CLASS/1.png`` or ``data/train-00000-of-00001.parquet``. No code of a repository is run.

    The splits ``train``, ``validation`` and ``test`` are those of the data set; a split that it does not have is taken
    from the training examples by a hash of their content, as in the base class. Other splits are not read.

    Args:
        repo: The name OWNER/NAME of a data set on the Hub, or a folder.
        name: The configuration of the data set, which the Hub calls a subset; None for its only or default one.
        revision: A branch, a tag or a commit of the repository.
        columns: The columns of examples: one column of images or of vectors, or several of numbers. None: the only
            column of images, or else the only one of vectors, or else all columns of numbers beside the labels.
        label_column: The label column; None: a column with a usual name such as ``label``, else the first of classes.
        size: Height and width of the images, which are then cropped to a square and resampled; None keeps their size.
        channels: 1 for grey and 3 for colour; None: grey if all training images are grey.
        val_size, test_size, split_seed, standardise, dequantise, flatten, shape, mean, std: As in the base class.
        value_range, flip, batch_size, eval_batch_size, seed: As in the base class.

    Raises:
        ConfigError: If the package ``datasets`` is missing.
        DataError: If there is no such data set, or it has no such column.

    Example:
        >>> HubData(repo="ylecun/mnist", shape=[1, 28, 28]).event_shape
        (1, 28, 28)
    """

    repo: str
    name: str | None = None
    revision: str | None = None
    size: PositiveInt | None = None
    channels: Literal[1, 3] | None = None

    @property
    def _where(self) -> str:
        return self.repo

    def known_columns(self) -> tuple[str, ...] | None:
        """Return the names of the columns once the data set has been loaded; it is not downloaded for its names."""
        return self.column_names

    def _all_examples(self) -> Examples:
        columns = None if self.columns is None else tuple(self.columns)
        source = Source(self.repo, self.name, self.revision, columns, self.label_column, self.size, self.channels)
        return _read(source, self.split_seed, (self.val_size, self.test_size))


# Cached, because a run builds its data three times, but should decode the images only once.
@functools.lru_cache(maxsize=1)
def _read(source: Source, seed: int, sizes: tuple[float, float]) -> Examples:
    """Load a data set with the package ``datasets``, and draw missing splits from the training examples."""
    found = _loaded(source)
    # a split of any name is for training if it is the only one
    given = {0 if len(found) == 1 else WORDS.get(name.lower()): part for name, part in found.items()}
    if 0 not in given:
        raise DataError(f"{source.repo} has the splits {', '.join(found)}, and none of them is called train.")
    columns, label = _chosen(source, given[0].features)
    tables: list[Table | None] = [None, None, None]
    channels = source.channels
    for number in [number for number in range(3) if number in given]:
        values, channels = _values(source, given[number], columns, channels)
        names = tuple(columns) if len(columns) > 1 else None
        labels = _labels(given[number], label)
        tables[number] = Table(channels_first(values, source.repo), labels, None, names)
    return examples_of(source.repo, tables, seed, sizes)


def _loaded(source: Source) -> Mapping[str, Any]:
    """Load all splits of a data set with the package ``datasets``."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise ConfigError("Data of the Hub need the package datasets: pip install 'eblvm_lit[hub]'.") from None
    folder = Path(source.repo).expanduser()
    repo = str(folder.absolute()) if folder.is_dir() else source.repo
    datasets.utils.logging.set_verbosity_error()
    try:
        return datasets.load_dataset(repo, name=source.name, revision=source.revision)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).strip().partition("\n")[0].split()).rstrip(".")
        raise DataError(f"{source.repo} cannot be loaded by the package datasets: {reason}.") from None


def _chosen(source: Source, features: Mapping[str, Any]) -> tuple[list[str], str | None]:
    """Choose the columns of the examples and the column of the labels, which is None if there are no labels."""
    listed = ", ".join(features)
    label = source.label_column
    if label is None:
        classes = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
        label = next((name for name in LABELS if name in features), classes[0] if classes else None)
    others = [name for name in features if name != label]
    images = [name for name in others if type(features[name]).__name__ == "Image"]
    vectors = [name for name in others if type(features[name]).__name__ in ("List", "Sequence", "Array2D", "Array3D")]
    numbers = [name for name in others if str(getattr(features[name], "dtype", "")).startswith(NUMBERS)]
    columns = [str(name) for name in source.columns or images or vectors or numbers]
    for name in (*columns, *([] if label is None else [str(label)])):
        if name not in features:
            raise DataError(f"{source.repo} has no column {name!r}; its columns are {listed}.")
    if not columns:
        raise DataError(f"{source.repo} has no column of images or numbers; its columns are {listed}.")
    if len(columns) > 1 and {*columns} & {*images, *vectors}:
        raise DataError(
            f"{source.repo} has several columns of examples, {', '.join(columns)}: set data.columns=[{columns[0]}]."
        )
    return columns, None if label is None else str(label)


def _values(source: Source, part: Any, columns: Sequence[str], channels: int | None) -> tuple[np.ndarray, int | None]:
    """Return the examples of a split, and the number of channels of images (None for vectors)."""
    found = [part[name][:] for name in columns]
    if isinstance(found[0][0], Image.Image):
        images = [ImageOps.exif_transpose(image) for image in found[0]]
        if channels is None:
            channels = 1 if {Image.getmodebase(image.mode) for image in images} == {"L"} else 3
        mode = {1: "L", 3: "RGB"}[channels]
        return _same_shape(source, [_pixels(image.convert(mode), source.size) for image in images]), channels
    if len(columns) == 1:
        values = _same_shape(source, [np.asarray(row) for row in found[0]])
        return values[:, None] if values.ndim == 1 else values, None
    return np.stack([np.asarray(column, dtype=np.float64) for column in found], axis=1), None


def _pixels(image: Image.Image, size: int | None) -> np.ndarray:
    """Return the bytes of an image, (H, W) or (H, W, 3); if ``size`` is given, crop it to a square and resize it."""
    fitted = image if size is None else ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(fitted)


def _same_shape(source: Source, rows: Sequence[np.ndarray]) -> np.ndarray:
    shapes = sorted({row.shape for row in rows})
    if len(shapes) > 1:
        raise DataError(
            f"{source.repo} has examples of the shapes {shapes[0]} and {shapes[-1]}: set data.size for one."
        )
    return np.stack(rows)


def _labels(part: Any, label: str | None) -> np.ndarray | None:
    """Return the labels of a split as numbers or names; None if there are none, or if some are unknown (-1 or None)."""
    if label is None or label not in part.features:
        return None
    labels = np.asarray(part[label][:])
    if type(part.features[label]).__name__ != "ClassLabel":
        return None if pd.isna(labels).any() else labels
    return None if labels.min(initial=0) < 0 else np.array(part.features[label].int2str(labels.tolist()))
