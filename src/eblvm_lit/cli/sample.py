"""The command eblvm-sample, which writes samples of a trained run as numbers and as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from eblvm_lit.cli.console import prepare_folder
from eblvm_lit.cli.trained_run import TrainedRun, load
from eblvm_lit.errors import EblvmError
from eblvm_lit.utils.io import write_whole

__all__ = ["main", "parser", "write_samples"]


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    options = argparse.ArgumentParser(
        prog="eblvm-sample",
        description="Writes samples of a trained run: samples.npz, and samples.png of images or points.",
    )
    options.add_argument("run", help="the folder of a run, or a checkpoint")
    options.add_argument("-n", type=int, default=64, help="number of samples (64)")
    options.add_argument("--seed", type=int, default=0, help="seed of all randomness (0)")
    options.add_argument("--mean", action="store_true", help="with Gibbs sampling, E[v|h] instead of a draw")
    options.add_argument("--device", default="cpu", help="where the model goes: cpu, cuda, gpu, auto, ... (cpu)")
    options.add_argument("--allow-packages", nargs="*", default=[], help="packages of yours that the run names")
    options.add_argument("--config-dir", default=None, help="folder of your configurations, which has them beside it")
    options.add_argument(
        "--out", type=Path, default=None, help="folder of the files (samples/ in the folder of the run)"
    )
    return options


def write_samples(run: TrainedRun, v: Tensor, folder: Path) -> list[Path]:
    """Write samples v (n, *event) as ``samples.npz`` and, where they are images or points, as ``samples.png``.

    Returns:
        The files.
    """
    prepare_folder(folder)
    files = [folder / "samples.npz"]
    array = v.detach().cpu().numpy()
    write_whole(files[0], lambda file: np.savez_compressed(file, v=array))
    shape, bounds = run.data.image_shape, run.data.bounds
    if shape is None and bounds is None:
        return files
    from eblvm_lit.figures.base import new_figure, plane  # matplotlib takes seconds to import
    from eblvm_lit.figures.image_grid import image_grid

    panels = [("data", run.examples("train")[: len(v)].cpu()), ("samples", v.cpu())]
    if shape is not None:
        figure = image_grid([panels], shape, limits=(float(panels[0][1].min()), float(panels[0][1].max())))
    else:
        figure = new_figure(7.6, 3.9)
        for axes, (_, points) in zip(plane(figure, bounds, ("data", "samples")), panels, strict=True):
            axes.scatter(*points.T, s=5, alpha=0.4, linewidths=0)
        figure.draw_without_rendering()  # panels of fixed aspect need two passes of the layout, and saving does one
    files.append(folder / "samples.png")
    write_whole(files[1], lambda file: figure.savefig(file, format="png", dpi=150))
    return files


def main(argv: Sequence[str] | None = None) -> None:
    """Draw and write; a user error ends with its message and exit code 1."""
    given = parser().parse_args(argv)
    try:
        own = {"allow_packages": given.allow_packages, "config_dir": given.config_dir}
        run = load(given.run, device=given.device, **own)
        v = run.sample(given.n, seed=given.seed, mean=given.mean)
        files = write_samples(run, v, given.out or (run.folder or Path()) / "samples")
    except EblvmError as error:
        sys.exit(f"ERROR: {error}")
    print("\n".join(str(file) for file in files))


if __name__ == "__main__":
    main()
