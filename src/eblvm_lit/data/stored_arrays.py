"""Arrays that are given in Python, and stored in the folder of their run for evaluations and resumed runs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import yaml

from eblvm_lit.data.arrangement import channels_first
from eblvm_lit.data.array_files import ArrayFile
from eblvm_lit.data.given import examples_in
from eblvm_lit.data.kinds import kind_of
from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.io import write_whole

__all__ = ["ArraysToStore", "StoredArrays", "arrays_to_store"]

SHAPING = ("data.columns=", "data.flatten=", "data.image_size=")  # overrides that change the shape of an example
GROUP = "_memory"  # the option of the config group data with which a run reads stored arrays


@dataclass(kw_only=True, eq=False)
class StoredArrays(ArrayFile):
    """The arrays that were passed to :func:`eblvm_lit.train` as ``data=``, read from the folder of the run.

    The name of each file contains a digest of its content. So the same arrays have the same settings in every folder: a
    run can be resumed from another run of the same arrays, and a folder can be moved.

    Args:
        run_folder: The folder of the run; an evaluation sets it to the folder in which it finds the checkpoint.
        train, val, test: The names of the files in this folder; None for a split that is drawn from the training
            examples.
        val_size, test_size, split_seed, standardise, dequantise, flatten, shape, mean, std: As in the base class.
        value_range, flip, batch_size, eval_batch_size, seed: As in the base class.

    Example:
        >>> import tempfile
        >>> given = arrays_to_store(np.random.default_rng(0).normal(size=(1000, 2)))
        >>> with tempfile.TemporaryDirectory() as folder, given.stored_in(Path(folder)):
        ...     data = StoredArrays(run_folder=folder, **given.names)
        ...     data.setup()
        ...     [len(split) for split in data.splits]
        [814, 91, 95]
    """

    run_folder: str | Path

    def __post_init__(self) -> None:
        for name in ("train", "val", "test"):
            if (value := getattr(self, name)) is not None:
                setattr(self, name, Path(self.run_folder) / value)
        super().__post_init__()


class ArraysToStore(NamedTuple):
    """The arrays that a run will read, with the names of the files in which they are stored.

    Attributes:
        names: The names of the files by split; a split that was not given has none.
        contents: The arrays of each file by name.
    """

    names: dict[str, str]
    contents: dict[str, dict[str, np.ndarray]]

    def overrides(self, words: Sequence[str] = ()) -> list[str]:
        """Return the overrides that make the arrays the data of a run, and choose a kind of model that fits the data.

        Args:
            words: The user's overrides, which may choose another kind.
        """
        values = self.contents[self.names["train"]]["x"]
        given = dict(word.split("=", 1) for word in words if word.startswith(SHAPING))
        options = {key: yaml.safe_load(value) for key, value in given.items()}
        shape = [1] if values.ndim == 1 else [*channels_first(values[:1], "data").shape[1:]]
        if (columns := options.get("data.columns")) and len(shape) == 1:
            shape = [len(columns)]
        if (size := options.get("data.image_size")) and len(shape) == 1:
            shape = [*([1] if len(size) == 2 else []), *size]
        event_shape = [math.prod(shape)] if options.get("data.flatten") is True else shape
        kinds = [] if any(word.startswith("kind=") for word in words) else [f"kind={kind_of(event_shape)}"]
        files = [f"data.{split}={name}" for split, name in self.names.items()]
        return [f"data={GROUP}", *kinds, f"data.shape={shape}".replace(" ", ""), *files]

    @contextmanager
    def stored_in(self, folder: Path) -> Iterator[None]:
        """Write the files to the folder of the run that the ``with`` block starts; remove them if the run fails.

        A file that exists already has the same content, because its name contains a digest of the content. Files
        are removed only if no iteration was done.

        Raises:
            DataError: If they cannot be written.
        """
        missing = [folder / name for name in self.contents if not (folder / name).is_file()]
        before = _written_at(folder / "config.yaml")
        for path in missing:
            write_whole(path, lambda file, path=path: np.savez(file, **cast(Any, self.contents[path.name])))
        try:
            yield
        except BaseException:
            if _written_at(folder / "config.yaml") == before:  # config.yaml is unchanged: no iteration was done
                for path in missing:
                    path.unlink(missing_ok=True)
            raise


def _written_at(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.is_file() else None


def arrays_to_store(data: Any, labels: Any = None, validation: Any = None, test: Any = None) -> ArraysToStore:
    """Convert the data passed to :func:`eblvm_lit.train` to the arrays that the run stores.

    Args:
        data: The examples, of any type that :func:`~eblvm_lit.data.given.examples_in` accepts.
        labels: The labels of ``data``: whole numbers or words.
        validation: Validation examples of any such type, or a pair (examples, labels).
        test: Test examples of any such type, or a pair (examples, labels).

    Raises:
        ConfigError: If they are not arrays of numbers, or a label is missing.

    Example:
        >>> given = arrays_to_store(np.zeros((5, 2)), labels=["a", "b", "a", "b", "a"], test=np.ones((3, 2)))
        >>> given.overrides()
        ['data=_memory', 'kind=points', 'data.shape=[2]', 'data.train=given_...npz', 'data.test=given_...npz']
    """
    parts = {
        "train": (data, labels, "data"),
        "val": (*_pair(validation), "validation"),
        "test": (*_pair(test), "test"),
    }
    contents = {split: _content(*part) for split, part in parts.items() if part[0] is not None}
    files = {split: f"given_{_digest(content)}.npz" for split, content in contents.items()}
    return ArraysToStore(files, {files[split]: content for split, content in contents.items()})


def _pair(given: Any) -> tuple[Any, Any]:
    """Return a pair (examples, labels) unchanged, and any other value as the pair (value, None)."""
    return given if isinstance(given, tuple) and len(given) == 2 else (given, None)


def _content(given: Any, labels: Any, name: str) -> dict[str, np.ndarray]:
    """Return the named arrays of one file: examples ``x`` and, if given, labels ``y`` and column names ``columns``."""
    found = examples_in(given, name)
    values = found.values if found.values.dtype != np.float16 else found.values.astype(np.float32)
    content = {"x": values}
    labels = found.labels if labels is None else labels
    if labels is not None:
        labels = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
        if labels.dtype == object and pd.isna(labels).any():
            raise ConfigError(f"{name} has a row without a label: fill it in or leave the row out.")
        content["y"] = (
            labels.astype(str) if labels.dtype.kind not in "buif" else labels
        )  # text instead of Python objects, which only pickle can store
    if found.columns:
        content["columns"] = np.array(found.columns)
    return content


def _digest(content: dict[str, np.ndarray]) -> str:
    """Return twelve hexadecimal digits that identify the arrays of a file."""
    state = hashlib.blake2b(digest_size=6)
    for name, array in content.items():
        state.update(f"{name} {array.dtype.str} {array.shape};".encode())
        state.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return state.hexdigest()
