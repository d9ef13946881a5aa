"""The measurement of one training run in this process.

The command is: python -m benchmarks.measure RESULT.json OVERRIDE...
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from scipy.io import savemat

from eblvm_lit.core.minibatch import WHOLE
from eblvm_lit.data import frey_face
from eblvm_lit.data.frey_face import FACES
from eblvm_lit.runs import run

ROOT = Path(__file__).resolve().parents[1]
N_BLOCKS = 5
# The largest number of iterations in a block. Training logs every 100 iterations, so that such a block logs once.
MAX_BLOCK = 100
MAX_BARE_BLOCK = 20
# Overrides for a real run with logging and progress bar, but without the work before and after its iterations.
COMMON = (
    "allow_packages=[benchmarks]",
    "+callbacks.clock._target_=benchmarks.measure.Clock",
    "+callbacks.clock.path=null",
    "callbacks.evaluation=null",
    "callbacks.figures=null",
    "n_validations=1",
    "logger=csv",
    "show_config=false",
)


def peak_memory(device: torch.device) -> float:
    """Return the peak memory in MiB, of torch's allocator on a GPU and of this whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss counts bytes on macOS and KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def block_seconds(stamps: list[tuple[int, float]], size: int) -> list[float]:
    """Compute the seconds per 100 iterations in blocks of iterations.

    Args:
        stamps: Pairs of an iteration and the time at which it ended.
        size: The smallest number of iterations in a block.
    """
    chosen = [stamps[0]]
    for iteration, when in stamps[1:]:
        if iteration - chosen[-1][0] >= size:
            chosen.append((iteration, when))
    return [(t1 - t0) * 100 / (i1 - i0) for (i0, t0), (i1, t1) in pairwise(chosen)]


class Clock(pl.Callback):
    """A callback that measures the time of iterations with and without Lightning.

    It records when each call of Lightning's loop ends. After training, it times iterations without Lightning.

    Args:
        path: The JSON file to which the results are written.
    """

    def __init__(self, *, path: str) -> None:
        self.path = Path(path)
        self.stamps = []
        self.memory = []
        self.batch = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.memory.append(peak_memory(pl_module.device))
        self.stamps.append((trainer.global_step, time.perf_counter()))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
        wait(pl_module.device)
        self.stamps.append((trainer.global_step, time.perf_counter()))
        if trainer.global_step == trainer.max_steps:  # measure the memory before validation, which must not count
            self.memory.append(peak_memory(pl_module.device))
            block = args[1]  # args are outputs, batch and batch index
            self.batch = block if isinstance(block, torch.Tensor) else block[0]

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        warm = [stamp for stamp in self.stamps[1:] if stamp[0] > trainer.max_steps // 10]
        size = max(1, min(MAX_BLOCK, (warm[-1][0] - warm[0][0]) // N_BLOCKS))
        blocks = block_seconds(warm, size)
        bare = bare_blocks(pl_module, self.batch, min(size, MAX_BARE_BLOCK))
        result = {
            "seconds_per_100": median(blocks),
            "fastest_per_100": min(blocks),
            "bare_seconds_per_100": median(bare),
            "first_call_seconds": self.stamps[1][1] - self.stamps[0][1],
            "peak_mib": self.memory[1],
            "peak_mib_above_start": self.memory[1] - self.memory[0],
            "iterations": trainer.max_steps,
            "threads": torch.get_num_threads(),
            "device": str(pl_module.device),
            "torch": torch.__version__,
        }
        self.path.write_text(json.dumps(result))


def bare_iteration(method: Any, batch: torch.Tensor) -> Callable[[int], None]:
    """Return a function that runs one training iteration without Lightning.

    The iteration includes drawing its noise, but not the data loader, the loop, the log and the progress bar.
    """
    raw = dict(zip(method.groups, method.trainer.optimizers, strict=True))
    generator = torch.Generator(method.device)
    state = method.train_state(raw, method._lrs)

    def iterate(i: int) -> None:
        method.step(state, WHOLE, batch, generator.manual_seed(i))  # this is the step that training runs, too

    return iterate


def bare_blocks(method: Any, batch: torch.Tensor, size: int) -> list[float]:
    """Measure the seconds per 100 iterations without Lightning, in several blocks."""
    iterate = bare_iteration(method, batch)
    stamps = []
    for i in range(N_BLOCKS * size + 1):
        if i % size == 0:
            wait(method.device)
            stamps.append((i, time.perf_counter()))
        iterate(i)
    return block_seconds(stamps, size)


def write_faces(folder: str) -> None:
    """Write smooth random images as a file of the Frey faces' size.

    The checksum of the file is added to the known ones, so that the file is accepted in place of the real one.
    """
    walk = np.random.default_rng(0).normal(size=(560, 1965)).cumsum(axis=0)
    scaled = 255 * (walk - walk.min()) / np.ptp(walk)
    path = Path(folder) / FACES
    savemat(path, {frey_face.KEY: scaled.astype(np.uint8)})
    frey_face.SHA256.add(hashlib.sha256(path.read_bytes()).hexdigest())


def main(result: str, *overrides: str) -> None:
    """Train in a temporary folder with the given overrides; the callback Clock writes the result."""
    with tempfile.TemporaryDirectory() as folder:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = compose("config", [*overrides, *COMMON])
        cfg.run_dir = folder
        cfg.callbacks.clock.path = result
        if "root" in cfg.data:
            cfg.data.root = folder
        if cfg.data._target_ == "eblvm_lit.data.frey_face.FreyFace":
            write_faces(folder)
        run.train(cfg)


if __name__ == "__main__":
    main(*sys.argv[1:])
