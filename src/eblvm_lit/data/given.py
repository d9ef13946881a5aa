"""The conversion of examples given in Python as NumPy arrays, tensors, pandas frames or torch data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError

__all__ = ["Given", "alike", "as_points", "examples_in"]

LARGEST = 50.0  # images with larger floats are not even noised images in [0, 1] or [-1, 1]
KINDS = "a NumPy array, a tensor, a pandas frame or a torch Dataset"


class Given(NamedTuple):
    """Examples that were given in Python.

    Attributes:
        values: The examples, (n, ...), as they were given: floats of any width, integers or bytes.
        labels: The labels, (n, ...), which a Dataset has as the second value of its items; None if there are none.
        columns: The names of the columns of a frame; empty for other types.
    """

    values: np.ndarray
    labels: np.ndarray | None = None
    columns: tuple[str, ...] = ()


def examples_in(given: Any, name: str = "data") -> Given:
    """Read examples that were given in Python as one array, without a copy where possible.

    An item of a ``torch.utils.data.Dataset`` is an example, or a tuple of an example and its label. An example may be a
    tensor, an array, a number or an image of Pillow. All items are read.

    Args:
        given: A NumPy array, a tensor, a list of numbers, a pandas frame (each row is an example), a series, or a torch
            Dataset.
        name: The name of the argument, for messages.

    Raises:
        ConfigError: If the values of an array are not numbers.
        ValueError: If the items of a Dataset have different shapes, or a column of a frame with missing values is text.

    Example:
        >>> examples_in(pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, 4.0]}))
        Given(values=array([[1., 3.],
           [2., 4.]]), labels=None, columns=('x', 'y'))
        >>> examples_in(torch.utils.data.TensorDataset(torch.zeros(5, 2), torch.arange(5))).labels
        array([0, 1, 2, 3, 4])
        >>> examples_in("points.npy")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: data is a NumPy array, a tensor, a pandas frame or a torch Dataset of real ...
    """
    if isinstance(given, Dataset):
        return _stacked(given, name)
    if isinstance(given, pd.DataFrame):
        # pandas' own dtypes mark a missing value by an object that is not a number; na_value replaces it by NaN.
        values = given.to_numpy(np.float64, na_value=np.nan) if given.isna().any(axis=None) else given.to_numpy()
        return Given(_array(values, name), columns=tuple(map(str, given.columns)))
    return Given(_array(given, name))


def _array(given: Any, name: str) -> np.ndarray:
    """Convert an array, a tensor or a list to an array of numbers."""
    given = given.detach().cpu() if isinstance(given, torch.Tensor) else given
    if isinstance(given, torch.Tensor) and given.dtype == torch.bfloat16:  # NumPy has no bfloat16
        given = given.float()
    try:
        values = np.asarray(given)
        values = values.astype(np.float64) if values.dtype == object else values  # numbers stored as Python objects
    except (TypeError, ValueError, RuntimeError) as error:  # such as a list of lists of different lengths
        raise ConfigError(f"{name} is {KINDS} of numbers: {str(error).rstrip('.')}.") from None
    if values.dtype.kind not in "biuf":
        raise ConfigError(
            f"{name} is {KINDS} of real numbers, not of {values.dtype}: data=array data.path=FILE reads a file."
        )
    return values


def _stacked(given: Dataset, name: str) -> Given:
    """Stack the items of a torch ``Dataset`` into an array of examples and an array of labels, if there are any."""
    # A map-style Dataset is indexed up to its length, because it need not raise an IndexError at its end. An iterable
    # Dataset has no length.
    found = [given[i] for i in range(len(given))] if hasattr(given, "__len__") else list(iter(given))  # type: ignore[call-overload]
    items: list[Sequence[Any]] = [item if isinstance(item, tuple | list) else (item,) for item in found]
    values = np.stack([_array(item[0], name) for item in items])
    if min(map(len, items)) == 1:
        return Given(values)
    return Given(values, np.stack([_array(item[1], name) for item in items]))


def as_points(given: Any, data: ArrayDataModule, event_shape: Sequence[int]) -> torch.Tensor:
    """Reshape examples to the input shape of a model, and convert uint8 images to the model's range of values.

    Args:
        given: Examples of any type that :func:`examples_in` accepts. Images may be (n, C, H, W), (n, H, W, C) or, if
            grey, (n, H, W); whole numbers up to 255, and bits, are converted like those of ``data``. Floats keep their
            values.
            Columns of a frame are taken by their names, if the training data have names.
        data: The data of the model, which need not be set up.
        event_shape: The shape of one v.

    Returns:
        v, shape (n, *event_shape), with the dtype of the given examples, or float32 for bytes.

    Raises:
        ConfigError: If the examples have another shape, or are images with values outside of every usual range.

    Example:
        >>> from eblvm_lit.data.digits import Digits
        >>> as_points(np.zeros((5, 8, 8), dtype=np.uint8), Digits(), (64,)).shape
        torch.Size([5, 64])
    """
    if isinstance(given, pd.DataFrame) and (names := data.known_columns()) is not None:
        given = given.rename(columns=str)[list(names)]
    if isinstance(given, torch.Tensor):  # a tensor stays on its device
        v = given.detach()
    else:
        # torch needs writable memory, but arrays from Pillow and memory maps can be read-only
        v = torch.from_numpy(np.require(examples_in(given, "v").values, requirements=["C", "W"]))
    shape = tuple(event_shape)
    v = v.unsqueeze(1) if v.dim() == 1 and shape == (1,) else v
    if v.dim() == 0 or tuple(v.shape[1:]) != shape:
        v = _reshaped(v, data, shape)
    return v if data.image_shape is None else _pixels(v, data)


def _pixels(v: torch.Tensor, data: ArrayDataModule) -> torch.Tensor:
    """Convert whole numbers to the model's range of values as the training images were; refuse floats up to 255."""
    if v.is_floating_point():
        if v.numel() and v.abs().max() > LARGEST:
            raise ConfigError(
                f"v has values up to {float(v.abs().max()):g}, and images that are floats have the model's range: "
                "divide them by 255, or give bytes (uint8)."
            )
        return v
    v = v.to(torch.uint8) if v.dtype == torch.bool else v
    low, high = (int(end) for end in v.aminmax()) if v.numel() else (0, 0)
    if low < 0 or high > 255:
        raise ConfigError(f"v has whole numbers from {low} to {high}: images that are no floats have values up to 255.")
    return data.as_float((v * 255 if high <= 1 else v).to(torch.uint8))  # 0 and 1 are black and white


def _reshaped(v: torch.Tensor, data: ArrayDataModule, shape: tuple[int, ...]) -> torch.Tensor:
    image = data.image_shape
    if image is not None:
        channels, height, width = image
        if tuple(v.shape[1:]) == (height, width, channels):
            v = v.movedim(-1, 1)
        if tuple(v.shape[1:]) == image or (channels == 1 and tuple(v.shape[1:]) == (height, width)):
            return v.reshape(len(v), *shape)
    raise ConfigError(f"v has the shape {tuple(v.shape)}, and this model takes (B, {', '.join(map(str, shape))}).")


def alike(result: torch.Tensor, given: Any) -> Any:
    """Return a result as a NumPy array if the examples were given as an array or a frame, else as a tensor.

    Example:
        >>> type(alike(torch.zeros(2), np.zeros(2))).__name__, type(alike(torch.zeros(2), [0.0, 0.0])).__name__
        ('ndarray', 'Tensor')
    """
    is_array = isinstance(given, np.ndarray | pd.DataFrame | pd.Series)
    return result.cpu().numpy() if is_array else result
