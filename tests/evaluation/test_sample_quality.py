"""Distances of samples from data: closed forms, the libraries' values, caches, processes, and what is refused."""

from itertools import product
from pickle import UnpicklingError

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

from eblvm_lit.core.ranks import first_rank_first
from eblvm_lit.data.base import Splits
from eblvm_lit.data.digits import Digits
from eblvm_lit.data.frey_face import FreyFace
from eblvm_lit.data.toy import Checkerboard
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.evaluation.criteria.density_coverage import DensityCoverage
from eblvm_lit.evaluation.criteria.frechet_distance import FrechetDistance
from eblvm_lit.evaluation.criteria.inception_score import InceptionScore
from eblvm_lit.evaluation.criteria.kernel import KernelDistance
from eblvm_lit.evaluation.criteria.precision_recall import PrecisionRecall
from eblvm_lit.evaluation.features.classifier import ClassifierFeatures
from eblvm_lit.evaluation.features.image_bytes import as_images
from eblvm_lit.evaluation.features.inception import SHA256, InceptionFeatures
from eblvm_lit.evaluation.features.reference import ReferenceImages
from eblvm_lit.evaluation.frechet import Gaussian, Moments, frechet_distance
from helpers.fake_images import HeldOut, Noise, RandomFeatures, random_inception, textures
from helpers.image_files import write_frey
from helpers.image_metrics import TITLES, moments_of, normal, pictures, quality, set_of
from helpers.pickled import Pickled
from helpers.shell import CONF, evaluate, train
from helpers.stand_in import StandIn

FILE_NAME = URL_INCEPTION_V3.rsplit("/", 1)[1]


def values(metric, split="test", data=None):
    return metric.evaluate(StandIn(), data or textures(), split, torch.Generator())


# --- the distance -----------------------------------------------------------------------------------------


def test_distance_of_independent_coordinates_is_that_of_their_means_and_deviations():
    a, b = torch.tensor([1.0, 4.0, 0.0]).double(), torch.tensor([9.0, 0.25, 4.0]).double()
    p, q = Gaussian(normal(3), a.diag()), Gaussian(normal(3, seed=1), b.diag())
    expected = (p.mean - q.mean).square().sum() + (a.sqrt() - b.sqrt()).square().sum()
    assert frechet_distance(p, q) == pytest.approx(float(expected), abs=1e-12)


def test_distance_of_any_two_normal_distributions_of_the_plane():
    p, q = (moments_of(normal(9, 2, seed=i)) for i in (0, 1))
    product_ = p.covariance @ q.covariance
    root_trace = (product_.trace() + 2 * product_.det().sqrt()).sqrt()  # by Cayley and Hamilton
    expected = (p.mean - q.mean).square().sum() + (p.covariance + q.covariance).trace() - 2 * root_trace
    assert frechet_distance(p, q) == pytest.approx(float(expected), abs=1e-12)


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


def test_dimensions_that_nothing_varies_in_do_not_count():
    x, y = normal(30, 5), 2 * normal(30, 5, seed=1) + 1
    plane = torch.linalg.qr(normal(80, 5, seed=2)).Q  # an isometry into 80 dimensions
    low = frechet_distance(moments_of(x), moments_of(y))
    high = frechet_distance(moments_of(x @ plane.T), moments_of(y @ plane.T))
    assert low > 1
    assert high == pytest.approx(low, abs=1e-6)


def test_moments_are_those_of_the_whole_in_whatever_batches():
    rows = 100 + normal(23, 4)
    parts = Moments(4)
    for part in rows.split(5):
        parts.update(part)
    truth = parts.gaussian()
    np.testing.assert_allclose(truth.mean, rows.mean(0), rtol=1e-14)
    np.testing.assert_allclose(truth.covariance, np.cov(rows, rowvar=False), atol=1e-10)


# --- the other criteria -----------------------------------------------------------------------------------


def kernel(x, y):
    return (x @ y / len(x) + 1) ** 3


def by_definition(x, y):
    n = len(x)
    within = sum(kernel(z[i], z[j]) for z in (x, y) for i in range(n) for j in range(n) if i != j)
    return float(within / (n * (n - 1)) - 2 * sum(kernel(a, b) for a in x for b in y) / n**2)


def test_kid_is_what_it_is_defined_to_be():
    x, y = normal(6, 3), normal(6, 3, seed=1) + 0.5
    found = KernelDistance(n_subsets=2, subset_size=6).compute(set_of(x), set_of(y), TITLES)
    assert found["kid"] == pytest.approx(by_definition(x, y), abs=1e-12)
    assert found["kid_std"] == pytest.approx(0, abs=1e-12)  # all subsets are the whole


def test_kid_is_unbiased():
    # two distributions on two points each: all sets of two, with their probabilities, against the discrepancy of the distributions
    points, p, q = normal(2, 3), (0.3, 0.7), (0.8, 0.2)
    criterion, mean = KernelDistance(n_subsets=1, subset_size=2), 0.0
    for i, j, k, m in product(range(2), repeat=4):
        sets = (set_of(points[[i, j]]), set_of(points[[k, m]]))
        mean += p[i] * p[j] * q[k] * q[m] * criterion.compute(*sets, TITLES)["kid"]
    gaps = [a - b for a, b in zip(p, q, strict=True)]
    expected = sum(gaps[i] * gaps[j] * kernel(points[i], points[j]) for i, j in product(range(2), repeat=2))
    assert expected > 0.1
    assert mean == pytest.approx(float(expected), abs=1e-12)


def test_inception_score_is_one_of_the_undecided_and_the_number_of_classes_of_the_sure():
    undecided, sure = torch.zeros(20, 5), 100 * torch.eye(5).repeat(4, 1)
    for logits, expected in ((undecided, 1), (sure, 5), (sure[:1].expand(20, 5), 1)):
        found = InceptionScore(n_splits=1).compute(set_of(normal(20, 2), logits), None, TITLES)
        assert found["inception_score"] == pytest.approx(expected, abs=1e-9)
        assert found["inception_score_std"] == 0


def test_inception_score_of_parts():
    logits = torch.tensor([[100.0, 0], [100, 0], [0, 100], [0, 100]])  # two parts of two: alike (1) or not (2)
    seeds = [InceptionScore(n_splits=2, seed=i).compute(set_of(normal(4, 2), logits), None, TITLES) for i in range(9)]
    found = {(round(x["inception_score"], 9), round(x["inception_score_std"], 9)) for x in seeds}
    assert found == {(1, 0), (2, 0)}


# --- one pass, however it is cut --------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_numbers_do_not_depend_on_the_batch_size(batch_size, tmp_path):
    whole, cut = (values(quality(tmp_path / str(n), RandomFeatures(batch_size=n))) for n in (37, batch_size))
    assert set(whole) == {"fd_random", "kd_random", "kd_random_std", "random_score", "random_score_std"}
    assert cut == pytest.approx(whole, abs=1e-6)


def test_a_sample_passes_once_for_all_criteria_and_data_once_for_all_calls(tmp_path):
    features = RandomFeatures()
    metric = quality(tmp_path, features)
    metric.prepare(StandIn(), textures())
    assert features.n_seen == 50  # the training images, before the first iteration
    values(metric)
    assert features.n_seen == 50 + 37
    values(metric, "val")
    assert features.n_seen == 50 + 37 + 20


def test_closer_samples_are_nearer_by_every_criterion(tmp_path):
    close, far = (values(quality(tmp_path, images=images, n_samples=25)) for images in (HeldOutBytes(), Noise()))
    assert close["fd_random"] < far["fd_random"]
    assert close["kd_random"] < far["kd_random"]


class HeldOutBytes(HeldOut):
    def images(self, method, data, n):
        return data.splits.test[:n]


def one_of_two(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    features, mark = RandomFeatures(), folder / "mark"
    twice = [values(quality(folder, features)) for _ in range(2)]  # computed, then read from the file
    marked = first_rank_first(lambda: mark.exists() or mark.touch())
    torch.save({"values": twice, "n_seen": features.n_seen, "marked": marked}, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")
def test_two_processes_find_what_one_does(tmp_path):
    one = values(quality(tmp_path / "one"))
    mp.start_processes(one_of_two, (tmp_path,), nprocs=2, start_method="fork")
    both = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    for rank, left in enumerate(both):
        for found in left["values"]:
            assert found == pytest.approx(one, rel=1e-12)
        # every second batch of 7 of the 50 images, and of the 37 samples at each call
        assert left["n_seen"] == (28 + 2 * 21, 22 + 2 * 16)[rank]
    assert [left["marked"] for left in both] == [None, True]  # the second found what the first had left


# --- what is kept -----------------------------------------------------------------------------------------


@pytest.fixture
def reference(tmp_path):
    return ReferenceImages(cache_dir=str(tmp_path), n_max=40)


def looked_at(reference, data, **options):
    """How many images a call has looked at, what it has found, and in which file."""
    features = RandomFeatures(**options)
    features.prepare(data)
    known = reference.load(data, features)
    return features.n_seen, known, reference.path(data, features, rows=False)


def test_data_are_looked_at_once(reference):
    first, known, path = looked_at(reference, textures())
    again, read, same = looked_at(reference, textures())
    assert (first, again, path) == (40, 0, same)
    assert torch.equal(known.gaussian.covariance, read.gaussian.covariance)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_other_data_another_network_or_number_do_not_take_the_same_file(reference, tmp_path):
    files = [
        looked_at(reference, textures())[2],
        looked_at(reference, textures(shift=1))[2],  # one value of one image
        looked_at(reference, textures(), seed=1)[2],
        looked_at(ReferenceImages(cache_dir=str(tmp_path), n_max=39), textures())[2],
        looked_at(ReferenceImages(cache_dir=str(tmp_path), split="test"), textures())[2],
    ]
    assert len(set(files)) == len(files)


def test_the_same_images_are_drawn_of_many(reference):
    data, seen = textures(), []
    everything = {x.numpy().tobytes() for x in data.splits.train}

    class Remembering(RandomFeatures):
        def extract(self, images):
            seen[-1].update(x.numpy().tobytes() for x in images)
            return super().extract(images)

    for seed in range(2):
        features = Remembering(seed=seed)
        features.prepare(data)
        seen.append(set())
        reference.load(data, features)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 40
    assert seen[0] < everything


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"could not be written .*: choose a folder"):
        looked_at(ReferenceImages(cache_dir=str(tmp_path / "file" / "cache")), textures())


# --- the Inception network --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "random.pth"
    random_inception(path)
    return path


@pytest.fixture(scope="module")
def inception(weights):
    features = InceptionFeatures(cache_dir="nowhere", weights=str(weights), sha256=None, batch_size=8)
    before = torch.get_rng_state()
    features.prepare(None)
    assert torch.equal(torch.get_rng_state(), before)
    return features


def test_features_are_those_of_torchmetrics_without_antialiasing(inception, weights):
    from torchmetrics.image.fid import NoTrainInceptionV3

    # larger than the network's input, and rough: there antialiasing shows
    images = torch.randint(256, (2, 3, 400, 400), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    options = {"name": "x", "features_list": ["2048"], "feature_extractor_weights_path": str(weights)}
    theirs = NoTrainInceptionV3(**options, antialias=False)
    found = inception.extract(images)
    assert found.rows.std() > 0.01
    torch.testing.assert_close(found.rows, theirs(images), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.logits, found.rows @ theirs.fc.weight.T, rtol=1e-4, atol=1e-4)
    theirs.use_antialias = True
    assert (found.rows - theirs(images)).abs().max() > 0.01 * found.rows.abs().max()


def test_grey_is_repeated(inception):
    grey = pictures(2, channels=1)
    torch.testing.assert_close(inception.extract(grey).rows, inception.extract(grey.repeat(1, 3, 1, 1)).rows)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_criteria_are_those_of_the_libraries():
    from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_features_to_statistics, fid_statistics_to_metric
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.inception import InceptionScore as TheirScore
    from torchmetrics.image.kid import KernelInceptionDistance

    x, y = (normal(30, 50, seed=0).relu() + 0.1).float(), normal(30, 50, seed=1).relu().float()
    identity = torch.nn.Identity()
    identity.num_features = 50
    fid, kid = FrechetInceptionDistance(feature=identity), KernelInceptionDistance(identity, subsets=1, subset_size=30)
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


class Given:
    """Images that are there."""

    def __init__(self, images):
        self.given = images

    def supports(self, method, data):
        return True

    def images(self, method, data, n):
        return self.given[:n]


N_PICTURES = 12


@pytest.fixture(scope="module")
def ours(inception, tmp_path_factory):
    """Samples, examples, and all numbers of the ones compared with the others by the real network."""
    samples, examples, data = pictures(N_PICTURES, seed=1), pictures(N_PICTURES), textures()
    data.image_shape, data.splits = (3, 16, 16), Splits(examples, examples, examples)
    criteria = {
        "fid": FrechetDistance(),
        "kid": KernelDistance(n_subsets=3, subset_size=10),
        "score": InceptionScore(n_splits=2),
    }
    folder = tmp_path_factory.mktemp("ours")
    metric = quality(folder, inception, Given(samples), criteria=criteria, n_samples=N_PICTURES)
    return samples, examples, values(metric, data=data)


@pytest.mark.slow
def test_fid_is_that_of_torchmetrics(ours, weights):
    from torchmetrics.image.fid import FrechetInceptionDistance

    samples, examples, found = ours
    theirs = FrechetInceptionDistance(feature=2048, feature_extractor_weights_path=str(weights), antialias=False)
    theirs.update(samples, real=False)
    theirs.update(examples, real=True)
    assert found["fid"] > 0.1
    assert found["fid"] == pytest.approx(float(theirs.compute()), abs=1e-3)


@pytest.mark.slow
def test_all_numbers_are_those_of_torch_fidelity(ours, weights, tmp_path):
    from PIL import Image
    from torch_fidelity import calculate_metrics

    for name, images in zip(("samples", "examples"), ours, strict=False):
        (tmp_path / name).mkdir()
        for i, image in enumerate(images):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / name / f"{i:02d}.png")
    theirs = calculate_metrics(
        input1=str(tmp_path / "samples"),
        input2=str(tmp_path / "examples"),
        feature_extractor_weights_path=str(weights),
        **{"fid": True, "kid": True, "isc": True, "cuda": False, "verbose": False, "cache": False},
        **{"kid_subsets": 3, "kid_subset_size": 10, "isc_splits": 2, "save_cpu_ram": True},
    )
    names = {
        "fid": "frechet_inception_distance",
        "kid": "kernel_inception_distance_mean",
        "kid_std": "kernel_inception_distance_std",
        "inception_score": "inception_score_mean",
        "inception_score_std": "inception_score_std",
    }
    assert ours[2]["inception_score"] > 1.01
    assert ours[2] == pytest.approx({name: theirs[theirs_] for name, theirs_ in names.items()}, abs=1e-3)


# --- its weights ------------------------------------------------------------------------------------------


def test_missing_weights_are_asked_for_in_one_sentence(offline, tmp_path):
    with pytest.raises(
        DataError, match=r"no route to host.*put the file https://.*\.pth at .*cache/.*\.pth"
    ) as refusal:
        InceptionFeatures(cache_dir=str(tmp_path / "cache")).prepare(None)
    assert "\n" not in str(refusal.value)
    with pytest.raises(DataError, match=r"There is no file .*mine.pth"):
        InceptionFeatures(cache_dir=str(tmp_path), weights=str(tmp_path / "mine.pth")).prepare(None)


def test_weights_are_found_in_the_cache_or_in_torchs_own_folder_or_downloaded(offline, monkeypatch, tmp_path):
    def found(cache):
        return InceptionFeatures(cache_dir=str(tmp_path / cache)).find()

    hub = tmp_path / "hub" / "checkpoints" / FILE_NAME
    hub.parent.mkdir(parents=True)
    hub.touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / FILE_NAME).touch()
    assert found("a") == tmp_path / "a" / FILE_NAME
    assert found("b") == hub
    hub.unlink()
    calls = []
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *args, **options: calls.append((args, options)))
    assert found("c") == tmp_path / "c" / FILE_NAME
    assert calls == [((URL_INCEPTION_V3, str(tmp_path / "c" / FILE_NAME)), {"hash_prefix": SHA256})]


def test_other_weights_than_the_published_are_taken_only_with_leave(weights, inception):
    with pytest.raises(DataError, match=r"is not the published file of FID's weights.*sha256=null"):
        InceptionFeatures(cache_dir="nowhere", weights=str(weights)).prepare(None)
    assert len(inception.fingerprint) == 16


def test_a_file_of_weights_executes_nothing(tmp_path):
    torch.save({"fc.weight": Pickled(f"touch {tmp_path / 'executed'}")}, tmp_path / "hostile.pth")
    with pytest.raises(UnpicklingError):
        InceptionFeatures(cache_dir="nowhere", weights=str(tmp_path / "hostile.pth"), sha256=None).prepare(None)
    assert not (tmp_path / "executed").exists()


# --- the classifier ---------------------------------------------------------------------------------------

SMALL = {"width": 12, "dim": 32, "n_steps": 200, "lr": 5e-3, "batch_size": 64}


def classifier(folder, **options):
    return ClassifierFeatures(cache_dir=str(folder), **{**SMALL, **options})


@pytest.fixture(scope="module")
def digits():
    data = Digits()
    data.setup()
    return data


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    features = classifier(tmp_path_factory.mktemp("classifier"))
    before = torch.get_rng_state()
    features.prepare(digits)
    assert torch.equal(torch.get_rng_state(), before)
    return features


def test_the_classifier_knows_the_digits(trained, digits):
    assert trained.accuracy > 0.9
    images, labels = as_images(digits, digits.splits.test), digits.labels.test
    found = trained.extract(images)
    assert found.rows.shape == (197, 32)
    assert float((found.logits.argmax(-1) == labels).double().mean()) == trained.accuracy


def test_the_classifier_is_trained_once(trained, digits, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("trained again")

    monkeypatch.setattr("eblvm_lit.evaluation.features.classifier.fit", refuse)
    again = classifier(trained.cache_dir)
    again.prepare(digits)
    assert (again.fingerprint, again.accuracy) == (trained.fingerprint, trained.accuracy)
    with pytest.raises(AssertionError, match="trained again"):
        classifier(trained.cache_dir, seed=1).prepare(digits)


def test_the_classifier_is_a_function_of_its_seed(trained, digits, tmp_path):
    first, second, other = (classifier(tmp_path / str(i), n_steps=3, seed=i // 2) for i in range(3))
    first.prepare(digits)
    with torch.no_grad():  # as metrics are computed
        second.prepare(digits)
    other.prepare(digits)
    assert first.fingerprint == second.fingerprint != other.fingerprint


def test_held_out_digits_are_closer_than_noise(trained, digits, tmp_path):
    criteria = {"frechet": FrechetDistance()}
    metrics = [quality(tmp_path, trained, images, criteria=criteria, n_samples=150) for images in (HeldOut(), Noise())]
    held_out, noise = (values(metric, data=digits)["fd_classifier"] for metric in metrics)
    assert held_out < 0.2 * noise


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "criterion",
    [KernelDistance(subset_size=21), InceptionScore(n_splits=21), PrecisionRecall(k=20), DensityCoverage(k=20)],
)
def test_too_few_samples_are_refused_before_the_first_iteration(criterion, tmp_path):
    images = Noise()
    metric = quality(tmp_path, images=images, criteria={"x": criterion})
    with pytest.raises(ConfigError, match="The criterion x needs 21 samples and as many examples, and there are 20"):
        metric.prepare(StandIn(), textures())
    assert images.n_calls == 0


def test_labels_are_needed_for_a_classifier_and_classes_for_the_inception_score(digits, tmp_path):
    with pytest.raises(ConfigError, match="Textures has no labels to train a classifier on"):
        classifier(tmp_path).prepare(textures())
    data = Digits()
    data.setup()
    data.labels = Splits(*(torch.stack([x % 2, (x > 4).long()], dim=1) for x in digits.labels))  # attributes
    features = classifier(tmp_path, n_steps=60)
    with pytest.raises(ConfigError, match="The network classifier knows no classes"):
        quality(tmp_path, features).prepare(StandIn(), data)
    assert features.accuracy > 0.8


def test_images_do_not_depend_on_the_scale_models_see_them_in(tmp_path):
    write_frey(tmp_path, np.arange(560 * 1965, dtype=np.uint8).reshape(560, 1965))
    plain, standardised = (FreyFace(root=tmp_path, standardise=yes) for yes in (False, True))
    for data in (plain, standardised):
        data.setup()
    assert torch.equal(*(as_images(data, data.splits.test) for data in (plain, standardised)))


def test_what_is_no_image_gives_nothing_and_needs_nothing(offline, tmp_path):
    data = Checkerboard()
    data.setup()
    metric = quality(tmp_path, InceptionFeatures(cache_dir=str(tmp_path)))
    metric.prepare(StandIn(), data)
    assert values(metric, data=data) == {}


# --- end to end -------------------------------------------------------------------------------------------


def overrides(evaluation, node, folder):
    return [
        f"evaluation@callbacks.evaluation.metrics={evaluation}",
        f"~callbacks.evaluation.metrics.{node}.images",
        f"+callbacks.evaluation.metrics.{node}.images={{_target_: helpers.fake_images.Noise, seed: 3}}",
        "allow_packages=[helpers]",
        f"cache_dir={folder}/cache",
    ]


def test_missing_weights_stop_a_run_before_its_first_iteration(offline, tmp_path):
    with pytest.raises(DataError, match="FID needs its weights"):
        train(tmp_path / "run", *overrides("fid", "fid", tmp_path))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_ends_with_the_number_and_evaluation_finds_it_again(tmp_path):
    node = "callbacks.evaluation.metrics.fd_classifier"
    small = [f"{node}.features.{key}={value}" for key, value in SMALL.items()]
    sizes = [f"{node}.n_samples=30", f"{node}.n_samples_at_validation=20", f"{node}.features.n_steps=20"]
    chosen = [*overrides("classifier", "fd_classifier", tmp_path), *small, *sizes]
    found = train(tmp_path / "run", *chosen, "callbacks.evaluation.at_validation=[fd_classifier]")
    assert found["test/fd_classifier"] > 0
    assert "val/fd_classifier" in (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0]
    again = evaluate(
        tmp_path / "again",
        tmp_path / "run" / "checkpoints" / "last.ckpt",
        *("allow_packages=[helpers]", f"cache_dir={tmp_path}/cache"),
    )
    assert again["test/fd_classifier"] == found["test/fd_classifier"]


def test_the_published_weights_are_named_in_the_configuration():
    assert SHA256 in (CONF / "evaluation" / "fid.yaml").read_text()
    assert FILE_NAME.removesuffix(".pth").endswith(SHA256[:8])
