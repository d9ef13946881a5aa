"""The densities that benchmarks.densities compares, each fitted to a table and chosen on its validation rows.

A fit takes a table and returns the mean log-likelihood of its test rows, that of its validation rows and the choices.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.linalg import solve_triangular
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity

import eblvm_lit
from benchmarks.yardstick_training import N_VALIDATIONS, descend
from eblvm_lit.data.array_files import ArrayFile
from eblvm_lit.evaluation.likelihood.hamiltonian_ais import HamiltonianAIS
from eblvm_lit.evaluation.likelihood.own_log_partition import OwnLogPartition

SPLITS = ("train", "val", "test")
SIZES = {"val_size": 0.15, "test_size": 0.15}
RIDGES = (1e-6, 1e-3, 0.01, 0.03, 0.1, 0.3)  # what is added to the diagonal of the covariances
COMPONENTS = {"full": (2, 3, 5, 10), "tied": (2, 5, 10, 20), "diag": (5, 10, 20, 40, 80)}
BANDWIDTHS = np.geomspace(0.05, 2, 20)
LEVELS = (0.003, 0.01, 0.03, 0.1, 0.3)  # the noise levels of which the validation rows choose one, as variances
STEPS = {"spline_flow": 300, "dual": 800, "levels": 800, "grbm": 800}  # the smallest number of iterations
STEPS_OF_ROW = 3  # iterations of energies F(v, t) for each training row, if there are more of them
WORDS = (
    *("data.standardise=false", "method.compile=false", "callbacks.figures=null", "callbacks.progress=null"),
    *("summary=false", "threads=1", "trainer.accelerator=cpu", "trainer.precision=32-true"),
)
OF_MODEL = {"noise_conditional": ("marginal_model.energy.head=squared_norm",), "harmonium": ()}
METRICS = "callbacks.evaluation.metrics"
# The metrics of the data set's defaults are left out, except for the log-likelihood, which chooses the checkpoint.
ONLY_LIKELIHOOD = (
    *(f"{METRICS}.{name}=null" for name in ("fisher", "fisher_divergence", "posterior", "held_out")),
    "callbacks.evaluation.at_validation=[log_likelihood]",
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of a table in coordinates of unit scale, float64, and the log-volume of these coordinates' unit cube."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    log_unit: float

    @classmethod
    def of_file(cls, path: Path, seed: int) -> Table:
        """Read a file, and split, dequantise and standardise its columns, as data=array does."""
        data = ArrayFile(path=str(path), split_seed=seed, **SIZES, standardise=False)
        train = data.load().train.double()
        # Known moments let data=array accept columns that are constant before noise is added.
        moments = {"mean": train.mean(0).tolist(), "std": train.std(0, correction=0).tolist()}
        data = ArrayFile(path=str(path), split_seed=seed, **SIZES, **moments)
        parts = dict(zip(SPLITS, (rows.double().numpy() for rows in data.load()), strict=True))
        return cls(**parts, log_unit=data.log_unit_of_v)

    def whitened(self) -> Table:
        """Return the coordinates in which the normal distribution that :func:`gaussian` chooses is standard normal."""
        model, _ = max(mixtures(self, {"full": (1,)}), key=lambda pair: pair[1].val)
        factor = np.linalg.cholesky(model.covariances_[0])

        def white(rows: np.ndarray) -> np.ndarray:
            return solve_triangular(factor, (rows - model.means_[0]).T, lower=True).T

        parts = {name: white(getattr(self, name)) for name in SPLITS}
        return Table(**parts, log_unit=self.log_unit + float(np.log(np.diag(factor)).sum()))

    def mean(self, log_density: Callable[[np.ndarray], np.ndarray], split: str) -> float:
        """Compute the mean of a log-density of these coordinates over a split, in the units of the file."""
        return float(np.mean(log_density(getattr(self, split)))) - self.log_unit

    def files(self, folder: Path) -> tuple[str, ...]:
        """Write the splits to files, and return the words of the command line that read them."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in SPLITS:
            np.save(folder / f"{name}.npy", getattr(self, name).astype(np.float32))
        return ("data=array", *(f"data.{name}={folder / name}.npy" for name in SPLITS))


class Candidate(NamedTuple):
    """A fitted density with its validation log-likelihood, its coordinates and its settings."""

    val: float
    log_density: Callable[[np.ndarray], np.ndarray]
    table: Table
    settings: dict[str, Any]


def chosen(candidates: Iterable[Candidate]) -> dict[str, Any]:
    """Return the test log-likelihood of the candidate with the best validation log-likelihood, and its settings."""
    best = max(candidates, key=lambda candidate: candidate.val)
    test = best.table.mean(best.log_density, "test")
    return {"log_likelihood": test, "val_log_likelihood": best.val, "chosen": best.settings}


def mixtures(table: Table, components: dict[str, tuple[int, ...]]) -> Iterator[tuple[GaussianMixture, Candidate]]:
    """Fit a mixture of Gaussians for each type of covariance, number of components and ridge."""
    grid = [(kind, k, ridge) for kind, ks in components.items() for k in ks for ridge in RIDGES]
    for kind, k, ridge in grid:
        model = GaussianMixture(k, covariance_type=kind, reg_covar=ridge, max_iter=50, random_state=0)
        model.fit(table.train)
        settings = {"covariance": kind, "components": k, "ridge": ridge}
        yield model, Candidate(table.mean(model.score_samples, "val"), model.score_samples, table, settings)


def gaussian(table: Table, *_: Any) -> dict[str, Any]:
    """Fit one normal distribution, whose ridge the validation rows choose."""
    return chosen(found for _, found in mixtures(table, {"full": (1,)}))


def gaussian_mixture(table: Table, *_: Any) -> dict[str, Any]:
    """Fit a mixture of Gaussians, or one normal distribution if that is better."""
    large = table.train.shape[1] > 100  # several full covariance matrices take minutes to fit
    components = {"full": (1,), "diag": COMPONENTS["diag"]} if large else {**COMPONENTS, "full": (1, 2, 3, 5, 10)}
    return chosen(found for _, found in mixtures(table, components))


def kernel_density(part: Table, *_: Any) -> dict[str, Any]:
    """Fit a kernel density in one system of coordinates, whose bandwidth the validation rows choose."""

    def candidates() -> Iterator[Candidate]:
        for bandwidth in BANDWIDTHS:
            log_density = KernelDensity(bandwidth=bandwidth).fit(part.train).score_samples
            settings = {"bandwidth": round(float(bandwidth), 3)}
            yield Candidate(part.mean(log_density, "val"), log_density, part, settings)

    return chosen(candidates())


def spline_flow(part: Table, _: Path, seed: int) -> dict[str, Any]:
    """Fit a neural spline flow (Durkan et al. 2019), with the parameters of the best validation."""
    from zuko.flows import NSF  # installed by the extra "yardsticks", which the other rows do not need

    torch.manual_seed(seed)
    flow = NSF(part.train.shape[1], transforms=3, bins=8, hidden_features=(64, 64))
    best = [(-math.inf, 0, copy.deepcopy(flow.state_dict()))]
    n = STEPS["spline_flow"]

    @torch.no_grad()
    def log_density(rows: np.ndarray) -> np.ndarray:
        return flow().log_prob(torch.as_tensor(rows, dtype=torch.float32)).double().numpy()

    def validate(i: int) -> None:
        if i % max(1, n // N_VALIDATIONS) == 0 and (value := part.mean(log_density, "val")) > best[0][0]:
            best[0] = value, i, copy.deepcopy(flow.state_dict())

    rows = torch.as_tensor(part.train, dtype=torch.float32)
    descend(lambda v: -flow().log_prob(v).mean(), flow, rows, n, min(128, len(rows)), validate)
    value, iteration, state = best[0]
    flow.load_state_dict(state)
    return chosen([Candidate(value, log_density, part, {"iteration": iteration})])


def every_level(method: str, model: str, part: Table, folder: Path, seed: int) -> dict[str, Any]:
    """Train an energy of every noise level on a table, in the coordinates of the table.

    The model is the noise-conditional energy F(v, t), or the harmonium E(v, h, t) with the latents of its defaults
    summed out. The validation rows choose the checkpoint and the noise level.

    The log-likelihoods are with log Z by annealed importance sampling at the chosen level, and ``own_log_likelihood``
    with the own log Z of the model, by which the checkpoint and the level are chosen.
    """
    shutil.rmtree(folder, ignore_errors=True)
    words = (f"method={method}", f"model={model}", f"noise_range.smallest={min(LEVELS)}", f"seed={seed}")
    words += ("model.energy.network.n_frequencies=0", "n_validations=5", *OF_MODEL[model])
    n = 5 * (max(STEPS[method], STEPS_OF_ROW * len(part.train)) // 5)  # five validations divide it
    words += (f"trainer.max_steps={n}", "callbacks.checkpoints.keep=null", "callbacks.evaluation=null")
    eblvm_lit.train([*part.files(folder / "data"), *WORDS, *words, f"run_dir={folder / 'run'}"])
    generator = torch.Generator().manual_seed(seed)
    own = OwnLogPartition(n_samples=1000)
    found = []
    for file in sorted((folder / "run" / "checkpoints").glob("iteration_*.ckpt")):
        run = eblvm_lit.load(file)
        every: Any = cast(Any, run.energy).every_level
        log_z = own.estimate(every.of_data(), None, generator).log_z
        for level in LEVELS:
            log_density = partial(at_one_level, every.at_level(level), log_z)
            settings = {"iteration": run.iteration, "level": level}
            found.append(Candidate(part.mean(log_density, "val"), log_density, part, settings))
    best = max(found, key=lambda candidate: candidate.val)
    row = chosen([best])
    energy, log_z = cast(partial[np.ndarray], best.log_density).args
    v = torch.as_tensor(part.train, dtype=torch.float32)
    checked = HamiltonianAIS(n_chains=100, n_betas=300).estimate(energy, v, generator)
    error = log_z - checked.log_z
    of_own = {"own_log_likelihood": row["log_likelihood"], "own_log_z_error": error, "ess": checked.ess}
    return row | of_own | {name: row[name] + error for name in ("log_likelihood", "val_log_likelihood")}


def at_one_level(energy: Any, log_z: float, rows: np.ndarray) -> np.ndarray:
    """Compute the log-density of rows at one noise level, with a given log Z."""
    return -OwnLogPartition().free_energy(energy, None, torch.as_tensor(rows), torch.Generator()).numpy() - log_z


def in_both(fit: Callable[..., dict[str, Any]], table: Table, folder: Path, seed: int) -> dict[str, Any]:
    """Fit in standardised and in whitened coordinates, and return the row that is better on the validation rows."""
    rows = []
    for name, part in (("standardised", table), ("whitened", table.whitened())):
        row = fit(part, folder / name, seed)
        rows.append(row | {"chosen": {"coordinates": name, **row["chosen"]}})
    return max(rows, key=lambda row: row["val_log_likelihood"])


def grbm(part: Table, folder: Path, seed: int) -> dict[str, Any]:
    """Train a GRBM by PCD in one system of coordinates, with log Z by annealing and the best checkpoint."""
    shutil.rmtree(folder, ignore_errors=True)
    words = ("method=pcd", f"seed={seed}", f"trainer.max_steps={STEPS['grbm']}", f"run_dir={folder / 'run'}")
    words += (
        "n_validations=5",
        "test_checkpoint=best",
        "callbacks.checkpoints.monitor=val/log_likelihood",
        *ONLY_LIKELIHOOD,
    )
    words += (f"{METRICS}.log_likelihood.n_chains=200", f"{METRICS}.log_likelihood.n_betas=500")
    run = eblvm_lit.train([*part.files(folder / "data"), *WORDS, *words])
    val, test = (run.metrics[f"{name}/log_likelihood"] - part.log_unit for name in ("val", "test"))
    row = {"log_likelihood": test, "val_log_likelihood": val, "chosen": {"iteration": run.iteration}}
    return row | {"ess": run.metrics["test/ais_effective_sample_size"]}


METHODS: dict[str, Callable[[Table, Path, int], dict[str, Any]]] = {
    "gaussian": gaussian,
    "gaussian_mixture": gaussian_mixture,
    "kernel_density": partial(in_both, kernel_density),
    "spline_flow": partial(in_both, spline_flow),
    "dual": partial(in_both, partial(every_level, "dual", "noise_conditional")),
    "levels": partial(in_both, partial(every_level, "levels", "noise_conditional")),
    "harmonium": partial(in_both, partial(every_level, "levels", "harmonium")),
    "grbm": partial(in_both, grbm),
}
