"""The base class of all data modules, which keep arrays in memory or memory-mapped and serve them in batches."""

# There is no "from __future__ import annotations" here, because it would turn annotations into strings. Subclasses in
# other modules inherit these dataclass fields. The check of a configuration evaluates their annotations in the module
# of the subclass, and some names in such strings may be unknown there.
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from pydantic import PositiveInt
from pytorch_lightning import LightningDataModule

from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.shards import Shard
from eblvm_lit.data.batches import BatchStream, Blocks, OrderedBatches, RepeatedBatches
from eblvm_lit.data.held_out import without_classes
from eblvm_lit.errors import ConfigError, DataError

__all__ = ["ArrayDataModule", "BatchStream", "OrderedBatches", "Splits", "Window", "image_shape_of", "range_of"]

Window = tuple[tuple[float, float], tuple[float, float]]


class Splits(NamedTuple):
    """The three splits of a data set: float32 vectors or uint8 images of shape (n, *event_shape).

    The labels of a data set have the same form: three int64 tensors of shape (n,) or (n, n_attributes).
    """

    train: torch.Tensor
    val: torch.Tensor
    test: torch.Tensor


@dataclass(kw_only=True, eq=False)
class ArrayDataModule(LightningDataModule, ABC):
    """A data set stored as whole arrays. A subclass sets the shapes and implements :meth:`load`.

    Args:
        batch_size: Number of examples in a training batch, summed over all processes.
        eval_batch_size: Number of examples in a validation or test batch.
        seed: Seed of the order of the training batches; the data do not depend on it.

    Attributes:
        event_shape: The shape of one example v as models receive it; known before the data are loaded.
        image_shape: The shape (C, H, W) with which v is drawn as an image; None if v is not an image.
        bounds: The window ((x0, x1), (y0, y1)) in which densities are drawn; None if v is not a 2-D point.
        column_names: The names of the coordinates of v in figures; None for v_1, v_2, ....
        class_names: The names of the labels 0, 1, ..., or of the attributes, if a label has several values; None if
            they have no names.
        held_out_classes: The labels or names of the classes that the training and the validation split leave out at
            :meth:`setup`. In the test split, examples of these classes are outliers.
        iterations_per_batch: Number of minibatches per item of the training loader; above 1, an item is a list of
            minibatches.
        max_examples: Number of examples that each split keeps at :meth:`setup`, for a quick trial: the first ones. None
            keeps all.
        splits: The three arrays, available after :meth:`setup`.
        labels: The labels of the examples in the same order; None if there are none. Only metrics and figures use
            labels; training never does.

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
    column_names: ClassVar[tuple[str, ...] | None] = None
    class_names: ClassVar[tuple[str, ...] | None] = None
    held_out_classes: ClassVar[Sequence[int | str]] = ()

    batch_size: PositiveInt = 100
    eval_batch_size: PositiveInt = 1000
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.iterations_per_batch = 1
        self.max_examples: int | None = None
        self.splits: Splits = cast(Splits, None)  # set by setup, before any other method reads them
        self.labels: Splits | None = None
        self._earlier = torch.zeros(0, dtype=torch.int64)  # digests of examples used before the run was resumed
        self._order: BatchStream | RepeatedBatches | None = None  # the batch order that indices_at reads

    def __str__(self) -> str:
        """Return the options as text; Lightning's own ``__str__`` fails with the loaders of this class."""
        return repr(self)

    def known_columns(self) -> Sequence[str] | None:
        """Return the names of the columns of vectors; None if they have none, or if the files are not there."""
        return None

    def find_options(self) -> tuple[dict[str, Any], str]:
        """Choose values, based on the data files, for options that the user has not set; the base class chooses none.

        A run does this before it builds anything else, and stores the values in its configuration.

        Returns:
            The values by option, and a line for the log that says what was found.

        Raises:
            DataError: If files are missing or damaged.
        """
        return {}, ""

    @abstractmethod
    def load(self) -> Splits:
        """Read or generate the three splits; every call returns the same arrays."""

    def load_labels(self) -> Splits | None:
        """Read the labels of the examples that :meth:`load` returns, in the same order; None if there are none."""
        return None

    def example_digests(self) -> Splits | None:
        """Return digests of the examples that :meth:`load` returns, in the same order: int64 of shape (n,) per split.

        By default there are none. A data set whose files may change between runs has them: checkpoints keep them, so
        that a resumed run and an evaluation find examples that were trained on.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints, which consists of the sorted digests of the examples in each split.

        It also contains the digests of earlier training examples: those that were used before the run was resumed, and
        are no longer in the training split. Lightning stores the state under the name of the class. Data without
        digests have no state.
        """
        self.setup()
        digests = self.example_digests()
        if digests is None:
            return {}
        kept = self._kept(digests)._asdict()
        now = {name: part.unique() for name, part in kept.items()}
        return {**now, "earlier": self._earlier[~torch.isin(self._earlier, now["train"])]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember which examples the checkpoint was trained on, because the data may have changed since."""
        self._earlier = torch.cat([state_dict["train"], state_dict["earlier"]]).unique()

    def n_train_without(self, split: str) -> int:  # noqa: ARG002 - for subclasses with overlapping splits
        """Return the number of training examples before the first that is also in the given split; by default, all."""
        return len(self.splits.train)

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002 (every stage needs the same arrays)
        """Load and check the arrays; later calls do nothing.

        Raises:
            DataError: If a split is empty, has a wrong shape or type, or contains values that are not finite.
        """
        if self.splits is None:
            splits = self._kept(self.load())
            labels = self.load_labels()
            for name, array in splits._asdict().items():
                self._check(name, array)
            self.labels = None if labels is None else self._kept(labels)
            self.splits = splits

    def _kept(self, parts: Splits) -> Splits:
        """Leave the held-out classes out of training and validation, and keep the first examples of each split."""
        rest = without_classes(parts, self.load_labels(), self.held_out_classes, self.class_names)
        return Splits(*(rows[: self.max_examples] for rows in rest))

    def _check(self, name: str, array: torch.Tensor) -> None:
        where = f"The {name} split of {type(self).__name__}"
        fits = array.dtype in (torch.float32, torch.uint8) and tuple(array.shape[1:]) == self.event_shape
        if not fits or len(array) == 0:
            raise DataError(
                f"{where} is {array.dtype} of shape {tuple(array.shape)} instead of float32 or uint8 of shape "
                f"(n >= 1, *{self.event_shape})."
            )
        # Bytes are not checked: they are always finite, and reading a whole memory-mapped array is slow.
        if array.dtype != torch.uint8 and (n_bad := array.numel() - int(array.isfinite().sum())):
            raise DataError(f"{where} contains {n_bad} non-finite values among {array.numel()}.")

    def as_float(self, batch: torch.Tensor) -> torch.Tensor:
        """Convert a batch to the values v that models receive: v = batch / 255 for bytes; floats stay unchanged."""
        return batch.float().div_(255) if batch.dtype == torch.uint8 else batch

    def as_bytes(self, batch: torch.Tensor) -> torch.Tensor:
        """Invert :meth:`as_float` for v in [0, 1]: return round(255 v) as uint8, clamped to [0, 255]."""
        return batch.mul(255).round_().clamp_(0, 255).to(torch.uint8)

    def in_units(self, v: torch.Tensor) -> torch.Tensor:
        """Convert v (..., *event_shape), as models receive it, to the units of the data; by default the identity."""
        return v

    def from_units(self, x: torch.Tensor) -> torch.Tensor:
        """Invert :meth:`in_units`: convert examples in the units of the data to v, as models receive it."""
        return x

    @property
    def unit_of_v(self) -> torch.Tensor | None:
        r"""The scale s of each coordinate in the conversion of v to the units of the data, float64; None if all are 1.

        With x in the units of the data, :math:`\log p(x) = \log p(v) - \sum_i \log s_i` and
        :math:`\nabla_x \log p(x) = \nabla_v \log p(v) / s`.
        """
        return None

    @property
    def log_unit_of_v(self) -> float:
        r"""The sum of the logarithms of :attr:`unit_of_v`, :math:`\sum_i \log s_i`.

        It equals :math:`\log p(v) - \log p(x)` for an example x in the units of the data, and is the log-volume of a
        unit cube of v in these units.
        """
        return 0.0 if self.unit_of_v is None else float(self.unit_of_v.log().sum())

    @property
    def window(self) -> Window | None:
        """The window, in coordinates of v, that figures of densities show; None if v is not a 2-D point.

        It is :attr:`bounds` if the data set defines them. Otherwise it is computed from the training points, after
        :meth:`setup`: the quantiles 0.005 and 0.995 of each coordinate, with a margin of a quarter of their distance.
        """
        if self.bounds is not None or self.image_shape is not None or tuple(self.event_shape) != (2,):
            return self.bounds
        ends = [range_of(column) for column in self.splits.train.unbind(1)]
        return ends[0], ends[1]

    def streamed(self) -> torch.Tensor:
        """Return the examples (n, *event_shape) from which training batches are taken: by default, the training split.

        :meth:`augment` changes each batch afterwards.
        """
        return self.splits.train

    def augment(self, batch: torch.Tensor, iteration: int, shard: Shard | None = None) -> torch.Tensor:  # noqa: ARG002
        """Augment a training batch, or one process's shard of it; by default the batch is returned unchanged."""
        return batch

    def on_after_batch_transfer(
        self,
        batch: torch.Tensor | list[torch.Tensor],
        dataloader_idx: int,  # noqa: ARG002
    ) -> torch.Tensor | list[torch.Tensor]:
        """Convert batches to the model's floating-point type on the device, after transferring them as bytes.

        Transferring floats instead would take four times as long.
        """
        dtype = self.trainer.lightning_module.dtype if self.trainer is not None else None

        def converted(part: torch.Tensor) -> torch.Tensor:
            v = self.as_float(part)
            return v if dtype is None else v.to(cast(torch.dtype, dtype))

        return [converted(part) for part in batch] if isinstance(batch, list) else converted(batch)

    def train_dataloader(self) -> BatchStream | Blocks | RepeatedBatches:
        """Return an endless stream of shuffled batches that starts at the trainer's current iteration.

        With ``trainer.overfit_batches`` = n, the first n batches, without shuffling, are repeated instead.

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
        # The position must be set here, and not later: the trainer fetches the first batch immediately after it has
        # asked for the loader. A trainer that resumes a run already knows its iteration at this time.
        position = self.trainer.global_step if self.trainer is not None else 0
        stream = BatchStream(
            self.streamed(), batch_size=self.batch_size, seed=self.seed, position=position, augment=self.augment
        )
        return Blocks(stream, size=self.iterations_per_batch) if self.iterations_per_batch > 1 else stream

    def indices_at(self, iteration: int) -> torch.Tensor:
        """Return the indices (int64), in the training split, of the examples in the batch of an iteration.

        The indices depend only on the seed and the iteration.
        """
        if self._order is None:
            loader = self.train_dataloader()
            self._order = loader.stream if isinstance(loader, Blocks) else loader
        return self._order.rows(iteration)

    def batch_sizes(self) -> list[int]:
        """Return the distinct sizes of training and validation batches, including shorter last batches."""
        self.setup()
        return sorted({*self.train_batch_sizes(), *_sizes(self.splits.val, self.eval_batch_size)})

    def train_batch_sizes(self) -> list[int]:
        """Return the distinct sizes of training batches, including a shorter last batch of an epoch."""
        self.setup()
        return sorted(_sizes(self.splits.train, self.batch_size))

    def rows_at(self, iteration: int) -> int:
        """Return the size of the training batch of an iteration, summed over all processes; iterations count from 0."""
        return len(self.indices_at(iteration))

    def val_dataloader(self) -> OrderedBatches:
        """Return the batches of the validation split in order, distributed over the processes."""
        self.setup()
        return OrderedBatches(self.splits.val, batch_size=self.eval_batch_size, distributed=True)

    def test_dataloader(self) -> OrderedBatches:
        """Return the batches of the test split in order; every process reads all of them."""
        self.setup()
        return OrderedBatches(self.splits.test, batch_size=self.eval_batch_size)


def range_of(values: torch.Tensor) -> tuple[float, float]:
    """Return the range between two quantiles of values (n,), widened by a quarter of its length at each end.

    The quantiles are 0.005 and 0.995.

    Example:
        >>> range_of(torch.cat([torch.linspace(0, 1, 1001), torch.tensor([1e6])]))
        (-0.243, 1.244)
    """
    ordered = values.double().sort().values  # sorted, because torch.quantile fails for more than 16 million values
    low, high = (float(ordered[round(q * (len(ordered) - 1))]) for q in (0.005, 0.995))
    margin = (high - low) / 4 or 1.0
    return round(low - margin, 3), round(high + margin, 3)


def image_shape_of(data: ArrayDataModule) -> tuple[int, int, int]:
    """Return the image shape (C, H, W) of data, which must be images.

    Example:
        >>> from eblvm_lit.data.digits import Digits
        >>> image_shape_of(Digits())
        (1, 8, 8)
    """
    return cast("tuple[int, int, int]", data.image_shape)


def _sizes(array: torch.Tensor, batch_size: int) -> set[int]:
    return {min(len(array), batch_size), len(array) % batch_size} - {0}
