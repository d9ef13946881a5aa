"""Tests of the scikit-learn estimator: its densities, outliers and latents, and scikit-learn's own checks."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import eblvm_lit
from eblvm_lit import EBLVM

X = np.random.default_rng(0).normal((5, -3), (2, 0.1), size=(300, 2))
SHORT = {"n_latents": 2, "max_steps": 30, "random_state": 0}


@pytest.fixture(scope="module")
def fitted():
    """Return an estimator that was trained for about a second by the fastest method."""
    return EBLVM("dsm", n_latents=1, max_steps=1000, overrides=["method.compile=false"], random_state=0).fit(X)


def test_the_density_is_in_the_units_of_the_table(fitted):
    """Check that the density integrates to one over the plane, and that it is high at the rows of the table."""
    grid = np.stack(np.meshgrid(np.linspace(-15, 25, 300), np.linspace(-4.5, -1.5, 300), indexing="ij"), -1)
    cell = (40 / 299) * (3 / 299)
    assert np.exp(fitted.score_samples(grid.reshape(-1, 2))).sum() * cell == pytest.approx(1, abs=0.01)
    normal = -0.5 * (((X - (5, -3)) / (2, 0.1)) ** 2).sum(1) - np.log(2 * np.pi * 2 * 0.1)
    assert fitted.score(X) == pytest.approx(normal.mean(), abs=0.15)
    v = fitted.sample(1000)
    # The standard errors of the two means are 0.06 and 0.003. The tolerance is larger, because the model was trained
    # for only a second.
    np.testing.assert_allclose(v.mean(0), X.mean(0), atol=0.3)
    np.testing.assert_allclose(v.std(0), X.std(0), rtol=0.2)


def test_outliers_are_rows_of_low_density(fitted):
    assert fitted.predict([[5, -3], [5, -2], [40, -3]]).tolist() == [1, -1, -1]
    assert (fitted.predict(X) == -1).mean() == pytest.approx(0.1, abs=0.01)
    np.testing.assert_array_equal(fitted.decision_function(X), fitted.score_samples(X) - fitted.offset_)


def test_a_copy_from_a_pickle_says_the_same(fitted):
    same = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(same.score_samples(X), fitted.score_samples(X))
    np.testing.assert_array_equal(same.sample(3), fitted.sample(3))
    np.testing.assert_array_equal(same.transform(X), fitted.transform(X))


def test_it_prints_nothing_and_leaves_no_file_but_in_a_folder_that_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one = EBLVM(**SHORT).fit(X)
    assert [*tmp_path.iterdir()] == []
    two = clone(one).set_params(run_dir=tmp_path / "kept").fit(pd.DataFrame(X, columns=["x", "y"]))
    assert capsys.readouterr().out == ""
    np.testing.assert_array_equal(one.score_samples(X), two.run_.log_likelihood(X))
    np.testing.assert_array_equal(eblvm_lit.load(tmp_path / "kept").log_likelihood(X), one.score_samples(X))
    assert two.feature_names_in_.tolist() == ["x", "y"]
    assert two.get_feature_names_out().tolist() == ["eblvm0", "eblvm1"]


def test_pipelines_take_it():
    y = X[:, 0] > 5
    model = make_pipeline(StandardScaler(), EBLVM(**SHORT), LogisticRegression()).fit(X, y)
    assert model.predict(X).shape == (300,)


@pytest.mark.slow
def test_grid_searches_choose_by_the_likelihood():
    settings = {"method": "dsm", "max_steps": 500, "random_state": 0}
    x = np.concatenate([X, X + np.array([20, 0])])
    search = GridSearchCV(EBLVM(**settings), {"n_latents": [1, 4]}, cv=2).fit(x)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.score(x) == pytest.approx(search.score(x))


def test_a_model_without_log_z_ranks_rows_and_says_so():
    settings = {"method": "dsm", "model": "deep_toy", "max_steps": 5, "random_state": 0}
    x = np.random.default_rng(1).normal(size=(60, 4))
    with pytest.warns(UserWarning, match="score_samples is the log-density up to a constant"):
        model = EBLVM(**settings, overrides=["marginal_model.widths=[8]"]).fit(x)
    assert np.isnan(model.log_partition_)
    np.testing.assert_array_equal(model.score_samples(x), -model.run_.free_energy(x))
    assert (model.predict(x) == -1).sum() == 6
    with pytest.raises(ValueError, match="log Z of this model is not known"):
        model.score(x)


def test_a_model_of_every_noise_level_has_a_density():
    model = EBLVM(method="levels", model="harmonium", n_latents=2, max_steps=5, random_state=0).fit(X)
    assert np.isfinite(model.score_samples(X)).all()


def test_a_setting_that_cannot_be_used_is_a_value_error():
    with pytest.raises(ValueError, match=r"method has no option 'bidms'\. Did you mean method=bidsm\?"):
        EBLVM(method="bidms").fit(X)
    with pytest.raises(ValueError, match="contamination is a fraction"):
        EBLVM(contamination=0.7).fit(X)


@pytest.mark.slow
@parametrize_with_checks([EBLVM(n_latents=2, max_steps=20, random_state=0)])
def test_it_passes_the_checks_of_scikit_learn(estimator, check):
    assert check(estimator) is None
