"""Precision, recall, density, coverage and MMD against brute force and closed forms, and networks read from files."""

import copy
import math
from itertools import product
from pickle import UnpicklingError

import pytest
import torch
from torch import nn

from eblvm_lit.data.toy import Checkerboard
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.evaluation.criteria.density_coverage import DensityCoverage
from eblvm_lit.evaluation.criteria.frechet_distance import FrechetDistance
from eblvm_lit.evaluation.criteria.inception_score import InceptionScore
from eblvm_lit.evaluation.criteria.mean_discrepancy import MeanDiscrepancy
from eblvm_lit.evaluation.criteria.neighbours import counts, squared_radii
from eblvm_lit.evaluation.criteria.precision_recall import PrecisionRecall
from eblvm_lit.evaluation.features.clip import CLIPFeatures
from eblvm_lit.evaluation.features.dinov2 import DINOv2Features
from eblvm_lit.evaluation.features.raw_values import RawValues
from eblvm_lit.evaluation.features.reference import ReferenceImages
from eblvm_lit.evaluation.sample_quality import SampleQuality
from eblvm_lit.evaluation.samples.point_samples import PointSamples
from eblvm_lit.networks.vision_transformer import VisionTransformer
from helpers.fake_images import RandomFeatures, textures
from helpers.image_metrics import TITLES, normal, pictures, quality, set_of
from helpers.pickled import Pickled
from helpers.shell import train
from helpers.stand_in import StandIn


def prdc(x, y, k=3, k_density=5):
    """All four numbers of samples x (M, D) and data y (N, D)."""
    criteria = PrecisionRecall(k=k), DensityCoverage(k=k_density)
    found = {}
    for criterion in criteria:
        found |= criterion.compute(set_of(x), set_of(y), TITLES)
    return found


def by_definition(x, y, k=3, k_density=5):
    def radius(z, i, k):
        return sorted(float((z[i] - z[j]).norm()) for j in range(len(z)) if j != i)[k - 1]

    def inside(points, centres, k):
        radii = [radius(centres, j, k) for j in range(len(centres))]
        return [[float((p - c).norm()) <= r for c, r in zip(centres, radii, strict=True)] for p in points]

    in_data, in_samples, dense = inside(x, y, k), inside(y, x, k), inside(x, y, k_density)
    return {
        "precision": sum(map(any, in_data)) / len(x),
        "recall": sum(map(any, in_samples)) / len(y),
        "density": sum(map(sum, dense)) / (k_density * len(x)),
        "coverage": sum(map(any, zip(*dense, strict=True))) / len(y),
    }


# ---------------------------------------------------------------------- precision, recall, density, coverage


@pytest.mark.parametrize("dim", [1, 2, 9])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_all_four_are_what_they_are_defined_to_be(dim, offset):
    x, y = 0.6 * normal(23, dim) + 0.7 + offset, normal(31, dim, seed=1) + offset  # fewer samples, narrower, moved
    found = prdc(x, y)
    assert found == pytest.approx(by_definition(x, y), abs=1e-12)
    assert found["precision"] != found["recall"]


def test_blocks_of_rows_are_the_whole(monkeypatch):
    x, y = normal(50, 3), normal(40, 3, seed=1) + 0.5
    whole = prdc(x, y)
    monkeypatch.setattr("eblvm_lit.evaluation.criteria.neighbours.ELEMENTS", 150)
    monkeypatch.setattr("eblvm_lit.evaluation.criteria.mean_discrepancy.ELEMENTS", 150)
    assert prdc(x, y) == whole


@pytest.mark.parametrize("kind", [PrecisionRecall, DensityCoverage, MeanDiscrepancy])
def test_samples_are_compared_with_the_first_examples_where_a_number_is_given(kind):
    x, y = set_of(normal(20, 3)), normal(40, 3, seed=1) + 0.5
    limited = kind(n_max=25)
    assert limited.compute(x, set_of(y), TITLES) == kind().compute(x, set_of(y[:25]), TITLES)
    assert kind(n_max=90).compute(x, set_of(y), TITLES) == kind().compute(x, set_of(y), TITLES)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e7])
def test_equal_sets_have_precision_recall_and_coverage_one(offset):
    x = normal(60, 40) + offset  # far from the origin rounding moves distances by more than nothing
    found = prdc(x, x.clone())
    assert (found["precision"], found["recall"], found["coverage"]) == (1, 1, 1)
    assert found["density"] == pytest.approx(6 / 5)  # each ball holds its k neighbours and itself
    doubled = torch.cat([x, x, x, x])  # balls without extent
    assert prdc(doubled, doubled, k=2)["precision"] == 1


def test_rounding_does_not_move_what_lies_on_the_edge_of_a_ball(monkeypatch):
    """Products of rows and of matrices are rounded differently; the k-th neighbour stays in the ball it defines."""
    x = normal(60, 40) + 1e3
    radii = squared_radii(x, 5)
    monkeypatch.setattr("eblvm_lit.evaluation.criteria.neighbours.ELEMENTS", 60)  # one row at a time
    of_x, of_balls = counts(x, x, radii)
    assert of_balls.tolist() == [6] * 60
    assert int(of_x.sum()) == 6 * 60
    zeros = torch.zeros(5, 2, dtype=torch.float64)  # balls without extent are closed, too
    assert counts(zeros, zeros, squared_radii(zeros, 2))[1].tolist() == [5] * 5


def test_precision_is_not_recall():
    """torch-fidelity has been reported to swap them: samples in one of two clusters are precise, and recall half."""
    clusters = 0.1 * normal(40, 2)
    clusters[20:] += 10
    found = prdc(clusters[:20] + 1e-9, clusters)
    assert (found["precision"], found["recall"]) == (1.0, 0.5)
    back = prdc(clusters, clusters[:20] + 1e-9)
    assert (back["precision"], back["recall"]) == (0.5, 1.0)


def test_they_are_those_of_torch_fidelity_by_its_convention():
    from torch_fidelity.metric_prc import prc_features_to_metric

    x, y = 0.6 * normal(50, 4) + 0.7, normal(50, 4, seed=1)
    theirs = prc_features_to_metric(x, y, prc_neighborhood=3, prc_batch_size=100, save_cpu_ram=False, verbose=False)
    found = prdc(x, y)
    swapped = {"precision": theirs["recall"], "recall": theirs["precision"]}
    pair = {name: found[name] for name in ("precision", "recall")}
    assert pair == pytest.approx({name: theirs[name] for name in pair}) or pair == pytest.approx(swapped)


def test_a_lost_mode_lowers_recall_and_coverage_and_noise_lowers_precision_and_density():
    modes = torch.tensor([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0], [8.0, 8.0]], dtype=torch.float64)

    def draw(n, seed, kept=4):
        g = torch.Generator().manual_seed(seed)
        return modes[torch.randint(kept, (n,), generator=g)] + torch.randn(n, 2, generator=g, dtype=torch.float64)

    data, good = draw(800, 0), prdc(draw(800, 1), draw(800, 0))
    lost = prdc(draw(800, 2, kept=3), data)
    noise = 30 * torch.rand(400, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 11
    noisy = prdc(torch.cat([draw(400, 4), noise]), data)
    assert min(good.values()) > 0.9
    assert lost["recall"] < 0.8 < lost["precision"]
    assert lost["coverage"] < 0.8
    assert noisy["precision"] < 0.8 < noisy["recall"]
    assert noisy["density"] < 0.8


def test_density_and_coverage_of_one_distribution_have_the_expectations_of_their_formula():
    n, m, k, runs = 60, 80, 4, 200
    g = torch.Generator().manual_seed(5)
    found = []
    for _ in range(runs):
        x, y = (torch.randn(size, 3, generator=g, dtype=torch.float64) for size in (m, n))
        found.append(list(DensityCoverage(k=k).compute(set_of(x), set_of(y), TITLES).values()))
    values_ = torch.tensor(found)
    expected = torch.tensor([1.0, 1 - math.prod((n - i) / (m + n - i) for i in range(1, k + 1))])
    assert ((values_.mean(0) - expected).abs() < 4 * values_.std(0) / math.sqrt(runs)).all()
    assert (values_.std(0) / math.sqrt(runs) < 0.01).all()


# ---------------------------------------------------------------------- the mean discrepancy


def mmd(x, y, bandwidth=1.3):
    return MeanDiscrepancy(bandwidth=bandwidth).compute(set_of(x), set_of(y), TITLES)["mmd"]


def kernel(x, y, b=1.3):
    return math.exp(-float((x - y).square().sum()) / (2 * b**2))


def test_the_discrepancy_is_what_it_is_defined_to_be():
    x, y = normal(7, 3), normal(5, 3, seed=1) + 0.5
    within = sum(
        sum(kernel(z[i], z[j]) for i, j in product(range(len(z)), repeat=2) if i != j) / (len(z) * (len(z) - 1))
        for z in (x, y)
    )
    across = sum(kernel(a, b) for a in x for b in y) / (len(x) * len(y))
    assert mmd(x, y) == pytest.approx(within - 2 * across, abs=1e-12)
    distances = torch.nn.functional.pdist(y)
    assert mmd(x, y, "median") == pytest.approx(mmd(x, y, float(distances.median())), abs=1e-12)


def test_the_discrepancy_is_unbiased():
    # two distributions on two points each: all sets of two, with their probabilities, against the discrepancy of these
    points, p, q = normal(2, 3), (0.3, 0.7), (0.8, 0.2)
    mean = 0.0
    for i, j, k, m in product(range(2), repeat=4):
        mean += p[i] * p[j] * q[k] * q[m] * mmd(points[[i, j]], points[[k, m]])
    gaps = [a - b for a, b in zip(p, q, strict=True)]
    expected = sum(gaps[i] * gaps[j] * kernel(points[i], points[j]) for i, j in product(range(2), repeat=2))
    assert expected > 0.05
    assert mean == pytest.approx(expected, abs=1e-12)


def test_the_discrepancy_of_two_normal_distributions_is_its_closed_form():
    """E k(x, y) of N(a, I) and N(c, I) is (b^2 / (b^2 + 2))^(d/2) exp(-|a - c|^2 / (2 (b^2 + 2)))."""
    n, d, b, shift = 1500, 2, 1.3, 0.8
    found = torch.tensor([mmd(normal(n, d, seed=i), normal(n, d, seed=100 + i) + shift) for i in range(6)])
    scale = b**2 + 2
    expected = 2 * (b**2 / scale) ** (d / 2) * (1 - math.exp(-d * shift**2 / (2 * scale)))
    assert abs(float(found.mean()) - expected) < 4 * float(found.std()) / math.sqrt(6) + 1e-12
    assert float(found.std()) < 0.1 * expected


# ---------------------------------------------------------------------- points


def points_of(folder, **options):
    return SampleQuality(
        images=options.pop("images", PointSamples(n_steps=60, step_size=0.1)),
        features=RawValues(batch_size=100),
        reference=ReferenceImages(cache_dir=str(folder), split="test", n_max=1000),
        criteria={
            "prdc": PrecisionRecall(),
            "density": DensityCoverage(),
            "mmd": MeanDiscrepancy(),
            "f": FrechetDistance(),
        },
        n_samples=1000,
        n_samples_at_validation=1000,
        **options,
    )


def test_samples_of_a_model_of_points_are_compared_by_their_values(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        right, board = GaussianLatentModel(v_dim=2, h_dim=2), Checkerboard()
    board.setup()
    x = right.sample_exact(2000, torch.Generator().manual_seed(1))
    board.splits = board.splits._replace(test=x[:1000], train=x[1000:])
    wrong = copy.deepcopy(right)
    wrong.b.data.add_(3)
    close, far = (values_of(points_of(tmp_path), model, board) for model in (right, wrong))
    assert set(close) == {f"{name}_raw" for name in ("precision", "recall", "density", "coverage", "mmd", "fd")}
    assert close["coverage_raw"] > 0.9 > 0.5 > far["coverage_raw"]
    assert abs(close["mmd_raw"]) < 0.01 < far["mmd_raw"]
    assert close["fd_raw"] < 0.1


def method_of(energy):
    method = StandIn()
    method.energy = energy
    return method


def values_of(metric, energy, data):
    return metric.evaluate(method_of(energy), data, "test", torch.Generator())


def test_points_are_drawn_by_what_fits_the_model():
    board = Checkerboard()
    board.setup()
    source = PointSamples(n_steps=3)
    assert source.supports(method_of(GRBM(v_dim=2, h_dim=3)), board)
    assert not source.supports(method_of(GRBM(v_dim=2, h_dim=3)), textures())
    assert not source.supports(method_of(None), board)
    grbm = method_of(GRBM(v_dim=2, h_dim=3))
    once, again = (source.images(grbm, board, 5) for _ in range(2))
    assert once.dtype == torch.float32
    assert torch.equal(once, again)  # so that all processes compare the same points
    from helpers.models import Confined

    langevin = PointSamples(n_steps=200, step_size=0.05).images(method_of(Confined()), board, 500)
    assert langevin.shape == (500, 2)
    assert float(langevin.std()) > 0.5  # they have left the unit square where they started


def test_a_run_of_points_reports_coverage(tmp_path):
    chosen = ["evaluation@callbacks.evaluation.metrics=points", f"cache_dir={tmp_path / 'cache'}"]
    sizes = [f"callbacks.evaluation.metrics.points.{key}=200" for key in ("n_samples", "reference.n_max")]
    found = train(
        tmp_path / "run",
        "method=dsm",
        "data=checkerboard",
        *chosen,
        *sizes,
        "callbacks.evaluation.metrics.points.images.n_steps=5",
    )
    assert 0 <= found["test/coverage_raw"] <= 1
    assert {"test/precision_raw", "test/recall_raw", "test/density_raw", "test/mmd_raw", "test/fd_raw"} < set(found)


# ---------------------------------------------------------------------- DINOv2 and CLIP


def small_transformer():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = VisionTransformer(dim=128, depth=2, patch=56, grid=5)
        for p in network.parameters():
            p.data.normal_(std=0.2)
    return network


@pytest.fixture(scope="module")
def dinov2_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("dinov2") / "small.pth"
    torch.save(small_transformer().state_dict(), path)
    return path


def test_the_transformer_is_that_of_torchvision_where_no_channel_is_scaled():
    from torchvision.models.vision_transformer import VisionTransformer as Theirs

    ours = small_transformer().double()
    for block in ours.blocks:
        block.ls1.gamma.data.fill_(1)
        block.ls2.gamma.data.fill_(1)
    theirs = Theirs(image_size=280, patch_size=56, num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=512)
    theirs.heads = nn.Identity()
    theirs = theirs.double().eval()
    own = ours.state_dict()
    state = {"class_token": own["cls_token"], "encoder.pos_embedding": own["pos_embed"]}
    state |= {f"conv_proj.{k}": own[f"patch_embed.proj.{k}"] for k in ("weight", "bias")}
    state |= {f"encoder.ln.{k}": own[f"norm.{k}"] for k in ("weight", "bias")}
    names = {
        "ln_1": "norm1",
        "ln_2": "norm2",
        "self_attention.out_proj": "attn.proj",
        "mlp.0": "mlp.fc1",
        "mlp.3": "mlp.fc2",
    }
    for i, k in product(range(2), ("weight", "bias")):
        there, here = f"encoder.layers.encoder_layer_{i}", f"blocks.{i}"
        state |= {f"{there}.{a}.{k}": own[f"{here}.{b}.{k}"] for a, b in names.items()}
        state[f"{there}.self_attention.in_proj_{k}"] = own[f"{here}.attn.qkv.{k}"]
    theirs.load_state_dict(state)
    images = torch.rand(3, 3, 280, 280, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images))
    ours.blocks[0].ls1.gamma.data.fill_(2)
    assert (ours(images) - theirs(images)).abs().max() > 1e-3


def test_position_embeddings_of_another_grid_are_resized_and_the_class_keeps_its_own():
    network = small_transformer()
    network.pos_embed.data[:, 1:] = torch.arange(5.0).repeat(5)[None, :, None]  # a ramp from left to right
    found = network.positions(4)
    assert found.shape == (1, 17, 128)
    torch.testing.assert_close(found[:, 0], network.pos_embed[:, 0])
    rows = found[0, 1:, 0].view(4, 4)
    torch.testing.assert_close(rows, rows[:1].expand(4, 4))
    middle = rows[0, 1:3]  # inside, bicubic interpolation keeps a ramp, at a scale of 5 / 4.1
    torch.testing.assert_close(middle, (torch.tensor([1.0, 2.0]) + 0.5) * 5 / 4.1 - 0.5, rtol=0.02, atol=0.02)


def test_dinov2_passes_images_on_as_torch_fidelity_does(dinov2_file, monkeypatch):
    from torch_fidelity.feature_extractor_dinov2 import FeatureExtractorDinoV2

    features = DINOv2Features(cache_dir="nowhere", weights=str(dinov2_file), sha256=None)
    before = torch.get_rng_state()
    features.prepare(None)
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr(torch.hub, "load", lambda *args: small_transformer())
    theirs = FeatureExtractorDinoV2("dinov2-vit-s-14", ["dinov2"])
    for images in (pictures(2), pictures(2, channels=1)):
        found = features.extract(images)
        torch.testing.assert_close(found.rows, theirs(images.expand(-1, 3, -1, -1))[0], rtol=1e-4, atol=1e-5)
        assert found.logits is None
    assert (features.dim, len(features.fingerprint)) == (128, 16)


class Script(nn.Module):
    """What OpenAI's file holds beside the image network."""

    def __init__(self, visual):
        super().__init__()
        self.visual, self.text_projection = visual, nn.Parameter(torch.zeros(4, 64))

    def forward(self, x):
        return self.visual(x)


@pytest.fixture(scope="module")
def clip_file(tmp_path_factory):
    from torch_fidelity.feature_extractor_clip import CLIPVisual

    path = tmp_path_factory.mktemp("clip") / "small.pt"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        visual = CLIPVisual(64, 32, 1, 128, 16).visual
    torch.jit.trace(Script(visual), torch.zeros(1, 3, 32, 32)).save(str(path))
    return path


@pytest.mark.filterwarnings("ignore")
def test_clip_is_that_of_torch_fidelity(clip_file):
    from torch_fidelity.feature_extractor_clip import FeatureExtractorCLIP

    features = CLIPFeatures(cache_dir="nowhere", weights=str(clip_file), sha256=None)
    features.prepare(None)
    theirs = FeatureExtractorCLIP("clip-vit-b-32", ["clip"], str(clip_file), verbose=False)
    found = features.extract(pictures(3, channels=1)).rows
    assert found.std() > 1e-3
    torch.testing.assert_close(found, theirs(pictures(3, channels=1).expand(-1, 3, -1, -1))[0])
    assert features.dim == 64


@pytest.mark.parametrize("kind", [DINOv2Features, CLIPFeatures])
def test_missing_weights_are_asked_for_in_one_sentence_before_anything_is_fetched(kind, offline, tmp_path):
    with pytest.raises(
        DataError, match=r"needs its weights, which are not downloaded: put the file https://.* at .*cache/"
    ) as refusal:
        kind(cache_dir=str(tmp_path / "cache")).prepare(None)
    assert "\n" not in str(refusal.value)
    with pytest.raises(DataError, match=r"There is no file .*mine.pth"):
        kind(cache_dir=str(tmp_path), weights=str(tmp_path / "mine.pth")).prepare(None)
    metric = quality(tmp_path, kind(cache_dir=str(tmp_path)), criteria={"frechet": FrechetDistance()})
    with pytest.raises(DataError, match="needs its weights"):
        metric.prepare(StandIn(), textures())


@pytest.mark.filterwarnings("ignore")
def test_weights_are_found_in_the_cache_and_hashed_before_they_are_unpickled(dinov2_file, clip_file, tmp_path):
    for kind, file, name in (
        (DINOv2Features, dinov2_file, "dinov2_vits14_pretrain.pth"),
        (CLIPFeatures, clip_file, "ViT-B-32.pt"),
    ):
        (tmp_path / name).write_bytes(file.read_bytes())
        with pytest.raises(DataError, match=r"is not the published file of .* instead of .*sha256=null"):
            kind(cache_dir=str(tmp_path)).prepare(None)
        kind(cache_dir=str(tmp_path), sha256=None).prepare(None)
        torch.save({"pos_embed": Pickled(f"touch {tmp_path / 'executed'}")}, tmp_path / name)
        for sha256 in (None, "0" * 64):
            with pytest.raises((DataError, UnpicklingError, RuntimeError)):
                kind(cache_dir=str(tmp_path), sha256=sha256).prepare(None)
        assert not (tmp_path / "executed").exists()


def test_names_tell_the_network():
    found = [titles.of(name) for titles in (TITLES, DINOv2Features.titles) for name in ("precision", "density")]
    assert found == ["precision", "density", "precision_dinov2", "density_dinov2"]
    x = set_of(normal(20, 3))
    assert set(PrecisionRecall().compute(x, x, DINOv2Features.titles)) == {"precision_dinov2", "recall_dinov2"}
    assert set(DensityCoverage().compute(x, x, DINOv2Features.titles)) == {"density_dinov2", "coverage_dinov2"}
    assert set(MeanDiscrepancy().compute(x, x, RandomFeatures.titles)) == {"mmd"}


def test_points_have_no_inception_score(tmp_path):
    board = Checkerboard()
    board.setup()
    options = {"images": PointSamples(n_steps=3), "reference": ReferenceImages(cache_dir=str(tmp_path))}
    metric = SampleQuality(features=RawValues(), criteria={"score": InceptionScore()}, **options)
    with pytest.raises(ConfigError, match="knows no classes, which the Inception score needs"):
        metric.prepare(method_of(GRBM(v_dim=2, h_dim=3)), board)
