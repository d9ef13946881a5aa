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
from eblvm_lit.methods.checkpoint_weights import AVERAGES, NetworkParams, averaged_of, averages_of, is_statistic

__all__ = ["ExponentialAverage"]

log = logging.getLogger(__name__)


class ExponentialAverage(pl.Callback):
    r"""Exponential moving averages of all networks' parameters, theta and phi, and of their running statistics s.

    .. math:: \bar p_0 = p_0, \quad \bar p_t = \gamma \bar p_{t-1} + (1 - \gamma)\, p_t, \qquad
        \bar s_t = \bar s_{t-1} + \frac{1 - \gamma}{1 - \gamma^t} (s_t - \bar s_{t-1})

    Running means and variances, as of batch normalisation, belong to the parameters they were taken with. Their start,
    0 and 1, is of no activation, and 1 can be hundreds of times a variance: it has no weight in their average. Other
    buffers, such as persistent chains, are not averaged. Training and validation use the parameters themselves.
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
        >>> average.follow({"theta": {"w": torch.zeros(1), "running_var": torch.ones(1)}}, 0)
        >>> average.follow({"theta": {"w": torch.full((1,), 4.0), "running_var": torch.full((1,), 0.01)}}, 1)
        >>> average.averages
        {'theta': {'w': tensor([2.]), 'running_var': tensor([0.0100])}}
    """

    def __init__(self, *, decay: float = 0.999, every: int) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"callbacks.ema.decay must be in [0, 1), not {decay}.")
        if every < 1:
            raise ConfigError(f"callbacks.ema.every must be at least 1, not {every}.")
        self.every = every
        self.averages: NetworkParams | None = None
        self.iteration = 0
        self._decay = decay**every

    def follow(self, networks: Mapping[str, Mapping[str, Tensor]], iteration: int) -> None:
        """Update the averages with an iteration's values, or start from them; a repeated call does nothing."""
        if self.averages is None:
            self.averages = {name: {k: p.detach().clone() for k, p in own.items()} for name, own in networks.items()}
        elif iteration > self.iteration and iteration % self.every == 0:
            decay, n = self._decay, iteration // self.every
            unbiased = decay * (1 - decay ** (n - 1)) / (1 - decay**n)  # 0 at the first: it replaces the start
            places = [(name, k) for name, own in self.averages.items() for k in own]
            for of_statistics, weight in ((False, decay), (True, unbiased)):
                keys = [(name, k) for name, k in places if is_statistic(k) == of_statistics]
                if keys:
                    averaged, current = ([x[name][k].detach() for name, k in keys] for x in (self.averages, networks))
                    get_ema_multi_avg_fn(weight)(averaged, current, None)
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
        """Start from the initial values, or move loaded averages to their device; what was not averaged starts here."""
        networks = averaged_of(pl_module)
        if self.averages is not None:
            loaded = self.averages
            self.averages = {
                name: {k: loaded[name][k].to(p) if k in loaded[name] else p.detach().clone() for k, p in own.items()}
                for name, own in networks.items()
            }
        self.follow(networks, trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Update the averages."""
        self.follow(averaged_of(pl_module), trainer.global_step)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict[str, Any]) -> None:
        """Add the averages of the current iteration."""
        if self.averages is not None:
            self.follow(averaged_of(pl_module), trainer.global_step)
            checkpoint[AVERAGES] = self.averages
