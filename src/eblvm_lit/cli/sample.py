"""The command eblvm-sample, which writes samples of a trained run as numbers and as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from eblvm_lit.cli.compose import sampler_config
from eblvm_lit.errors import EblvmError
from eblvm_lit.runs.load import load
from eblvm_lit.runs.sharing import draw_samples
from eblvm_lit.runs.trained_run import TrainedRun

__all__ = ["main", "parser", "write_samples"]


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command's arguments."""
    options = argparse.ArgumentParser(
        "eblvm-sample", description="Writes samples.npz, and samples.png of images or points."
    )
    options.add_argument("run", help="the folder of a run or a model, a checkpoint, or a model's name")
    options.add_argument("overrides", nargs="*", help="a sampler other than the run's: sampler=NAME sampler.KEY=VALUE")
    options.add_argument("-n", type=int, default=64, help="number of samples (64)")
    options.add_argument("--seed", type=int, default=0, help="seed of all randomness (0)")
    options.add_argument("--mean", action="store_true", help="with Gibbs sampling, E[v|h] instead of a sample")
    options.add_argument("--device", default="cpu", help="device of the model: cpu, cuda, gpu, auto, ... (cpu)")
    options.add_argument("--allow-packages", nargs="*", default=[], help="your packages with classes of the run")
    options.add_argument("--config-dir", help="your configuration folder, beside your packages")
    options.add_argument("--out", type=Path, help="folder of the files (samples/ in the folder of the run)")
    return options


def write_samples(run: TrainedRun, v: Tensor, folder: Path) -> list[Path]:
    """Write samples v (n, *event) as ``samples.npz`` and, if they are images or points, as ``samples.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    v = v.detach().cpu()
    files = [folder / "samples.npz", folder / "samples.png"]
    np.savez_compressed(files[0], v=v.numpy())
    draw_samples(run, v, files[1])
    return [file for file in files if file.is_file()]


def main(argv: Sequence[str] | None = None) -> None:
    """Draw samples and write them; if the user can correct an error, print its message and exit with code 1."""
    given = parser().parse_intermixed_args(argv)
    try:
        run = load(given.run, device=given.device, allow_packages=given.allow_packages, config_dir=given.config_dir)
        if given.overrides:
            run.config.sampler = sampler_config(given.overrides)
        v = run.sample(given.n, seed=given.seed, mean=given.mean)
        files = write_samples(run, v, given.out or (run.folder or Path()) / "samples")
    except EblvmError as error:
        sys.exit(f"ERROR: {error}")
    print(*files, sep="\n")


if __name__ == "__main__":
    main()
