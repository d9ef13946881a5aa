"""Tests of benchmarks.densities: log-likelihoods in the units of a file against direct computations, and its rows."""

import sys

import numpy as np
import pytest
from benchmarks.density_models import METHODS, Table
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from benchmarks import densities, density_models
from eblvm_lit.data.array_files import ArrayFile


@pytest.fixture
def toy(tmp_path):
    """Write a table of 120 rows: two real columns of different units, and a column of whole numbers with one value."""
    rng = np.random.default_rng(0)
    correlated = rng.normal(size=(120, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]]) * np.array([3.0, 0.01])
    path = tmp_path / "toy.npy"
    np.save(path, np.column_stack([correlated, np.zeros(120)]))
    return path


def in_units(path):
    """Return the splits in the units of the file, with the noise on the column of whole numbers, and their scales."""
    data = ArrayFile(path=str(path), split_seed=3, **density_models.SIZES, standardise=False)
    parts = [rows.double().numpy() for rows in data.load()]
    return parts, parts[0].std(0)


def test_log_likelihoods_are_in_the_units_of_the_file(toy, tmp_path, monkeypatch):
    table = Table.of_file(toy, 3)
    (train, _, test), scales = in_units(toy)
    # A ridge r on standardised columns is the ridge r s^2 on columns of standard deviation s.
    monkeypatch.setattr(density_models, "RIDGES", (0.1,))
    covariance = np.cov(train.T, bias=True) + 0.1 * np.diag(scales**2)
    expected = multivariate_normal(train.mean(0), covariance).logpdf(test).mean()
    assert METHODS["gaussian"](table, tmp_path, 3)["log_likelihood"] == pytest.approx(expected, rel=1e-4)
    # In whitened coordinates this density is the standard normal one.
    white = table.whitened()
    normal = white.mean(lambda z: multivariate_normal(np.zeros(3), np.eye(3)).logpdf(z), "test")
    assert normal == pytest.approx(expected, rel=1e-4)
    # A kernel of bandwidth b has the covariance b^2 diag(s^2), or b^2 times the one above if columns are whitened.
    monkeypatch.setattr(density_models, "BANDWIDTHS", (0.5,))
    row = METHODS["kernel_density"](table, tmp_path, 3)
    shape = {"standardised": np.diag(scales**2), "whitened": covariance}[row["chosen"]["coordinates"]]
    kernels = [multivariate_normal(centre, 0.25 * shape).logpdf(test) for centre in train]
    direct = (logsumexp(kernels, 0) - np.log(len(train))).mean()
    assert row["log_likelihood"] == pytest.approx(direct, rel=1e-4)


def test_a_mixture_is_chosen_by_the_validation_rows(toy, tmp_path, monkeypatch):
    table = Table.of_file(toy, 3)
    monkeypatch.setattr(density_models, "COMPONENTS", {"diag": (1, 2)})
    monkeypatch.setattr(density_models, "RIDGES", (1e-3, 0.1))
    mixture = METHODS["gaussian_mixture"](table, tmp_path, 3)
    single = METHODS["gaussian"](table, tmp_path, 3)
    assert mixture["val_log_likelihood"] >= single["val_log_likelihood"]


def test_the_list_names_the_rows_and_says_which_data_are_absent(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["densities", "--list", "--seeds", "0,1", "--methods", "gaussian,dual"])
    densities.main()
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("frey_face is left out")
    assert len(rows) == 3 * 2 * 2
    assert "('digits', 'dual', 1)" in rows


def test_the_table_has_the_mean_the_standard_error_and_the_difference_of_the_same_split():
    found = {"gaussian": (1.0, 4.0), "gaussian_mixture": (2.0, 6.0)}
    rows = [
        {"data": "wine", "method": method, "seed": seed, "log_likelihood": value, "seconds": 1.0}
        for method, values in found.items()
        for seed, value in enumerate(values)
    ]
    _, _, first, second = densities.table_of(rows).splitlines()
    assert first == "| wine | gaussian | 2.50 ± 1.50 | −1.50 ± 0.50 |  |  | 1 | 2 |"
    assert second.startswith("| wine | gaussian_mixture | 4.00 ± 2.00 | 0.00 ± 0.00 |")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spline_flow", "dual", "levels", "harmonium", "grbm"])
def test_a_trained_density_has_a_row(method, toy, tmp_path, monkeypatch):
    monkeypatch.setattr(density_models, "STEPS", dict.fromkeys(density_models.STEPS, 20))
    monkeypatch.setattr(density_models, "STEPS_OF_ROW", 0)
    row = METHODS[method](Table.of_file(toy, 3), tmp_path / method, 3)
    assert np.isfinite(row["log_likelihood"])
    assert row["chosen"]
