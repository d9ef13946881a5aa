"""The base classes of image data modules, which keep arrays of bytes (n, C, H, W) and serve batches of floats."""

# There is no "from __future__ import annotations" here, because it would turn annotations into strings. Subclasses in
# other modules inherit these dataclass fields. The check of a configuration evaluates their annotations in the module
# of the subclass, and some names in such strings may be unknown there.
import copy
import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from pydantic import PositiveInt
from torch.nn import functional as F

from eblvm_lit.core.ranges import Fraction
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.shards import Shard
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.errors import DataError

__all__ = [
    "BinarizableData",
    "ImageDataModule",
    "Images",
    "PixelData",
    "SmallImageDataModule",
    "ValueRange",
    "count_of",
    "resample",
]

ValueRange = Literal["unit", "symmetric"]
CHUNK = 4096


class Images(NamedTuple):
    """The published training and test parts of an image set: uint8 images (n, C, H, W) and int64 labels (n, ...).

    ``n_val`` is the number of validation images, the last ones of ``train``; None leaves it to ``val_size``.
    """

    train: torch.Tensor
    test: torch.Tensor
    train_labels: torch.Tensor | None = None
    test_labels: torch.Tensor | None = None
    n_val: int | None = None


@dataclass(kw_only=True, eq=False)
class BinarizableData(ArrayDataModule):
    """The base class of data whose grey values can become bits.

    Args:
        binarize: How grey values become bits, for energies of binary v; None keeps the grey values. ``stochastic``: a
            pixel is 1 with a probability that is its grey value in [0, 1]. These bits are drawn once, and are the same
            in all runs. ``dynamic``: the bits of each training batch are drawn anew in the same way, so that a model
            cannot memorise the noise of one draw; validation, test, metrics and figures use the bits of ``stochastic``.
            ``threshold``: a pixel is 1 if its grey value is above 1/2. Reference for ``stochastic``: Salakhutdinov and
            Murray 2008, section 5.
        batch_size, eval_batch_size, seed: As in the base class. With ``dynamic``, the seed also determines the bits of
            the training batches.

    Example:
        >>> from eblvm_lit.data.digits import Digits
        >>> Digits(binarize="threshold").binarised(torch.tensor([0.2, 0.5, 0.7]), "train")
        tensor([0., 0., 1.])
    """

    binarize: Literal["stochastic", "dynamic", "threshold"] | None = None
    _keeps_grey = False  # true only in the copy by which streamed() loads the grey values of ``dynamic``

    def streamed(self) -> torch.Tensor:
        """Return the training examples from which batches are taken; with ``dynamic`` they still have grey values.

        :meth:`augment` turns the grey values of each batch into bits.
        """
        if self.binarize != "dynamic":
            return super().streamed()
        grey = copy.copy(self)
        grey._keeps_grey = True
        return self._kept(grey.load()).train

    def augment(self, batch: torch.Tensor, iteration: int, shard: Shard | None = None) -> torch.Tensor:
        """With ``dynamic``, draw the bits of a training batch (B, *event_shape) of grey values.

        A value is white with its grey value, between 0 for black and 1 for white, as the probability. The bits depend
        only on the seed, the iteration and the grey values.
        """
        if self.binarize != "dynamic":
            return super().augment(batch, iteration, shard)
        n = len(batch) if shard is None else shard.n
        u = torch.rand((n, *batch.shape[1:]), generator=keyed_generator(self.seed, "binarize", iteration))
        black, white = self.black_and_white(batch.dtype)
        is_white = batch > black + (white - black) * (u if shard is None else u[shard.rows])
        return torch.full_like(batch, black).masked_fill_(is_white, white)

    def black_and_white(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return the two numbers that mean black and white in examples of a dtype: 0 and 255 in bytes, else 0 and 1."""
        return (0, 255) if dtype == torch.uint8 else (0, 1)

    def binarised(self, pixels: torch.Tensor, split: str) -> torch.Tensor:
        """Convert pixels to the values of black and white by ``binarize``, if it is set.

        Args:
            pixels: Bytes, or floats in [0, 1], shape (n, ...).
            split: The name of the split, for which the bits are drawn.

        Returns:
            The bytes 0 and 255, or the floats 0 and 1, of the same shape.
        """
        if self.binarize is None or self._keeps_grey:
            return pixels
        white = 255 if pixels.dtype == torch.uint8 else 1
        generator = keyed_generator(0, "binarize", split)  # not the run's seed, because the data do not depend on it
        found = []
        for part in pixels.split(CHUNK):  # in chunks, because all random numbers would take four times the memory
            limit = 0.5 if self.binarize == "threshold" else torch.rand(part.shape, generator=generator)
            found.append((part > white * limit).to(part.dtype) * white)
        return torch.cat(found)


@dataclass(kw_only=True, eq=False)
class PixelData(BinarizableData):
    """The base class of data that may be images, with options for their range of values and for random mirroring.

    Args:
        value_range: The range of the values of v.
        binarize: As in the base class.
        flip: Whether to mirror each training image horizontally with probability ½ at every iteration; which images are
            mirrored depends only on the seed and the iteration.
        held_out_classes: The labels or names of the classes that training and validation leave out. They remain in the
            test split, as outliers.
        batch_size, eval_batch_size, seed: As in the base class; the seed is also that of the flips.
    """

    value_range: ValueRange = "unit"
    flip: bool = False
    held_out_classes: Sequence[int | str] = ()

    def as_float(self, batch: torch.Tensor) -> torch.Tensor:
        """Convert a batch of bytes to float32 values in ``value_range``; floats stay unchanged."""
        if batch.dtype == torch.uint8 and self.value_range == "symmetric":
            return batch.float().div_(127.5).sub_(1)
        return super().as_float(batch)

    def as_bytes(self, batch: torch.Tensor) -> torch.Tensor:
        """Invert :meth:`as_float`: convert floats to bytes, rounded and clamped."""
        return super().as_bytes((batch + 1) / 2 if self.value_range == "symmetric" else batch)

    def black_and_white(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return the two numbers that mean black and white; floats in the symmetric range have −1 and 1."""
        symmetric_floats = dtype.is_floating_point and self.value_range == "symmetric"
        return (-1, 1) if symmetric_floats else super().black_and_white(dtype)

    def augment(self, batch: torch.Tensor, iteration: int, shard: Shard | None = None) -> torch.Tensor:
        """Mirror each image of a CPU batch (B, *event_shape) in place with probability ½, if ``flip`` is set."""
        if self.flip and self.image_shape is not None:
            n = len(batch) if shard is None else shard.n
            flipped = torch.rand(n, generator=keyed_generator(self.seed, "flip", iteration)) < 0.5
            flipped = flipped if shard is None else flipped[shard.rows]
            # The images are mirrored by NumPy, because it is four times as fast as torch for bytes.
            pixels = batch.view(-1, *self.image_shape).numpy()
            rows = flipped.numpy()
            pixels[rows] = pixels[rows][..., ::-1]
        return super().augment(batch, iteration, shard)


@dataclass(kw_only=True, eq=False)
class ImageDataModule(PixelData):
    """Images as uint8 arrays, in memory or memory-mapped; a subclass implements :meth:`read`.

        v = x / 255 in [0, 1] ("unit"), or x / 127.5 − 1 in [−1, 1] ("symmetric"),   x in {0..255}^(C x H x W)

    The validation images are the last images of the published training part. The published models are trained on all of
    that part, and by default so are models here: the validation loss is then computed on training images. With
    ``train_on_val=false``, the validation images are not used for training. Test images never are.

    Args:
        root: Folder of the files; missing files are downloaded to it.
        value_range: The range of the values of v.
        binarize: How grey values become bits, for energies of binary v: see :class:`BinarizableData`.
        flip: Whether to mirror each training image horizontally with probability ½ at every iteration; which images are
            mirrored depends only on the seed and the iteration.
        val_size: Number of validation images, or their fraction, such as 0.1, of all images that are not test images.
        train_on_val: Whether training uses the validation images, too.
        flatten: Whether v is a vector of C H W values, for models of vectors such as the GRBM.
        batch_size: Number of images in a training batch.
        eval_batch_size: Number of images in a validation or test batch.
        seed: Seed of the order of the training batches, and of the flips.

    Example:
        >>> class Ramps(ImageDataModule):
        ...     image_shape = (1, 1, 2)
        ...     def read(self):
        ...         x = torch.tensor([0, 255], dtype=torch.uint8).expand(6, 1, 1, 2)
        ...         return Images(x[:4], x[4:])
        >>> data = Ramps(root=".", value_range="symmetric", flip=True, val_size=1)
        >>> data.setup()
        >>> [len(split) for split in data.splits], data.as_float(data.splits.test[0]).tolist()
        ([4, 1, 2], [[[-1.0, 1.0]]])
        >>> Ramps(root=".", flatten=True).event_shape
        (2,)
        >>> [data.augment(data.splits.train.clone(), t)[:, 0, 0, 0].tolist() for t in (0, 1, 0)]
        [[255, 0, 0, 255], [0, 255, 0, 255], [255, 0, 0, 255]]
    """

    root: str | Path
    val_size: PositiveInt | Fraction = 10_000
    train_on_val: bool = True
    flatten: bool = False
    eval_batch_size: PositiveInt = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.root = Path(self.root).expanduser().absolute()

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Return the shape of v: (C, H, W), or (C H W,) with ``flatten``."""
        return (math.prod(self.image_shape),) if self.flatten else self.image_shape

    @abstractmethod
    def read(self) -> Images:
        """Read the whole image set; every call returns the same images."""

    def prepare_data(self) -> None:
        """Download and decode missing files; Lightning calls this first, in one process per machine."""
        self.setup()

    def load(self) -> Splits:
        """Read the images and split them.

        Raises:
            DataError: If a file is missing or damaged, or if there are not more training images than ``val_size``.
        """
        images = self._images
        n = len(images.train)
        n_val = self._n_val
        if n <= n_val:
            raise DataError(
                f"{type(self).__name__} has {n} images to train on, and {n_val} would be for validation: "
                "lower data.val_size."
            )
        bits = [self.binarised(getattr(images, name), name) for name in ("train", "test")]
        return self._split(*(rows.flatten(1) if self.flatten else rows for rows in bits))

    def load_labels(self) -> Splits | None:
        """Return the labels of the images, int64; None if there are none."""
        images = self._images
        return None if images.train_labels is None else self._split(images.train_labels, images.test_labels)

    @functools.cached_property
    def _images(self) -> Images:
        return self.read()

    @property
    def _n_val(self) -> int:
        images = self._images
        return count_of(self.val_size, len(images.train)) if images.n_val is None else images.n_val

    def _split(self, rows: torch.Tensor, test: torch.Tensor) -> Splits:
        first = len(rows) - self._n_val
        return Splits(rows if self.train_on_val else rows[:first], rows[first:], test)  # views, not copies

    def n_train_without(self, split: str) -> int:
        """Return the number of training images before the first that is also in the given split.

        Validation images that are also used for training come last among the training images.
        """
        if split != "val":
            return len(self.splits.train)
        n = len(self._images.train)
        rows = self._kept(self._split(torch.arange(n), self._images.test)).train
        return int((rows < n - self._n_val).sum())


@dataclass(kw_only=True, eq=False)
class SmallImageDataModule(ImageDataModule):
    """Images of 32 x 32 pixels, which can be reduced by average pooling for quick experiments.

    Args:
        root: Folder of the files; missing files are downloaded to it.
        size: Height and width: 32, or 16 or 8 after averaging squares of 2 x 2 or 4 x 4 pixels.
        value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base class.

    Attributes:
        channels: Number of channels of the images: 1 (grey) or 3 (colour).
    """

    channels = 3

    size: Literal[8, 16, 32] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.image_shape = (self.channels, self.size, self.size)


def count_of(size: float, n: int) -> int:
    """Convert a size to a number of images: an integer is kept, and a fraction is multiplied by n.

    The product is rounded, and is at least 1.

    Example:
        >>> count_of(30, 240), count_of(0.1, 240), count_of(0.1, 3)
        (30, 24, 1)
    """
    return size if isinstance(size, int) else max(1, round(size * n))


def resample(images: torch.Tensor, *, padding: int, size: int) -> torch.Tensor:
    """Pad images with zeros, then reduce them by average pooling.

    Args:
        images: The images, uint8, shape (n, C, H, H).
        padding: Number of rows and columns of zeros added at each edge.
        size: Height and width of the result; it must divide H + 2 padding.

    Returns:
        The smaller images, uint8, shape (n, C, size, size), rounded to the nearest byte.

    Example:
        >>> x = torch.tensor([[[[40, 80], [120, 200]]]], dtype=torch.uint8)
        >>> resample(x, padding=1, size=2).tolist()
        [[[[10, 20], [30, 50]]]]
    """
    factor = (images.shape[-1] + 2 * padding) // size
    images = F.pad(images, [padding] * 4) if padding else images
    if factor == 1:
        return images
    parts = images.split(CHUNK)  # in chunks, because all images as floats would take four times the memory
    return torch.cat([F.avg_pool2d(part.float(), factor).round_().to(torch.uint8) for part in parts])
