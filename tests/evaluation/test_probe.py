"""Tests of the linear probe: its features, the data for training and testing it, and where it does not apply."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.svm import LinearSVC

import eblvm_lit as eb
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.data.images import ImageDataModule, Images
from eblvm_lit.draws.posterior_means import flat_pixels, posterior_means
from eblvm_lit.evaluation.probe import LinearProbe
from helpers.stand_in import StandIn, loaded

SIZES = (1500, 30, 50)


class Means(eb.Posterior):
    """A posterior whose mean is a given function of v; the tests use nothing else of it."""

    continuous = True

    def __init__(self, mean, h_dim=1):
        super().__init__()
        self.function = mean
        self.h_dim = h_dim
        self.calls = []

    def mean(self, v):
        self.calls.append(len(v))
        return self.function(v)

    noise = distribution_params = rsample_given = log_prob_given = information_given = None


class Points(ArrayDataModule):
    """Points in the plane that are ten times wider along the first axis.

    The label says whether both coordinates have the same sign.
    """

    event_shape = (2,)

    def __init__(self, labels=lambda v: (v.prod(1) > 0).long(), flipped=()):
        super().__init__()
        self.rule = labels
        self.flipped = flipped

    def load(self):
        u = torch.rand(sum(SIZES), 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
        u += 0.1 * u.sign()
        return Splits(*(u * torch.tensor([10.0, 1.0])).split(SIZES))

    def load_labels(self):
        found = {name: self.rule(v) for name, v in self.load()._asdict().items()}
        return Splits(**{name: 1 - label if name in self.flipped else label for name, label in found.items()})


def probe(posterior, data, split="test", **options):
    data.setup()
    metric = LinearProbe(**options)
    method = StandIn(posterior=posterior)
    return metric.evaluate(method, data, split, torch.Generator()) if metric.applies(method, data) else {}


product = Means(lambda v: v.prod(1, keepdim=True))


def test_posterior_means_that_separate_the_classes_have_a_higher_accuracy_than_pixels():
    found = probe(product, Points())
    assert found.keys() == {"probe_accuracy", "probe_accuracy_pixels", "probe_accuracy_pixels_reduced"}
    assert found["probe_accuracy"] == 1
    assert found["probe_accuracy_pixels"] < 0.75
    assert found["probe_accuracy_pixels_reduced"] < 0.75
    assert probe(product, Points(), pixels=False) == {"probe_accuracy": 1}


def test_the_probe_is_trained_on_training_examples_and_tested_on_the_given_split():
    assert probe(product, Points(flipped=["test"]), pixels=False) == {"probe_accuracy": 0}
    assert probe(product, Points(flipped=["val"]), pixels=False) == {"probe_accuracy": 1}
    assert probe(product, Points(flipped=["val"]), "val", pixels=False) == {"probe_accuracy": 0}


def test_one_class_cannot_be_told_from_others():
    data = Points()
    data.setup()
    rows = data.labels.train.argsort()
    data.splits = data.splits._replace(train=data.splits.train[rows])
    data.labels = data.labels._replace(train=data.labels.train[rows])
    assert probe(product, data, pixels=False)
    assert probe(product, data, pixels=False, n_train=9) == {}


class Pictures(ImageDataModule):
    """Images with one pixel of noise and one pixel that gives the class.

    The labels of the 400 validation images are wrong.
    """

    event_shape = image_shape = (1, 1, 2)

    def __init__(self, **options):
        super().__init__(root=".", val_size=400, **options)

    def read(self):
        x = torch.randint(256, (1000, 1, 1, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        labels = (x[:, 0, 0, 1] > 127).long()
        labels[400:800] = 1 - labels[400:800]
        return Images(x[:800], x[800:], labels[:800], labels[800:])


second_pixel = Means(lambda v: 4 * v.flatten(1)[:, 1:] - 2)


@pytest.mark.parametrize("train_on_val", [True, False])
def test_validation_images_are_not_trained_on_where_they_are_asked_for(train_on_val):
    data = Pictures(train_on_val=train_on_val)
    found = probe(second_pixel, data, "val")
    assert max(found["probe_accuracy"], found["probe_accuracy_pixels"]) < 0.05
    assert probe(second_pixel, data, "val", n_train=500) == found
    # For test images, the probe is trained on all training images. With train_on_val=true, they contain the validation
    # images, which have wrong labels.
    whole = probe(second_pixel, data, pixels=False)["probe_accuracy"]
    assert (whole > 0.95) == (not train_on_val)


def test_accuracies_on_real_digits_are_those_of_scikit_learn():
    data = eb.Digits()
    torch.manual_seed(0)
    posterior = eb.LinearGaussianPosterior(v_dim=64, h_dim=9)
    found = probe(posterior, data)
    train, test, y, answers = (x.numpy() for s in (data.splits, data.labels) for x in (s.train, s.test))
    A, a = (p.detach().numpy() for p in (posterior.linear.weight, posterior.linear.bias))
    pca = PCA(9, random_state=0).fit(train)
    for suffix, features in {
        "": lambda v: v @ A.T + a,
        "_pixels": lambda v: v,
        "_pixels_reduced": pca.transform,
    }.items():
        # scikit-learn chooses the primal problem for so many examples
        svm = LinearSVC(random_state=0).fit(features(train), y)
        score = svm.score(features(test), answers)
        assert found[f"probe_accuracy{suffix}"] == pytest.approx(score, abs=0.011)  # at most two of 197 images differ
        # the authors' code solves the dual problem, which gives the same accuracy for the posterior means
        published = LinearProbe(dual=True, pixels=False).accuracy((features(train), features(test)), (y, answers))
        assert suffix or published == score
    assert 0.4 < found["probe_accuracy"] < found["probe_accuracy_pixels"]


def test_bytes_become_features_batch_by_batch_on_the_scale_of_the_model():
    data = loaded(Pictures(value_range="symmetric"))
    method = StandIn(posterior=Means(lambda v: v.flatten(1)[:, 1:] + 1))
    v = data.read().train[:, 0, 0].numpy() / 127.5 - 1
    np.testing.assert_allclose(flat_pixels(data, data.splits.train), v, atol=1e-6)
    means = posterior_means(method, data, data.splits.train)
    np.testing.assert_allclose(means, v[:, 1:] + 1, atol=1e-6)
    assert method.posterior.calls == [500, 300]


def test_the_probe_gives_no_number_without_class_labels():
    assert probe(None, Points()) == {}
    # these labels are two attributes of each point, and no classes
    assert probe(product, Points(lambda v: (v > 0).long())) == {}
    assert probe(product, type("Unlabelled", (Points,), {"load_labels": lambda self: None})()) == {}
