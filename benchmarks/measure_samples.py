"""The measurement of the speed of annealed Langevin sampling in this process.

The command is: python -m benchmarks.measure_samples RESULT OVERRIDE...
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from hydra import compose, initialize_config_dir

from benchmarks.measure import COMMON, ROOT, block_seconds, peak_memory, wait
from eblvm_lit.runs.build import build
from eblvm_lit.runs.instantiate import instantiate
from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
from eblvm_lit.utils.torch_settings import torch_settings

N_BLOCKS = 5


class Stamps:
    """A callable that records the time at which each step of the chains ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stamps = []

    def __call__(self, n: int) -> None:  # noqa: ARG002 - the sampler passes the number of chains
        wait(self.device)
        self.stamps.append((len(self.stamps), time.perf_counter()))


def device_of(accelerator: str) -> torch.device:
    gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if gpu else "cpu")


def main(result: str, *overrides: str) -> None:
    """Time some steps of one batch of chains with the sampler of the configuration, and write the result."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", [*overrides, *(key for key in COMMON if "clock" not in key)])
    with tempfile.TemporaryDirectory() as folder:
        cfg.run_dir = cfg.data.root = folder
        device = device_of(cfg.trainer.accelerator)
        parts = build(cfg)
        parts.data.setup()
        method = parts.method.to(device).eval()
        stamps = Stamps(device)
        sampler = instantiate(cfg.sampler, "sampler")
        published = sampler.dynamics.n_steps
        n_steps = cfg.trainer.max_steps
        sampler.dynamics = AnnealedLangevin(n_hot=n_steps, n_falling=0, n_cold=0)
        before = peak_memory(device)
        with torch_settings(tf32=cfg.tf32):
            sampler.draw(
                method.parts.energy,
                range(sampler.batch_size),
                seed=0,
                posterior=method.parts.posterior,
                examples=parts.data.as_float(parts.data.splits.train),
                on_step=stamps,
            )
    warm = stamps.stamps[n_steps // 10 :]
    seconds = median(block_seconds(warm, max(1, len(warm) // N_BLOCKS)))
    found = {
        "seconds_per_100": seconds,
        "samples_per_second": sampler.batch_size * 100 / (seconds * published),
        "steps": published,
        "batch_size": sampler.batch_size,
        "peak_mib": peak_memory(device),
        "peak_mib_above_start": peak_memory(device) - before,
        "threads": torch.get_num_threads(),
        "device": str(device),
        "torch": torch.__version__,
    }
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
