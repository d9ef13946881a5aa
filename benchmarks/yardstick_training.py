"""How yardsticks are trained: for so many minutes on one thread, with schedules that end when the time does."""

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
    """What is trained anew for as many iterations as there is time for, by the rate of the first ones; and its cost."""
    n = max(1, round(60 * minutes * train(FIRST)[1]))
    begin = time.process_time()  # of one thread: what else the machine does costs a model none of its minutes
    return train(n)[0], {"iterations": n, "minutes": (time.process_time() - begin) / 60}


def train_run(overrides: tuple[str, ...], folder: Path, n: int | None = None) -> tuple[Any, float]:
    """A run of the package without metrics and figures, and iterations per second."""
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier measurement: a folder holds one run
    length = [] if n is None else [f"trainer.max_steps={n}"]
    run = eblvm_lit.train([*RUN, *overrides, *length, f"hydra.run.dir={folder}"])
    return run, run.metrics.get("train/iterations_per_second", math.nan)


def descend(loss: Callable[[Tensor], Tensor], module: Any, rows: Tensor, n: int, batch_size: int, after: Any) -> float:
    """Adam on random minibatches, its rate falling along a cosine; iterations per second without what comes after."""
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
    """A field by flow matching of images, uint8 (N, C, H, W): averages of its parameters."""
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
    """A neural spline flow (Durkan et al. 2019), the best of some validations, with its mean log-likelihood."""
    from zuko.flows import NSF  # of the extra "yardsticks", without which images are compared

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
