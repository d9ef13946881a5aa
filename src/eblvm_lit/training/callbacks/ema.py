"""The callback that keeps exponential moving averages of the parameters."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from pydantic import PositiveInt
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from eblvm_lit.core.ranges import Decay
from eblvm_lit.methods.base import Method
from eblvm_lit.training.checkpoint_io import AVERAGES

__all__ = ["ExponentialAverage", "averaged_of"]

log = logging.getLogger(__name__)

STATISTICS = ("running_mean", "running_var")  # the suffixes of the names of buffers of batch normalisation


class ExponentialAverage(pl.Callback):
    r"""Computes exponential moving averages of all parameters and of the running statistics of normalisation layers.

    .. math:: \bar p_0 = p_0, \quad \bar p_t = \gamma_t \bar p_{t-1} + (1 - \gamma_t)\, p_t, \qquad
        \gamma_t = \min\left(\gamma, \frac{1 + t}{10 + t}\right)

    Here p_t is a parameter or statistic after t iterations. The decay warms up: with gamma = 0.999 from the start, the
    initial values would have a weight of 0.55 in the average after 600 iterations. Other buffers, such as persistent
    chains, are not averaged. Training and validation use the parameters themselves; ``eval_weights=ema`` computes the
    final metrics with the averages. References: Bao et al. 2021, code, for deep models, with gamma = 0.999; the warm-up
    as in TensorFlow's ExponentialMovingAverage and diffusers' EMAModel.

    Lightning's EMAWeightAveraging validates with the averages and makes them the parameters at the end. With five
    iterations in a batch it never updates, because it waits for global_step - 1 to be a multiple of its period.

    Args:
        decay: The decay gamma of one iteration.
        every: The number of iterations between two updates. Each update uses the product of the decays of these
            iterations. The number iterations_per_batch is at most this number, so that no update is skipped.

    Example:
        >>> import torch
        >>> average = ExponentialAverage(decay=0.999, every=1)
        >>> for t in range(3):  # by 2/11, then by 3/12
        ...     average.follow({"w": torch.full((1,), 11.0 * t)}, t)
        >>> average.averages
        {'w': tensor([18.7500])}
    """

    def __init__(self, *, decay: Decay = 0.999, every: PositiveInt) -> None:
        self.every = every
        self.decay = decay
        self.averages: dict[str, Tensor] = {}
        self.iteration = 0

    def follow(self, live: Mapping[str, Tensor], iteration: int) -> None:
        """Update the averages, or start them at the first call; a second call after the same iteration does nothing.

        Args:
            live: The current values of the parameters and statistics, by name.
            iteration: The number of iterations done.
        """
        if not self.averages:
            self.averages = {name: value.detach().clone() for name, value in live.items()}
        elif iteration > self.iteration and iteration % self.every == 0:
            block = range(iteration - self.every + 1, iteration + 1)
            decay = math.prod(min(self.decay, (1 + t) / (10 + t)) for t in block)
            averaged, current = ([found[name].detach() for name in live] for found in (self.averages, live))
            get_ema_multi_avg_fn(decay)(averaged, current, None)
        else:
            return
        self.iteration = iteration

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Load the averages from a checkpoint or, if it contains none, start them from the checkpoint's parameters."""
        self.averages = dict(checkpoint.get(AVERAGES, {}))
        self.iteration = checkpoint["eblvm_lit"]["iteration"]
        if not self.averages:
            log.warning("The checkpoint contains no averages of the parameters: they start from its parameters.")

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Start the averages from the initial values, or move loaded averages to the device of the parameters."""
        live = averaged_of(pl_module)
        self.averages = {name: value.to(live[name]) for name, value in self.averages.items()}
        self.follow(live, trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Update the averages with the current parameters and statistics."""
        self.follow(averaged_of(pl_module), trainer.global_step)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict[str, Any]) -> None:
        """Update the averages after the current iteration, and add them to the checkpoint."""
        self.follow(averaged_of(pl_module), trainer.global_step)
        checkpoint[AVERAGES] = self.averages


def averaged_of(method: Method) -> dict[str, Tensor]:
    """Return the current parameters, running means and running variances of a method, by their name in ``state_dict``.

    The tensors are not copies: they change as training goes on.
    """
    statistics = {name: value for name, value in method.named_buffers() if name.endswith(STATISTICS)}
    return {**dict(method.named_parameters()), **statistics}
