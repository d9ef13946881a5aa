"""Tests of the criteria that judge samples, against brute force, closed forms and other libraries."""

import math
from itertools import product

import pytest
import torch

from eblvm_lit.evaluation.criteria.class_shares import ClassShares
from eblvm_lit.evaluation.criteria.density_coverage import DensityCoverage
from eblvm_lit.evaluation.criteria.frechet_distance import FrechetDistance
from eblvm_lit.evaluation.criteria.inception_score import InceptionScore
from eblvm_lit.evaluation.criteria.kernel import KernelDistance
from eblvm_lit.evaluation.criteria.mean_discrepancy import MeanDiscrepancy
from eblvm_lit.evaluation.criteria.precision_recall import PrecisionRecall
from helpers.image_metrics import TITLES, normal, set_of


def prdc(x, y, k=3, k_density=5):
    """Compute precision, recall, density and coverage of samples x (M, D) and data y (N, D)."""
    criteria = PrecisionRecall(k=k), DensityCoverage(k=k_density)
    return {name: value for c in criteria for name, value in c.compute(set_of(x), set_of(y), TITLES).items()}


def prdc_by_definition(x, y, k=3, k_density=5):
    def radius(z, i, k):
        return sorted(float((z[i] - z[j]).norm()) for j in range(len(z)) if j != i)[k - 1]

    def inside(points, centres, k):
        radii = [radius(centres, j, k) for j in range(len(centres))]
        return [[float((p - c).norm()) <= r for c, r in zip(centres, radii, strict=True)] for p in points]

    in_data = inside(x, y, k)
    in_samples = inside(y, x, k)
    dense = inside(x, y, k_density)
    return {
        "precision": sum(map(any, in_data)) / len(x),
        "recall": sum(map(any, in_samples)) / len(y),
        "density": sum(map(sum, dense)) / (k_density * len(x)),
        "coverage": sum(map(any, zip(*dense, strict=True))) / len(y),
    }


@pytest.mark.parametrize(("dim", "offset"), [(1, 1000.0), (9, 0.0)])
def test_precision_recall_density_and_coverage_equal_their_definitions(dim, offset, monkeypatch):
    # There are fewer samples than data, with a smaller spread and another mean, so that precision and recall differ.
    x = 0.6 * normal(23, dim) + 0.7 + offset
    y = normal(31, dim, seed=1) + offset
    found = prdc(x, y)
    assert found == pytest.approx(prdc_by_definition(x, y), abs=1e-12)
    assert found["precision"] != found["recall"]
    # compute in small blocks of rows, so that there are several blocks
    monkeypatch.setattr("eblvm_lit.evaluation.criteria.neighbours.ELEMENTS", 150)
    assert prdc(x, y) == found


@pytest.mark.parametrize("kind", [PrecisionRecall, DensityCoverage, MeanDiscrepancy])
def test_samples_are_compared_with_the_first_examples_where_a_number_is_given(kind):
    x = set_of(normal(20, 3))
    y = normal(40, 3, seed=1) + 0.5
    assert kind(n_max=25).compute(x, set_of(y), TITLES) == kind().compute(x, set_of(y[:25]), TITLES)


@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_equal_sets_have_precision_recall_and_coverage_one(offset):
    x = normal(60, 40) + offset  # far from the origin, computed distances have rounding errors
    found = prdc(x, x.clone())
    assert (found["precision"], found["recall"], found["coverage"]) == (1, 1, 1)
    assert found["density"] == pytest.approx(6 / 5)  # each ball contains its k neighbours and its centre
    doubled = torch.cat([x, x, x, x])  # four copies of each point, so that the balls have radius zero
    assert prdc(doubled, doubled, k=2)["precision"] == 1


def mmd(x, y, bandwidth=1.3):
    return MeanDiscrepancy(bandwidth=bandwidth).compute(set_of(x), set_of(y), TITLES)["mmd"]


def kernel(x, y, b=1.3):
    return math.exp(-float((x - y).square().sum()) / (2 * b**2))


def test_the_discrepancy_is_what_it_is_defined_to_be():
    x = normal(7, 3)
    y = normal(5, 3, seed=1) + 0.5
    within = sum(
        sum(kernel(z[i], z[j]) for i, j in product(range(len(z)), repeat=2) if i != j) / (len(z) * (len(z) - 1))
        for z in (x, y)
    )
    across = sum(kernel(a, b) for a in x for b in y) / (len(x) * len(y))
    assert mmd(x, y) == pytest.approx(within - 2 * across, abs=1e-12)
    distances = torch.nn.functional.pdist(y)
    assert mmd(x, y, "median") == pytest.approx(mmd(x, y, float(distances.median())), abs=1e-12)


def cubic(x, y):
    return (x @ y / len(x) + 1) ** 3


def kid(x, y):
    return KernelDistance(n_subsets=1, subset_size=2).compute(set_of(x), set_of(y), TITLES)["kid"]


@pytest.mark.parametrize(("discrepancy", "k"), [(mmd, kernel), (kid, cubic)], ids=["mmd", "kid"])
def test_the_discrepancy_is_unbiased(discrepancy, k):
    # Take two distributions on two points. Compare the mean of the estimate over all sets of two points with the exact
    # discrepancy of the distributions.
    points = normal(2, 3)
    p = (0.3, 0.7)
    q = (0.8, 0.2)
    mean = 0.0
    for a, b, c, d in product(range(2), repeat=4):
        mean += p[a] * p[b] * q[c] * q[d] * discrepancy(points[[a, b]], points[[c, d]])
    gaps = [a - b for a, b in zip(p, q, strict=True)]
    expected = float(sum(gaps[i] * gaps[j] * k(points[i], points[j]) for i, j in product(range(2), repeat=2)))
    assert expected > 0.05
    assert mean == pytest.approx(expected, abs=1e-12)


def test_inception_score_is_one_for_uniform_and_the_number_of_classes_for_certain_predictions():
    undecided = torch.zeros(20, 5)
    sure = 100 * torch.eye(5).repeat(4, 1)
    for logits, expected in ((undecided, 1), (sure, 5), (sure[:1].expand(20, 5), 1)):
        found = InceptionScore(n_splits=1).compute(set_of(normal(20, 2), logits), None, TITLES)
        assert found == {"inception_score": pytest.approx(expected, abs=1e-9), "inception_score_std": 0}
    # Each of the two splits has two images. If their labels are equal, its score is 1, and otherwise 2.
    logits = torch.tensor([[100.0, 0], [100, 0], [0, 100], [0, 100]])
    seeds = [InceptionScore(n_splits=2, seed=i).compute(set_of(normal(4, 2), logits), None, TITLES) for i in range(9)]
    assert {round(x["inception_score"], 9) for x in seeds} == {1, 2}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_criteria_are_those_of_the_libraries():
    from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_features_to_statistics, fid_statistics_to_metric
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.inception import InceptionScore as TheirScore
    from torchmetrics.image.kid import KernelInceptionDistance

    x = (normal(30, 50, seed=0).relu() + 0.1).float()
    y = normal(30, 50, seed=1).relu().float()
    identity = torch.nn.Identity()
    identity.num_features = 50
    fid = FrechetInceptionDistance(feature=identity)
    kid = KernelInceptionDistance(identity, subsets=1, subset_size=30)
    for metric in (fid, kid):
        metric.update(x, real=False)
        metric.update(y, real=True)
    ours = FrechetDistance().compute(set_of(x), set_of(y), TITLES)["fid"]
    statistics = (fid_features_to_statistics(rows.double()) for rows in (x, y))
    assert ours > 1
    assert ours == pytest.approx(float(fid.compute()), abs=1e-3)
    assert ours == pytest.approx(fid_statistics_to_metric(*statistics, verbose=False)[KEY_METRIC_FID], abs=1e-3)
    ours = KernelDistance(n_subsets=1, subset_size=30).compute(set_of(x), set_of(y), TITLES)["kid"]
    assert ours == pytest.approx(float(kid.compute()[0]), abs=1e-5)
    score = TheirScore(identity, splits=1)
    score.update(x)
    ours = InceptionScore(n_splits=1).compute(set_of(x, x), None, TITLES)["inception_score"]
    assert ours == pytest.approx(float(score.compute()[0]), abs=1e-4)


def test_precision_and_recall_are_those_of_torch_fidelity_and_include_ties():
    from sklearn.datasets import load_digits
    from torch_fidelity.metric_prc import prc_features_to_metric

    def ours(x, y):
        return PrecisionRecall(k=3).compute(set_of(x), set_of(y), TITLES)

    x = normal(300, 50)
    y = 1.1 * normal(200, 50, seed=1)
    theirs = prc_features_to_metric(x, y, prc_neighborhood=3, verbose=False)
    assert ours(x, y) == pytest.approx({name: theirs[name] for name in ("precision", "recall")}, abs=1e-6)
    digits = torch.tensor(load_digits().data)[torch.randperm(1797, generator=torch.Generator().manual_seed(0))][:1600]
    x, y = digits.chunk(2)
    whole = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square().round()
    radii = torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist").square().round().kthvalue(4).values
    assert ours(x / 16, y / 16)["precision"] == float((whole <= radii).any(1).double().mean()) == 0.9025


def test_shares_of_classes_count_the_largest_logit_and_classes_without_a_sample():
    labels = torch.tensor([2] * 5 + [1] * 3 + [0, 0])
    logits = torch.ones(10, 4).scatter(1, labels[:, None], 3.0)
    found = ClassShares().compute(set_of(normal(10, 2), logits), set_of(normal(10, 2)), TITLES)
    assert found == pytest.approx({"rarest_class": 0, "commonest_class": 0.5})
    found = ClassShares().compute(set_of(normal(10, 2), logits[:, :3]), set_of(normal(10, 2)), TITLES)
    assert found == pytest.approx({"rarest_class": 0.2, "commonest_class": 0.5})
