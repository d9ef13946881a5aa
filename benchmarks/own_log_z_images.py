"""A benchmark of the own log Z of image models of every noise level, against annealed importance sampling (AIS).

Run it with python -m benchmarks.own_log_z_images. For each data set and method it trains one model, and estimates log Z
at the smallest noise level by AIS in both directions. Chains from a normal distribution to the model give an estimate
that is too small on average. Chains from samples of the model to the normal distribution give an estimate that would be
too large on average if the samples were exact; they are drawn by the probability flow with corrections.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.io import loadmat
from sklearn.datasets import load_digits

import eblvm_lit
from eblvm_lit.evaluation.likelihood.hamiltonian_ais import HamiltonianAIS
from eblvm_lit.evaluation.likelihood.log_likelihood import LogLikelihood
from eblvm_lit.evaluation.likelihood.own_log_partition import OwnLogPartition
from eblvm_lit.samplers.probability_flow import ProbabilityFlow

OUTPUT = Path("outputs/own_log_z_images")
RUN = ("model=noise_conditional_mixer", "callbacks.evaluation=null", "callbacks.figures=null", "n_validations=1")
SETTINGS = (
    *("model.energy.network.width=64", "model.energy.network.dense_width=256", "optimizer.lr=1e-3"),
    *("trainer.max_steps=5000", "noise_range.smallest=1e-2", "threads=1"),
)
FLOW = ProbabilityFlow(n_steps=30, n_corrections=5)
KEPT = ("log_likelihood", "log_likelihood_error_over_examples", "bits_per_dimension")


def images_of(name: str) -> np.ndarray:
    """Return the images of a data set as bytes, shape (n, height, width)."""
    if name == "digits":
        return (load_digits().images * (255 / 16)).round().astype(np.uint8)
    faces = loadmat(os.path.join(os.environ.get("EBLVM_DATA", "data"), "frey_rawface.mat"))["ff"]
    return faces.T.reshape(-1, 28, 20)


def measured(name: str, method: str, ais: HamiltonianAIS, more: tuple[str, ...]) -> dict[str, Any]:
    """Train one model, and estimate its log Z in three ways."""
    folder = OUTPUT / f"{name}_{method}"
    shutil.rmtree(folder, ignore_errors=True)
    path = OUTPUT / f"{name}.npy"
    np.save(path, images_of(name))
    begin = time.process_time()
    words = ["data=array", f"data.path={path}", f"method={method}", *RUN, *SETTINGS, *more, f"run_dir={folder}"]
    run = eblvm_lit.train(words)
    row: dict[str, Any] = {"data": name, "method": method, "seconds": time.process_time() - begin}
    generator = torch.Generator().manual_seed(0)
    energy = cast(Any, run.energy)
    own = OwnLogPartition().estimate(energy, run.method.parts.posterior, generator)
    row |= {"own": own.log_z, "own_standard_error": own.standard_error}
    found = LogLikelihood().evaluate(run.method, run.data, "test", generator)
    row |= {key: found[key] for key in KEPT if key in found}
    energy.sample_exact = lambda n, _: run.sample(n, seed=1, sampler=FLOW)
    for bound, side in zip(("lower", "upper"), ais.sandwich(energy, run.examples("train"), generator), strict=True):
        row |= {bound: side.log_z, f"{bound}_standard_error": side.standard_error, f"{bound}_ess": side.ess}
    return row


def main() -> None:
    """Measure the rows and print each as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits,frey_face", help="data sets, separated by commas")
    parser.add_argument("--methods", default="dual,levels", help="methods, separated by commas")
    parser.add_argument("--words", default="", help="more words of the command line, for all trainings")
    parser.add_argument("--n-betas", type=int, default=400, help="number of temperatures of AIS")
    parser.add_argument("--n-chains", type=int, default=100, help="number of chains of AIS")
    parser.add_argument("--list", action="store_true", help="only name the rows")
    given = parser.parse_args()
    wanted = [(name, method) for name in given.data.split(",") for method in given.methods.split(",")]
    if given.list:
        print(*wanted, sep="\n")
        return
    torch.set_num_threads(1)
    logging.getLogger("eblvm_lit").setLevel(logging.ERROR)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    ais = HamiltonianAIS(n_chains=given.n_chains, n_betas=given.n_betas)
    for name, method in wanted:
        print(json.dumps(measured(name, method, ais, tuple(given.words.split()))), flush=True)


if __name__ == "__main__":
    main()
