"""The callback that computes metrics at each validation and at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytorch_lightning as pl
import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt

from eblvm_lit.core.ranks import gather_objects, rank_and_size
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.applicable import applicable
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.methods.base import Method

__all__ = ["Evaluation"]


class Evaluation(pl.Callback):
    """Computes metrics on the whole validation split at each validation, and on the test split at the end.

    Args:
        metrics: All metrics by name, which are computed on the test split. Metrics that do not apply to the method or
            the data are named in the log.
        at_validation: The names of the metrics that validations compute.
        intervals: The number of iterations between two values of each metric that is too slow for every validation, by
            the name of the metric. The last validation computes all of these metrics.

    Attributes:
        waiting: Whether the last validation has left out metrics that were not due.

    Raises:
        ConfigError: If ``at_validation`` names an unknown metric, or ``intervals`` one that is not in
            ``at_validation``; when training starts, if an interval is not a whole number of validations.
    """

    def __init__(
        self,
        *,
        metrics: Mapping[str, Metric | None],
        at_validation: Sequence[str] = (),
        intervals: Mapping[str, PositiveInt] | None = None,
    ) -> None:
        self.metrics = {name: metric for name, metric in metrics.items() if metric is not None}
        self.at_validation = [name for name in at_validation if name in self.metrics]
        self.intervals = dict(intervals or {})
        self.waiting = False
        self._given: list[str] = []  # names of the metrics logged by the last validation
        for key, names, known in (("at_validation", at_validation, metrics), ("intervals", intervals, at_validation)):
            if unknown := sorted(set(names or ()) - set(known)):
                raise ConfigError(
                    f"callbacks.evaluation.{key} names {unknown[0]!r}, which is none of {', '.join(known) or 'none'}."
                )

    def describe(self, method: Method, data: pl.LightningDataModule) -> dict[str, str]:
        """Describe which estimator computes each metric that has several estimators; see :meth:`Metric.describe`."""
        described = (metric.describe(method, data) for metric in self.metrics.values())
        return {name: how for part in described for name, how in part.items()}

    def compute(
        self, method: Method, data: pl.LightningDataModule, split: str, names: Sequence[str]
    ) -> dict[str, float]:
        """Compute metrics on one split, with random numbers that depend on the seed, the split and the metric.

        The results are named ``<split>/<metric>``. Several processes compute collective metrics together, and divide
        the other metrics among them.
        """
        rank, size = rank_and_size()
        alone = [name for name in names if not self.metrics[name].collective]
        found = {name: self._values(name, method, data, split) for name in names if self.metrics[name].collective}
        for part in gather_objects({name: self._values(name, method, data, split) for name in alone[rank::size]}):
            found |= part
        return {f"{split}/{key}": value for name in names for key, value in found[name].items()}

    def _values(self, name: str, method: Method, data: pl.LightningDataModule, split: str) -> dict[str, float]:
        generator = keyed_generator(method.seed, split, name, device=method.device)
        with torch.no_grad():
            values = self.metrics[name].evaluate(method, data, split, generator)
        return {key: float(value) for key, value in values.items()}

    def test(self, method: Method, data: pl.LightningDataModule) -> dict[str, float]:
        """Compute all metrics on the test split."""
        self.metrics = applicable("metrics", self.metrics, method, data)
        return self.compute(method, data, "test", list(self.metrics))

    def figures(self) -> dict[str, Figure]:
        """Return the figures that metrics draw of their results, in a dict by metric; see :meth:`Metric.figure`."""
        drawn = {name: metric.figure() for name, metric in self.metrics.items()}
        return {name: figure for name, figure in drawn.items() if figure is not None}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Let each metric check its files and data before training, so that the run does not fail at its end."""
        between = trainer.val_check_interval * trainer.datamodule.iterations_per_batch
        for name, interval in self.intervals.items():
            if interval % between:
                raise ConfigError(
                    f"callbacks.evaluation.intervals.{name} is {interval}, and validations are {between} iterations "
                    "apart: it must be a multiple of that."
                )
        self.metrics = applicable("metrics", self.metrics, pl_module, trainer.datamodule)
        self.at_validation = [name for name in self.at_validation if name in self.metrics]
        for metric in self.metrics.values():
            metric.prepare(pl_module, trainer.datamodule)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Log the validation metrics that are due, so that ``Checkpoints`` can monitor them.

        Values of the previous validation are removed from the trainer's metrics, because the parameters have changed.
        """
        between = trainer.val_check_interval * trainer.datamodule.iterations_per_batch
        is_last = trainer.global_step + between > trainer.max_steps
        due = [n for n in self.at_validation if is_last or trainer.global_step % self.intervals.get(n, 1) == 0]
        self.waiting = len(due) < len(self.at_validation)
        for key in self._given:
            trainer.callback_metrics.pop(key, None)
        found = self.compute(pl_module, trainer.datamodule, "val", due)
        for logger in trainer.loggers:
            logger.log_metrics(found, step=trainer.global_step)
        self._given = list(found)
        trainer.callback_metrics.update({key: torch.tensor(value, dtype=torch.float64) for key, value in found.items()})
