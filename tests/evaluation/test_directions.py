"""Which way of a metric is better."""

import pytest

from eblvm_lit.evaluation.directions import direction
from eblvm_lit.evaluation.features.classifier import ClassifierFeatures
from eblvm_lit.evaluation.features.dinov2 import DINOv2Features
from eblvm_lit.evaluation.features.inception import InceptionFeatures
from eblvm_lit.evaluation.features.raw_values import RawValues

DIRECTIONS = {
    1: ("log_likelihood", "auroc_svhn", "probe_accuracy", "inception_score", "quadrature_log_likelihood"),
    -1: ("fisher", "fid", "rmse", "ksd", "fisher_divergence_error", "hypergradient_error", "posterior_kl"),
    0: ("log_z", "ais_effective_sample_size", "fisher_divergence_true", "log_z_standard_error", "learned_log_z_error"),
}
FEATURES = [InceptionFeatures, ClassifierFeatures, DINOv2Features, RawValues]


def test_directions():
    for way, names in DIRECTIONS.items():
        assert {direction(f"test/{name}") for name in names} == {way}
    assert [direction(name) for name in ("val/log_likelihood (last 3)", "train/iterations_per_second")] == [1, 1]


@pytest.mark.parametrize("kind", FEATURES)
def test_distances_of_samples_are_the_better_the_lower_and_their_spreads_have_no_direction(kind):
    titles = kind.titles
    found = {name: direction(f"test/{name}") for name in (titles.frechet, titles.kernel, f"{titles.kernel}_std")}
    assert found == {titles.frechet: -1, titles.kernel: -1, f"{titles.kernel}_std": 0}
    assert [direction(titles.of(name)) for name in ("mmd", "precision", "recall", "coverage")] == [-1, 1, 1, 1]
    if kind in (InceptionFeatures, ClassifierFeatures):
        score = titles.inception_score
        assert [direction(f"test/{name}") for name in (score, f"{score}_std")] == [1, 0]
