"""Tests of distances between samples and data: closed forms, several processes, and sets that are refused."""

import copy

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import eblvm_lit as eb
from eblvm_lit.core.ranks import first_rank_first
from eblvm_lit.draws.choice import FittingSampler
from eblvm_lit.draws.points import PointSamples
from eblvm_lit.evaluation.criteria.density_coverage import DensityCoverage
from eblvm_lit.evaluation.criteria.frechet_distance import FrechetDistance
from eblvm_lit.evaluation.criteria.kernel import KernelDistance
from eblvm_lit.evaluation.criteria.mean_discrepancy import MeanDiscrepancy
from eblvm_lit.evaluation.criteria.precision_recall import PrecisionRecall
from eblvm_lit.evaluation.features.inception import InceptionFeatures
from eblvm_lit.evaluation.features.raw_values import RawValues
from eblvm_lit.evaluation.features.reference import ReferenceImages
from eblvm_lit.evaluation.frechet import Gaussian, Moments, frechet_distance
from eblvm_lit.evaluation.sample_quality import SampleQuality
from helpers.fake_images import RandomFeatures, textures
from helpers.image_metrics import moments_of, normal, quality
from helpers.models import random_gaussian_model
from helpers.shell import train
from helpers.stand_in import StandIn, loaded


def values(metric, split="test", data=None, energy=None):
    return metric.evaluate(StandIn(energy=energy), data or textures(), split, torch.Generator())


def test_distance_of_any_two_normal_distributions_by_the_root_of_a_matrix():
    p, q = (moments_of(normal(40, 7, seed=i) * (i + 1)) for i in (0, 1))
    root = scipy.linalg.sqrtm((p.covariance @ q.covariance).numpy())
    expected = (p.mean - q.mean).square().sum() + (p.covariance + q.covariance).trace() - 2 * np.trace(root).real
    assert frechet_distance(p, q) == pytest.approx(float(expected), abs=1e-9)
    assert frechet_distance(p, q) == pytest.approx(frechet_distance(q, p), abs=1e-12)


@pytest.mark.parametrize("n", [20, 500], ids=["fewer images than dimensions", "full rank"])
def test_distance_of_a_set_from_itself_is_zero(n):
    truth = moments_of(3 + 10 * normal(n, 60))
    assert frechet_distance(truth, truth) < 1e-6
    assert frechet_distance(truth, Gaussian(truth.mean + 1, truth.covariance)) == pytest.approx(60, abs=1e-6)


def test_moments_are_those_of_the_whole_in_whatever_batches():
    rows = 100 + normal(23, 4)
    parts = Moments(4)
    for part in rows.split(5):
        parts.update(part)
    truth = parts.gaussian()
    np.testing.assert_allclose(truth.mean, rows.mean(0), rtol=1e-14)
    np.testing.assert_allclose(truth.covariance, np.cov(rows, rowvar=False), atol=1e-10)


def test_a_sample_passes_once_for_all_criteria_and_data_once_for_all_calls(tmp_path):
    features = RandomFeatures()
    metric = quality(tmp_path, features)
    metric.prepare(StandIn(), textures())
    assert features.n_seen == 50  # the training images are passed through the network before the first iteration
    values(metric)
    assert features.n_seen == 50 + 37
    values(metric, "val")
    assert features.n_seen == 50 + 37 + 20


def one_of_two(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    features = RandomFeatures()
    mark = folder / "mark"
    # The first call computes the features of the data, and the second call reads them from a file.
    twice = [values(quality(folder, features)) for _ in range(2)]
    marked = first_rank_first(lambda: mark.exists() or mark.touch())
    torch.save({"values": twice, "n_seen": features.n_seen, "marked": marked}, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")
def test_two_processes_compute_the_same_distances_as_one(tmp_path):
    one = values(quality(tmp_path / "one"))
    mp.start_processes(one_of_two, (tmp_path,), nprocs=2, start_method="fork")
    both = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    for rank, left in enumerate(both):
        for found in left["values"]:
            assert found == pytest.approx(one, rel=1e-12)
        # Each process gets every second batch of 7 images: of the 50 training images once, and of the 37 samples at
        # both calls.
        assert left["n_seen"] == (28 + 2 * 21, 22 + 2 * 16)[rank]
    assert [left["marked"] for left in both] == [None, True]  # the second process found the file of the first


@pytest.mark.parametrize(
    "criterion", [KernelDistance(subset_size=21), PrecisionRecall(k=20), PrecisionRecall(k=20, n_max=20)]
)
def test_too_few_samples_are_refused_before_the_first_iteration(criterion, tmp_path):
    with pytest.raises(eb.ConfigError, match="needs 21 samples"):
        quality(tmp_path, criteria={"x": criterion}).prepare(StandIn(), textures())


def test_data_without_images_give_no_numbers_and_need_no_weights(offline, tmp_path):
    data = loaded(eb.Checkerboard())
    metric = quality(tmp_path, InceptionFeatures(cache_dir=str(tmp_path)))
    assert not metric.applies(StandIn(), data)


def test_missing_weights_stop_a_run_before_its_first_iteration(offline, tmp_path):
    node = "callbacks.evaluation.metrics.fid.images"
    images = [f"~{node}", f"+{node}={{_target_: helpers.fake_images.Noise, seed: 3}}", "allow_packages=[helpers]"]
    chosen = ["evaluation@callbacks.evaluation.metrics=fid", *images, f"cache_dir={tmp_path}/cache"]
    with pytest.raises(eb.DataError, match="FID"):
        train(tmp_path / "run", "method=bidsm", *chosen)
    assert not (tmp_path / "run" / "checkpoints").exists()


def fitting(n_steps, step_size=1e-3):
    return FittingSampler(dynamics=eb.AnnealedLangevin(), n_steps=n_steps, step_size=step_size)


def test_samples_of_a_model_of_points_are_compared_by_their_values(tmp_path):
    right = random_gaussian_model(2, 2).float()
    board = eb.Checkerboard()
    board.setup()
    x = right.sample_exact(2000, torch.Generator().manual_seed(1))
    board.splits = board.splits._replace(test=x[:1000], train=x[1000:])
    wrong = copy.deepcopy(right)
    wrong.b.data.add_(3)
    parts = PrecisionRecall(), DensityCoverage(), MeanDiscrepancy(), FrechetDistance()
    metric = SampleQuality(
        images=PointSamples(sampler=fitting(60, 0.1)),
        features=RawValues(batch_size=100),
        reference=ReferenceImages(cache_dir=str(tmp_path), split="test", n_max=1000),
        criteria={type(part).__name__: part for part in parts},
        n_samples=1000,
        n_samples_at_validation=1000,
    )
    close, far = (values(metric, data=board, energy=model) for model in (right, wrong))
    assert set(close) == {f"{name}_raw" for name in ("precision", "recall", "density", "coverage", "mmd", "fd")}
    assert close["coverage_raw"] > 0.9 > 0.5 > far["coverage_raw"]
    assert abs(close["mmd_raw"]) < 0.01 < far["mmd_raw"]
    assert close["fd_raw"] < 0.1


def test_points_are_drawn_by_what_fits_the_model():
    board = eb.Checkerboard()
    source = PointSamples(sampler=fitting(3))
    grbm = StandIn(energy=eb.GRBM(v_dim=2, h_dim=3))
    board.setup()
    assert source.supports(grbm, board)
    assert not source.supports(grbm, textures())
    assert not source.supports(StandIn(), board)
    once, again = (source.images(grbm, board, 5) for _ in range(2))
    assert torch.equal(once, again)  # all processes must compare the same points
    deep = StandIn(energy=eb.MLPEnergy(v_dim=2, widths=[4], base_std=1.0))
    langevin = PointSamples(sampler=fitting(200, 0.05)).images(deep, board, 500)
    assert float(langevin.std()) > 0.5  # the chains have left the unit square in which they started
