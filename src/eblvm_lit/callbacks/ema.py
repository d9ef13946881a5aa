"""The callback that keeps exponential moving averages of the parameters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.checkpoint_weights import AVERAGES, NetworkParams, averages_of, parameters_of

__all__ = ["ExponentialAverage"]

log = logging.getLogger(__name__)


class ExponentialAverage(pl.Callback):
    r"""Exponential moving averages of all networks' parameters, theta and phi.

    .. math:: \bar p_0 = p_0, \quad \bar p_t = \gamma \bar p_{t-1} + (1 - \gamma)\, p_t

    Training and validation use the parameters themselves; buffers, such as persistent chains, are not averaged.
    Checkpoints hold the averages as plain tensors; ``eval_weights=ema`` computes the final metrics of them. Reference:
    Bao et al. 2021, code, for deep models, with gamma = 0.999; the published numbers are of the parameters themselves.

    Args:
        decay: gamma, of one iteration.
        every: Average every so many iterations, with gamma to that power; iterations_per_batch is at
            most this, so that none is skipped.

    Raises:
        ConfigError: For a decay outside of [0, 1), or ``every`` below 1.

    Example:
        >>> import torch
        >>> average = ExponentialAverage(decay=0.5, every=1)
        >>> average.follow({"theta": {"w": torch.zeros(1)}}, 0)
        >>> average.follow({"theta": {"w": torch.full((1,), 4.0)}}, 1)
        >>> average.averages
        {'theta': {'w': tensor([2.])}}
    """

    def __init__(self, *, decay: float = 0.999, every: int) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"callbacks.ema.decay must be in [0, 1), not {decay}.")
        if every < 1:
            raise ConfigError(f"callbacks.ema.every must be at least 1, not {every}.")
        self.every = every
        self.averages: NetworkParams | None = None
        self.iteration = 0
        self._average = get_ema_multi_avg_fn(decay**every)

    def follow(self, networks: Mapping[str, Mapping[str, Tensor]], iteration: int) -> None:
        """Update the averages with an iteration's parameters, or start from them; a repeated call does nothing."""
        if self.averages is None:
            self.averages = {name: {k: p.detach().clone() for k, p in own.items()} for name, own in networks.items()}
        elif iteration > self.iteration and iteration % self.every == 0:
            averaged = [p for own in self.averages.values() for p in own.values()]
            current = [networks[name][k].detach() for name, own in self.averages.items() for k in own]
            self._average(averaged, current, None)
        else:
            return
        self.iteration = iteration

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Resume a checkpoint's averages; without any, start from the parameters of the checkpoint."""
        self.averages = None
        if AVERAGES in checkpoint:
            self.averages, self.iteration = averages_of(checkpoint, pl_module), checkpoint["eblvm_lit"]["iteration"]
        else:
            log.warning("The checkpoint holds no averages of its parameters: they begin with the parameters it holds.")

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Start from the initial parameters, or move loaded averages to the parameters' device."""
        networks = parameters_of(pl_module)
        if self.averages is not None:
            self.averages = {
                name: {k: p.to(networks[name][k]) for k, p in own.items()} for name, own in self.averages.items()
            }
        self.follow(networks, trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Update the averages."""
        self.follow(parameters_of(pl_module), trainer.global_step)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict[str, Any]) -> None:
        """Add the averages of the current iteration."""
        if self.averages is not None:
            self.follow(parameters_of(pl_module), trainer.global_step)
            checkpoint[AVERAGES] = self.averages
