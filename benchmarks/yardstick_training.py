"""The training of models for a comparison, each for a given time on one thread.

Schedules of learning rates end when the time ends.
"""

from __future__ import annotations

import copy
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import eblvm_lit
from benchmarks.flow_matching import matching_loss
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import Splits
from eblvm_lit.evaluation.features.classifier_training import centred

FIRST = 100
N_VALIDATIONS = 20
SEED = 0
RUN = (
    *("callbacks.evaluation=null", "callbacks.figures=null", "n_validations=1", "summary=false", "threads=1"),
    *("trainer.accelerator=cpu", "trainer.precision=32-true"),
)


def for_minutes(train: Callable[[int], tuple[Any, float]], minutes: float) -> tuple[Any, dict[str, float]]:
    """Train for a given time, and return the result with its cost.

    A first short training measures the rate, which determines the number of iterations of the second, real one.

    Args:
        train: A function that trains for a number of iterations, and returns the result and iterations per second.
        minutes: The processor time of the second training.
    """
    n = max(1, round(60 * minutes * train(FIRST)[1]))
    begin = time.process_time()  # measure processor time, in which other programs do not count
    return train(n)[0], {"iterations": n, "minutes": (time.process_time() - begin) / 60}


def train_run(overrides: tuple[str, ...], folder: Path, n: int | None = None) -> tuple[Any, float]:
    """Train a run of this package without metrics and figures, and return it with its iterations per second."""
    shutil.rmtree(folder, ignore_errors=True)  # remove an earlier run, because a folder can contain only one run
    length = [] if n is None else [f"trainer.max_steps={n}"]
    run = eblvm_lit.train([*RUN, *overrides, *length, f"hydra.run.dir={folder}"])
    return run, run.metrics.get("train/iterations_per_second", math.nan)


def descend(loss: Callable[[Tensor], Tensor], module: Any, rows: Tensor, n: int, batch_size: int, after: Any) -> float:
    """Minimise a loss by Adam on random minibatches, with a cosine schedule of the learning rate.

    Return the iterations per second.

    ``after`` is called after each iteration, and its time does not count.
    """
    generator = keyed_generator(SEED, "minibatches")
    seconds = 0.0
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n)
    for i in range(1, n + 1):
        begin = time.process_time()
        optimizer.zero_grad()
        loss(rows[torch.randint(len(rows), (batch_size,), generator=generator)]).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seconds += time.process_time() - begin
        after(i)
    return n / seconds


def train_field(network: type[nn.Module], batch_size: int, images: Tensor, n: int) -> tuple[nn.Module, float]:
    """Train a velocity field by flow matching of images, uint8 (N, C, H, W).

    Return the field with averaged parameters, and the iterations per second.
    """
    torch.manual_seed(SEED)
    field = network(images.shape[1:])
    noise = keyed_generator(SEED, "flow matching")
    average = AveragedModel(field, multi_avg_fn=get_ema_multi_avg_fn(0.999))

    def loss(batch: Tensor) -> Tensor:
        average.update_parameters(field)
        return matching_loss(field, centred(batch), noise)

    rate = descend(loss, field, images, n, batch_size, lambda _: None)
    return average.module.eval(), rate


def train_spline(splits: Splits, n: int) -> tuple[tuple[nn.Module, float], float]:
    """Train a neural spline flow (Durkan et al. 2019) on points.

    Return the flow with the best validation loss, its test log-likelihood, and the iterations per second.
    """
    from zuko.flows import NSF  # installed by the extra "yardsticks", which the comparison of images does not need

    torch.manual_seed(SEED)
    flow = NSF(2, transforms=6, bins=16, hidden_features=(64, 64))
    mean = splits.train.mean(0)
    std = splits.train.std(0)
    best = [(-math.inf, {})]

    def loss(v: Tensor) -> Tensor:
        return std.log().sum() - flow().log_prob((v - mean) / std).mean()

    @torch.no_grad()
    def validate(i: int) -> None:
        if i % max(1, n // N_VALIDATIONS) == 0 and (value := -float(loss(splits.val))) > best[0][0]:
            best[0] = value, copy.deepcopy(flow.state_dict())

    rate = descend(loss, flow, splits.train, n, 512, validate)
    flow.load_state_dict(best[0][1])
    with torch.no_grad():
        return (flow, -float(loss(splits.test))), rate
