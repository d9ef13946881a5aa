"""Tests of networks whose features compare samples with data: their values, weights and cached features."""

import os
import subprocess
import sys
from itertools import product
from pickle import UnpicklingError

import pytest
import torch
from torch import nn
from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

import eblvm_lit as eb
from eblvm_lit.data.base import Splits
from eblvm_lit.evaluation.features.classifier import ClassifierFeatures
from eblvm_lit.evaluation.features.dinov2 import DINOv2Features
from eblvm_lit.evaluation.features.image_bytes import as_images
from eblvm_lit.evaluation.features.inception import SHA256, InceptionFeatures
from eblvm_lit.evaluation.features.reference import ReferenceImages
from eblvm_lit.networks.vision_transformer import VisionTransformer
from helpers.fake_images import RandomFeatures, random_inception, textures
from helpers.image_metrics import pictures, quality
from helpers.pickled import Pickled
from helpers.stand_in import StandIn, loaded


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "random.pth"
    random_inception(path)
    return path


@pytest.fixture(scope="module")
def inception(weights):
    features = InceptionFeatures(cache_dir="nowhere", weights=str(weights), sha256=None, batch_size=8)
    features.prepare(None)
    return features


def test_features_are_those_of_torchmetrics_without_antialiasing(inception, weights):
    from torchmetrics.image.fid import NoTrainInceptionV3

    # The image is rough and larger than the network's input, so that antialiasing would change the result.
    images = torch.randint(256, (1, 3, 400, 400), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    options = {"name": "x", "features_list": ["2048"], "feature_extractor_weights_path": str(weights)}
    theirs = NoTrainInceptionV3(**options, antialias=False)
    found = inception.extract(images)
    grey = pictures(1, channels=1)
    torch.testing.assert_close(inception.extract(grey).rows, inception.extract(grey.repeat(1, 3, 1, 1)).rows)
    assert found.rows.std() > 0.01
    torch.testing.assert_close(found.rows, theirs(images), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.logits, found.rows @ theirs.fc.weight.T, rtol=1e-4, atol=1e-4)
    theirs.use_antialias = True
    assert (found.rows - theirs(images)).abs().max() > 0.01 * found.rows.abs().max()


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


def test_the_transformer_without_layer_scale_is_that_of_torchvision():
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
    names = {"ln_1": "norm1", "ln_2": "norm2", "self_attention.out_proj": "attn.proj"}
    names |= {"mlp.0": "mlp.fc1", "mlp.3": "mlp.fc2"}
    for i, k in product(range(2), ("weight", "bias")):
        there = f"encoder.layers.encoder_layer_{i}"
        here = f"blocks.{i}"
        state |= {f"{there}.{a}.{k}": own[f"{here}.{b}.{k}"] for a, b in names.items()}
        state[f"{there}.self_attention.in_proj_{k}"] = own[f"{here}.attn.qkv.{k}"]
    theirs.load_state_dict(state)
    images = torch.rand(3, 3, 280, 280, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images))
    ours.blocks[0].ls1.gamma.data.fill_(2)
    assert (ours(images) - theirs(images)).abs().max() > 1e-3


def test_position_embeddings_of_another_grid_are_resized_and_the_class_keeps_its_own():
    network = small_transformer()
    # the embeddings are a ramp from left to right
    network.pos_embed.data[:, 1:] = torch.arange(5.0).repeat(5)[None, :, None]
    found = network.positions(4)
    assert found.shape == (1, 17, 128)
    torch.testing.assert_close(found[:, 0], network.pos_embed[:, 0])
    rows = found[0, 1:, 0].view(4, 4)
    torch.testing.assert_close(rows, rows[:1].expand(4, 4))
    # Inside of the grid, bicubic interpolation keeps the ramp and multiplies its slope by 5 / 4.1.
    middle = rows[0, 1:3]
    torch.testing.assert_close(middle, (torch.tensor([1.0, 2.0]) + 0.5) * 5 / 4.1 - 0.5, rtol=0.02, atol=0.02)


def test_dinov2_prepares_images_as_torch_fidelity_does(dinov2_file, monkeypatch):
    from torch_fidelity.feature_extractor_dinov2 import FeatureExtractorDinoV2

    features = DINOv2Features(cache_dir="nowhere", weights=str(dinov2_file), sha256=None)
    features.prepare(None)
    monkeypatch.setattr(torch.hub, "load", lambda *args: small_transformer())
    theirs = FeatureExtractorDinoV2("dinov2-vit-s-14", ["dinov2"])
    for images in (pictures(2), pictures(2, channels=1)):
        found = features.extract(images)
        torch.testing.assert_close(found.rows, theirs(images.expand(-1, 3, -1, -1))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [InceptionFeatures, DINOv2Features])
def test_missing_weights_are_asked_for(kind, offline, tmp_path):
    with pytest.raises(eb.DataError, match=r"put the file https://.* at .*cache/"):
        kind(cache_dir=str(tmp_path / "cache")).prepare(None)
    with pytest.raises(eb.DataError, match=r"mine\.pth"):
        kind(cache_dir=str(tmp_path), weights=str(tmp_path / "mine.pth")).prepare(None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [InceptionFeatures, DINOv2Features])
def test_weights_are_hashed_before_they_are_unpickled_and_execute_nothing(kind, tmp_path, sentinel):
    path = tmp_path / "hostile.pth"
    torch.save({"pos_embed": Pickled(f"touch {sentinel}")}, path)
    with pytest.raises(eb.DataError, match="sha256=null"):
        kind(cache_dir="nowhere", weights=str(path)).prepare(None)
    with pytest.raises((UnpicklingError, RuntimeError)):
        kind(cache_dir="nowhere", weights=str(path), sha256=None).prepare(None)


def test_weights_are_found_in_the_cache_or_in_torchs_own_folder_or_downloaded(offline, monkeypatch, tmp_path):
    name = URL_INCEPTION_V3.rsplit("/", 1)[1]
    calls = []
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *args, **options: calls.append((args, options)))
    features = InceptionFeatures(cache_dir=str(tmp_path / "cache"))
    own = tmp_path / "cache" / name
    hub = tmp_path / "hub" / "checkpoints" / name
    assert features.find() == own
    assert calls == [((URL_INCEPTION_V3, str(own)), {"hash_prefix": SHA256})]
    for path in (hub, own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert features.find() == path
    assert len(calls) == 1


def classifier(folder, **options):
    small = {"width": 12, "dim": 32, "n_steps": 100, "lr": 5e-3, "batch_size": 64}
    return ClassifierFeatures(cache_dir=str(folder), **{**small, **options})


@pytest.fixture(scope="module")
def digits():
    return loaded(eb.Digits())


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    features = classifier(tmp_path_factory.mktemp("classifier"))
    before = torch.get_rng_state()
    features.prepare(digits)
    assert torch.equal(torch.get_rng_state(), before)
    return features


def test_the_classifier_knows_the_digits(trained, digits):
    assert trained.accuracy > 0.9
    images = as_images(digits, digits.splits.test)
    labels = digits.labels.test
    found = trained.extract(images)
    assert found.rows.shape == (197, 32)
    assert float((found.logits.argmax(-1) == labels).double().mean()) == trained.accuracy


def test_the_classifier_is_a_function_of_its_seed_and_trained_once(trained, digits, tmp_path, monkeypatch):
    first, second, other = (classifier(tmp_path / str(i), n_steps=3, seed=i // 2) for i in range(3))
    first.prepare(digits)
    with torch.no_grad():  # prepare without gradients, as metrics do
        second.prepare(digits)
    other.prepare(digits)
    third = classifier(tmp_path / "1", n_steps=3)
    third.path(digits).write_bytes(b"")
    third.prepare(digits)
    assert first.fingerprint == second.fingerprint == third.fingerprint != other.fingerprint
    # A cached classifier must not be trained again, so that the test removes the training function.
    monkeypatch.setattr("eblvm_lit.evaluation.features.classifier.fit", None)
    again = classifier(trained.cache_dir)
    again.prepare(digits)
    assert (again.fingerprint, again.accuracy) == (trained.fingerprint, trained.accuracy)


@pytest.fixture(scope="module", params=[32, 16], ids=["32 pixels", "16 pixels"])
def shipped(request):
    """Return the classifier of the package for MNIST of one size, and scikit-learn's digits in that size."""
    digits = loaded(eb.Digits())
    images = as_images(digits, torch.cat(tuple(digits.splits))).float()
    # MNIST's digits have an edge of 6 of 32 pixels at each side
    side = 20 * request.param // 32
    larger = nn.functional.interpolate(images, size=(side, side), mode="bilinear", antialias=True)
    images = nn.functional.pad(larger, [(request.param - side) // 2] * 4).round().byte()
    data = eb.MNIST(root="nowhere", size=request.param)
    data.splits = Splits(*(images[i::3] for i in range(3)))
    data.labels = Splits(*(torch.cat(tuple(digits.labels))[i::3] for i in range(3)))
    return ClassifierFeatures(cache_dir="nowhere", version=1), data


def test_the_classifier_of_mnist_is_part_of_the_package_and_knows_other_digits(shipped, monkeypatch):
    monkeypatch.setattr("eblvm_lit.evaluation.features.classifier.fit", None)  # so that training would fail
    (features, data) = shipped
    features.prepare(data)
    found = features.extract(data.splits.train)
    right = found.logits.argmax(-1) == data.labels.train
    assert features.version == 1
    assert features.accuracy > 0.98
    assert right.double().mean() > 0.6


FEATURES_OF_A_RAMP = """
import sys
import torch
from safetensors.torch import load_file
from eblvm_lit.networks.image_classifier import ImageClassifier

network = ImageClassifier(v_shape=[1, 32, 32], n_classes=10)
network.load_state_dict(load_file(sys.argv[1]))
images = torch.linspace(-1, 1, 1024).view(1, 1, 32, 32) * torch.tensor([1.0, 0.5, -1.0]).view(3, 1, 1, 1)
with torch.no_grad():
    torch.save((torch.backends.cpu.get_cpu_capability(), network(images)[0]), sys.argv[2])
"""


@pytest.mark.slow
def test_features_of_the_shipped_classifier_are_equal_on_two_instruction_sets(tmp_path):
    path = ClassifierFeatures(cache_dir="nowhere", version=1).shipped(eb.MNIST(root="nowhere"))
    kinds = {"a": {}, "b": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}}
    for name, options in kinds.items():
        words = [sys.executable, "-c", FEATURES_OF_A_RAMP, str(path), str(tmp_path / name)]
        subprocess.run(words, env={**os.environ, **options}, check=True)
    (first, rows), (second, others) = (torch.load(tmp_path / name) for name in kinds)
    if first == second:
        pytest.skip(f"this machine has only the instructions {first}")
    assert rows.std() > 0.1
    torch.testing.assert_close(rows, others, rtol=0, atol=1e-3)


def test_other_settings_data_and_sizes_have_a_classifier_of_their_own(shipped, tmp_path):
    (_, data) = shipped
    for options in ({"version": None}, {"version": 1, "seed": 1}, {"version": 1, "n_steps": 999}):
        assert not ClassifierFeatures(cache_dir=str(tmp_path), **options).shipped(data).exists()
    whole = ClassifierFeatures(cache_dir=str(tmp_path), version=1, batch_size=7)
    assert whole.shipped(data).exists()  # the size of a batch in evaluation changes nothing
    for other in (eb.MNIST(root="nowhere", size=8), eb.FashionMNIST(root="nowhere", size=data.size)):
        assert not whole.shipped(other).exists()
    trained_here = classifier(tmp_path, n_steps=3, version=1)
    trained_here.prepare(data)
    assert trained_here.version is None


def test_a_classifier_needs_class_labels_and_not_attributes(digits, tmp_path):
    with pytest.raises(eb.ConfigError, match="no labels"):
        classifier(tmp_path).prepare(textures())
    data = loaded(eb.Digits())
    data.labels = Splits(*(torch.stack([x % 2, (x > 4).long()], dim=1) for x in digits.labels))
    with pytest.raises(eb.ConfigError, match="has no classes"):
        quality(tmp_path, classifier(tmp_path, n_steps=3)).prepare(StandIn(), data)


def test_features_of_data_are_computed_once_and_other_data_have_another_file(tmp_path):
    def looked_at(shift=0, seed=0, **options):
        features = RandomFeatures(seed=seed)
        data = textures(shift)
        features.prepare(data)
        reference = ReferenceImages(cache_dir=str(tmp_path), **{"n_max": 40, **options})
        known = reference.load(data, features)
        return features.n_seen, known, reference.path(data, features, rows=False)

    (first, known, path) = looked_at()
    (again, read, same) = looked_at()
    assert (first, again, path) == (40, 0, same)
    assert torch.equal(known.gaussian.covariance, read.gaussian.covariance)
    path.write_bytes(path.read_bytes()[:-1])
    anew, made, _ = looked_at()
    assert anew == 40
    assert torch.equal(known.gaussian.covariance, made.gaussian.covariance)
    assert looked_at()[0] == 0
    # Each of these changes needs another file; a shift changes one value of one image.
    others = {"shift": 1}, {"seed": 1}, {"n_max": 39}, {"split": "test"}
    assert len({path, *(looked_at(**other)[2] for other in others)}) == 5
