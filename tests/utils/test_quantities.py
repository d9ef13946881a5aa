"""Tests of the directions and units of metrics, which the classes that compute the metrics declare."""

import json

import pytest

from eblvm_lit.evaluation.features.classifier import ClassifierFeatures
from eblvm_lit.evaluation.features.dinov2 import DINOv2Features
from eblvm_lit.evaluation.features.inception import InceptionFeatures
from eblvm_lit.evaluation.features.raw_values import RawValues
from eblvm_lit.reports.runs import declare_all
from eblvm_lit.utils import quantities
from eblvm_lit.utils.quantities import UNKNOWN, Declares, Quantity, direction, learn, quantity

declare_all()
DIRECTIONS = {
    1: ("log_likelihood", "auroc_svhn", "probe_accuracy", "inception_score", "quadrature_log_likelihood", "modes"),
    -1: ("fisher", "fid", "rmse", "ksd", "fisher_divergence_relative_error", "hypergradient_error", "posterior_kl"),
    0: ("log_z", "ais_effective_sample_size", "fisher_divergence_true", "log_z_standard_error", "learned_log_z_error"),
}
# Numbers without a direction: baselines, which are equal for all methods, and points of curves.
NEITHER = ("probe_accuracy_pixels", "probe_accuracy_pixels_reduced", "score_bias_kl_t3", "hypergradient_bias_k5_n10")
FEATURES = [InceptionFeatures, ClassifierFeatures, DINOv2Features, RawValues]


def test_numbers_have_their_declared_directions():
    for way, names in DIRECTIONS.items():
        assert {direction(f"test/{name}") for name in names} == {way}
    assert [direction(name) for name in ("val/log_likelihood (last 3)", "train/iterations_per_second")] == [1, 1]
    assert [direction(name) for name in ("test_best_ema/fid", "val/loss", "train/upper_loss")] == [-1, -1, -1]
    # A wrong log Z makes the learned log-likelihood too high, so that it has no direction, either.
    for name in (*NEITHER, "learned_log_likelihood", "train/lower_lr", "train/model_grad_norm"):
        assert direction(name) == 0
        assert quantity(name) is not UNKNOWN


def test_units_are_declared_with_the_directions():
    units = {"test/posterior_kl": "nats", "test/kl": "nats", "train/iterations_per_second": "iterations/s"}
    units |= {"test/log_z": "nats", "test/ais_effective_sample_size": "", "test/auroc_z": "", "test/rmse": ""}
    assert {name: quantity(name).unit for name in units} == units


@pytest.mark.parametrize("kind", FEATURES)
def test_distances_of_samples_are_the_better_the_lower_and_their_spreads_have_no_direction(kind):
    titles = kind.titles
    found = {name: direction(f"test/{name}") for name in (titles.frechet, titles.kernel, f"{titles.kernel}_std")}
    assert found == {titles.frechet: -1, titles.kernel: -1, f"{titles.kernel}_std": 0}
    criteria = {"mmd": -1, "precision": 1, "recall": 1, "coverage": 1, "density": 1}
    assert {name: direction(titles.of(name)) for name in criteria} == criteria
    if kind in (InceptionFeatures, ClassifierFeatures):
        score = titles.inception_score
        assert [direction(f"test/{name}") for name in (score, f"{score}_std")] == [1, 0]


@pytest.mark.parametrize(
    "name", ["accuracy", "my_loss_of_weight", "error", "own_loss", "fd_steps", "fidelity", "nll", "coverage_b"]
)
def test_the_words_in_a_metric_s_name_do_not_determine_its_direction(name):
    assert quantity(f"test/{name}") is UNKNOWN


def test_a_user_s_class_declares_its_numbers_and_a_report_reads_them_from_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(quantities, "KNOWN", dict(quantities.KNOWN))
    monkeypatch.setattr(quantities, "STORED", {})
    assert not learn(tmp_path)

    class Mine(Declares, emits={"mine": Quantity(-1, "K")}):
        pass

    assert quantity("val/mine")[:2] == (-1, "K")
    stored = {"test/mine": quantity("test/mine")[:2], "test/fisher": [1, ""], "test/else{[*": [1, "s"]}
    (tmp_path / "quantities.json").write_text(json.dumps(stored))
    monkeypatch.setattr(quantities, "KNOWN", {"fisher": Quantity(-1)})
    assert learn(tmp_path)
    found = [quantity(name)[:2] for name in ("val/mine", "val/else{[*", "val/fisher")]
    assert found == [(-1, "K"), (1, "s"), (-1, "")]
    for way in ("7", "-2", "null", '"up"'):
        (tmp_path / "quantities.json").write_text(f'{{"test/mine": [{way}, ""]}}')
        with pytest.raises(ValueError, match="not in tuple"):
            learn(tmp_path)
