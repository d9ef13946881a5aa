"""A benchmark of models of every noise level on points in the plane.

Run it with python -m benchmarks.noise_levels --seeds 0,1,2. Each row of its table is one training. It contains the mean
test log-likelihood by the model's own log Z, and the same by quadrature (for models with latents by annealed importance
sampling). It also contains the total variation distance between the modes' shares and their true weights, and the
seconds of training on one thread. Rows are appended to a file of JSON lines, and a row in the file is not measured
again.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

import eblvm_lit
from benchmarks.yardstick_samplers import UnequalModes
from benchmarks.yardstick_training import RUN
from eblvm_lit.core.tensors import by_rows, in_float64
from eblvm_lit.data.blobs import TwentyFiveGaussians
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.likelihood.hamiltonian_ais import HamiltonianAIS
from eblvm_lit.evaluation.likelihood.log_likelihood import LogLikelihood
from eblvm_lit.evaluation.likelihood.plane_quadrature import PlaneGrid
from eblvm_lit.evaluation.likelihood.visible_quadrature import VisibleQuadrature
from eblvm_lit.samplers.probability_flow import ProbabilityFlow

Row = dict[str, Any]
METHODS = ("dual", "levels", "bidual", "vages_dual")
SETS = ("unequal_gaussians", "checkerboard", "moons", "rings")
OUTPUT = Path("outputs/noise_levels")
WINDOW = ((-5.0, 5.0), (-5.0, 5.0))
# Both flows evaluate the gradient 60 times for each sample.
FLOWS = {
    "flow": ProbabilityFlow(n_steps=30),
    "corrected": ProbabilityFlow(n_steps=15, n_corrections=2),
}


class UnequalGaussians(TwentyFiveGaussians):
    """A data module of points from 25 Gaussians whose weights are proportional to 1, 2, ..., 25."""

    sample_name = "unequal_gaussians"

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw points v = mu_c + 0.05 eps, shape (n, 2), with each mode c in proportion to its weight."""
        truth = UnequalModes()
        which = torch.multinomial(truth.weights, n, replacement=True, generator=generator)
        return truth.centres[which] + truth.std * torch.randn(n, 2, generator=generator)

    def log_density(self, v: Tensor) -> Tensor:
        """Compute log p(v), shape (B,), for points v (B, 2)."""
        truth = UnequalModes()
        return -truth.free_energy(v).detach() - math.log(2 * math.pi * truth.std**2)


def data_of(name: str) -> tuple[str, ...]:
    """Return the overrides of the command line that choose a data set."""
    if name != "unequal_gaussians":
        return (f"data={name}",)
    target = f"{UnequalGaussians.__module__}.{UnequalGaussians.__qualname__}"
    moments = ("sizes.data_mean=[1.54,0.31]", "sizes.data_std=2.6")
    return ("data=twenty_five_gaussians", f"data._target_={target}", "allow_packages=[benchmarks]", *moments)


def masses_error(energy: MarginalEnergy) -> float:
    """Compute the total variation distance between the model's masses of the modes and their true weights.

    The mass of a mode is the sum of the model's density over the grid points that are nearest to the mode.
    """
    grid = PlaneGrid.around(WINDOW, 300, 1)
    truth = UnequalModes()
    minus_f = -by_rows(in_float64(energy).free_energy, 10_000, grid.points)
    nearest = torch.cdist(grid.points.float(), truth.centres).argmin(1)
    shares = torch.bincount(nearest, minus_f.softmax(0), minlength=25)
    return 0.5 * float((shares - truth.weights).abs().sum())


def measured(name: str, method: str, seed: int, steps: int, more: str = "") -> Row:
    """Train one model on one data set, and return its measurements.

    ``more`` contains further overrides of the command line, separated by spaces.
    """
    folder = OUTPUT / f"{name}_{method}_{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    # All methods train the same model without latents, or the one that ``more`` names.
    model = [] if "model=" in more else ["model=noise_conditional"]
    words = (f"method={method}", f"seed={seed}", f"trainer.max_steps={steps}", "method.compile=false")
    begin = time.process_time()
    run = eblvm_lit.train(
        [
            *RUN,
            *data_of(name),
            *words,
            *model,
            *more.split(),
            "optimizer.lr=2e-3",
            "data.batch_size=128",
            f"run_dir={folder}",
        ]
    )
    row: Row = {"data": name, "method": method, "seed": seed, "words": more, "seconds": time.process_time() - begin}
    metric = LogLikelihood(quadrature=VisibleQuadrature(tolerance=1e-3), hamiltonian_ais=HamiltonianAIS(n_betas=300))
    generator = torch.Generator().manual_seed(seed)
    try:
        row |= metric.evaluate(run.method, run.data, "test", generator)
    except ConfigError as error:  # the grid of the quadrature is too coarse for log Z
        row |= LogLikelihood().evaluate(run.method, run.data, "test", generator) | {"refused": str(error)}
    row["checked_log_likelihood"] = row["log_likelihood"] + row.get("own_log_z_error", math.nan)
    if name == "unequal_gaussians":
        for key, flow in FLOWS.items():
            row[f"modes_{key}"] = UnequalModes().error(run.sample(4000, seed=seed, sampler=flow))
        if isinstance(run.energy, MarginalEnergy):
            row["modes_density"] = masses_error(cast(MarginalEnergy, run.energy))
    return row


def rows_of(file: Path) -> list[Row]:
    """Read the rows of earlier measurements from a file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def table(rows: list[Row]) -> str:
    """Return a Markdown table of the medians over seeds, with the range if there are several seeds."""
    keys = ("log_likelihood", "checked_log_likelihood", "modes_flow", "modes_corrected", "modes_density", "seconds")
    lines = [f"| data | method | {' | '.join(keys)} | n |", "|---|---|" + "---:|" * (len(keys) + 1)]
    for name in dict.fromkeys(row["data"] for row in rows):
        for method in METHODS:
            found = [row for row in rows if (row["data"], row["method"]) == (name, method)]
            cells = []
            for key in keys:
                values = [row[key] for row in found if key in row]
                digits = ".0f" if key == "seconds" else ".3f"
                some = f" ({min(values):{digits}}–{max(values):{digits}})" if len(values) > 1 else ""
                cells.append(f"{median(values):{digits}}{some}".replace("-", "−") if values else "")
            if found:
                lines.append(f"| {name} | {method} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the rows that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0", help="seeds, separated by commas")
    parser.add_argument("--steps", type=int, default=3000, help="iterations of each training")
    parser.add_argument("--data", default=",".join(SETS), help="sets of points, separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="methods, separated by commas")
    parser.add_argument("--words", default="", help="more words of the command line, for all trainings")
    parser.add_argument("--list", action="store_true", help="only name the rows")
    given = parser.parse_args()
    wanted = [
        (name, method, int(seed))
        for seed in given.seeds.split(",")
        for name in given.data.split(",")
        for method in given.methods.split(",")
    ]
    if given.list:
        print(*wanted, sep="\n")
        return
    torch.set_num_threads(1)
    logging.getLogger("eblvm_lit").setLevel(logging.ERROR)
    file = OUTPUT / f"rows_{given.steps}.jsonl"
    OUTPUT.mkdir(parents=True, exist_ok=True)
    known = {(row["data"], row["method"], row["seed"]) for row in rows_of(file) if row["words"] == given.words}
    for name, method, seed in wanted:
        if (name, method, seed) not in known:
            row = measured(name, method, seed, given.steps, given.words)
            with file.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
    print(table([row for row in rows_of(file) if row["words"] == given.words]))


if __name__ == "__main__":
    from benchmarks import noise_levels  # the configuration refers to the module's classes by this name

    noise_levels.main()
