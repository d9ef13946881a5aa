"""The base class of all data modules: whole arrays, in memory or memory-mapped, served in batches."""

# Annotations are not postponed: subclasses in other modules inherit these fields, and their signatures are evaluated.
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from pydantic import PositiveInt
from pytorch_lightning import LightningDataModule

from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.shards import Shard
from eblvm_lit.data.batches import BatchStream, Blocks, OrderedBatches, RepeatedBatches
from eblvm_lit.errors import ConfigError, DataError

__all__ = ["ArrayDataModule", "BatchStream", "OrderedBatches", "Splits", "Window", "image_shape_of"]

Window = tuple[tuple[float, float], tuple[float, float]]


class Splits(NamedTuple):
    """The three splits of a data set: float32 vectors or uint8 images of shape (n, *event_shape).

    Also their labels: int64 of shape (n,) or (n, n_attributes).
    """

    train: torch.Tensor
    val: torch.Tensor
    test: torch.Tensor


@dataclass(kw_only=True, eq=False)
class ArrayDataModule(LightningDataModule, ABC):
    """A data set stored as whole arrays. A subclass sets the shapes and implements :meth:`load`.

    Args:
        batch_size: Rows of a training batch, summed over all processes.
        eval_batch_size: Rows of a validation or test batch.
        seed: Seed of the order of the training batches; the data do not depend on it.

    Attributes:
        event_shape: Shape of one v as models see it; known before the data are loaded.
        image_shape: (C, H, W) for drawing v, or None if v is not an image.
        bounds: ((x0, x1), (y0, y1)), the window for drawing densities, or None if v is not a 2-D point.
        iterations_per_batch: Minibatches per item of the training loader; above 1, an item is a list of minibatches.
        max_examples: The first rows that each split keeps at :meth:`setup`, for a try; None: all.
        splits: The arrays, available after :meth:`setup`.
        labels: The labels, row by row, or None. Probes use them; training never does.

    Example:
        >>> class Ramp(ArrayDataModule):
        ...     event_shape = (1,)
        ...     def load(self):
        ...         return Splits(*torch.arange(12.0).view(12, 1).split([6, 3, 3]))
        >>> data = Ramp(batch_size=4)
        >>> next(iter(data.train_dataloader())).shape, [v.tolist() for v in data.val_dataloader()]
        (torch.Size([4, 1]), [[[6.0], [7.0], [8.0]]])
    """

    event_shape: ClassVar[tuple[int, ...]]
    image_shape: ClassVar[tuple[int, int, int] | None] = None
    bounds: ClassVar[Window | None] = None

    batch_size: PositiveInt = 100
    eval_batch_size: PositiveInt = 1000
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.iterations_per_batch = 1
        self.max_examples: int | None = None
        self.splits: Splits = cast(Splits, None)  # until setup, before which nothing reads them
        self.labels: Splits | None = None
        self._order: BatchStream | RepeatedBatches | None = None  # where indices are looked up

    def __str__(self) -> str:
        """The options; Lightning's own text needs loaders of another kind."""
        return repr(self)

    def find_options(self) -> tuple[dict[str, Any], str]:
        """The values of options that were left open and that only the files tell; none by default.

        A run looks them up before anything else is built, and keeps them in its configuration.

        Returns:
            The options by name, and a line that says what was found.

        Raises:
            DataError: The files are missing or damaged.
        """
        return {}, ""

    @abstractmethod
    def load(self) -> Splits:
        """Read or generate the whole data set; every call returns the same arrays."""

    def load_labels(self) -> Splits | None:
        """The labels of the arrays of :meth:`load`, row by row; None if there are none."""
        return None

    def n_train_without(self, split: str) -> int:  # noqa: ARG002 - of sets whose splits overlap
        """Number of the first training examples that are not in another split: all, where splits are disjoint."""
        return len(self.splits.train)

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002 (every stage needs the same arrays)
        """Load and check the arrays, once.

        Raises:
            DataError: A split is empty, has a wrong shape or type, or is not finite.
        """
        if self.splits is None:
            splits = self._kept(self.load())
            labels = self.load_labels()
            for name, array in splits._asdict().items():
                self._check(name, array)
            self.labels = None if labels is None else self._kept(labels)
            self.splits = splits

    def _kept(self, parts: Splits) -> Splits:
        return Splits(*(rows[: self.max_examples] for rows in parts))

    def _check(self, name: str, array: torch.Tensor) -> None:
        where = f"The {name} split of {type(self).__name__}"
        fits = array.dtype in (torch.float32, torch.uint8) and tuple(array.shape[1:]) == self.event_shape
        if not fits or len(array) == 0:
            raise DataError(
                f"{where} is {array.dtype} of shape {tuple(array.shape)} instead of float32 or uint8 of shape "
                f"(n >= 1, *{self.event_shape})."
            )
        # bytes are finite, and reading a memory-mapped array as a whole is slow
        if array.dtype != torch.uint8 and (n_bad := array.numel() - int(array.isfinite().sum())):
            raise DataError(f"{where} holds {n_bad} non-finite values among {array.numel()}.")

    def as_float(self, batch: torch.Tensor) -> torch.Tensor:
        """A batch as models see it: uint8 becomes float32, v = batch / 255; floats stay as they are."""
        return batch.float().div_(255) if batch.dtype == torch.uint8 else batch

    def as_bytes(self, batch: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`as_float` for v in [0, 1]: round(255 v) as uint8, clamped to [0, 255]."""
        return batch.mul(255).round_().clamp_(0, 255).to(torch.uint8)

    def augment(self, batch: torch.Tensor, iteration: int, shard: Shard | None = None) -> torch.Tensor:  # noqa: ARG002
        """Augment a training batch, or a shard of it; this method returns it unchanged."""
        return batch

    def on_after_batch_transfer(
        self,
        batch: torch.Tensor | list[torch.Tensor],
        dataloader_idx: int,  # noqa: ARG002
    ) -> torch.Tensor | list[torch.Tensor]:
        """Convert to floats on the device, of the model's type: bytes are a quarter of the transfer."""
        dtype = self.trainer.lightning_module.dtype if self.trainer is not None else None

        def converted(part: torch.Tensor) -> torch.Tensor:
            v = self.as_float(part)
            return v if dtype is None else v.to(cast(torch.dtype, dtype))

        return [converted(part) for part in batch] if isinstance(batch, list) else converted(batch)

    def train_dataloader(self) -> BatchStream | Blocks | RepeatedBatches:
        """An endless stream of shuffled batches that starts at the trainer's iteration.

        With ``trainer.overfit_batches`` = n, the first n batches are repeated.

        Raises:
            ConfigError: If a batch is larger than the training split.
        """
        self.setup()
        if self.max_examples is None and self.batch_size > (n := len(self.splits.train)):
            raise ConfigError(f"data.batch_size={self.batch_size} is more than the {n} training examples: choose {n}.")
        self._order = None
        n_overfit = cast(Any, self.trainer).overfit_batches if self.trainer is not None else 0
        if n_overfit:
            trainer = cast(Any, self.trainer)
            few = self.splits.train[: n_overfit * self.batch_size]
            return RepeatedBatches(few, batch_size=self.batch_size, position=lambda: trainer.global_step)
        # A restored trainer knows its iteration when it asks for the loader, and then fetches a batch immediately:
        # later, the position can no longer be changed.
        position = self.trainer.global_step if self.trainer is not None else 0
        stream = BatchStream(
            self.splits.train, batch_size=self.batch_size, seed=self.seed, position=position, augment=self.augment
        )
        return Blocks(stream, size=self.iterations_per_batch) if self.iterations_per_batch > 1 else stream

    def indices_at(self, iteration: int) -> torch.Tensor:
        """The numbers, in the training split, of the examples of the training batch at an iteration, int64.

        They are a function of the seed and the iteration, as the batches are.
        """
        if self._order is None:
            loader = self.train_dataloader()
            self._order = loader.stream if isinstance(loader, Blocks) else loader
        return self._order.rows(iteration)

    def batch_sizes(self) -> list[int]:
        """All sizes of training and validation batches, including the short last ones."""
        self.setup()
        return sorted({*self.train_batch_sizes(), *_sizes(self.splits.val, self.eval_batch_size)})

    def train_batch_sizes(self) -> list[int]:
        """All sizes of training batches, including the short last one."""
        self.setup()
        return sorted(_sizes(self.splits.train, self.batch_size))

    def rows_at(self, iteration: int) -> int:
        """The number of rows of the training batch at an iteration (counted from 0), summed over all processes."""
        return len(self.indices_at(iteration))

    def val_dataloader(self) -> OrderedBatches:
        """The validation split in order."""
        self.setup()
        return OrderedBatches(self.splits.val, batch_size=self.eval_batch_size, distributed=True)

    def test_dataloader(self) -> OrderedBatches:
        """The test split in order."""
        self.setup()
        return OrderedBatches(self.splits.test, batch_size=self.eval_batch_size)


def image_shape_of(data: ArrayDataModule) -> tuple[int, int, int]:
    """(C, H, W) of data that are known to be images.

    Example:
        >>> from eblvm_lit.data.digits import Digits
        >>> image_shape_of(Digits())
        (1, 8, 8)
    """
    return cast("tuple[int, int, int]", data.image_shape)


def _sizes(array: torch.Tensor, batch_size: int) -> set[int]:
    return {min(len(array), batch_size), len(array) % batch_size} - {0}
