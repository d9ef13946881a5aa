"""Tests of classes that training and validation leave out, for each kind of labelled data."""

import csv

import numpy as np
import pytest
import torch

from eblvm_lit.data.array_files import ArrayFile
from eblvm_lit.data.digits import Digits
from eblvm_lit.data.hub import HubData
from eblvm_lit.data.image_folder import ImageFolder
from eblvm_lit.data.torchvision_sets import MNIST, SVHN
from eblvm_lit.errors import ConfigError
from helpers.image_files import write_images, write_mnist, write_svhn


def array_file(root, **options):
    numbers = np.random.default_rng(0)
    np.savez(root / "x.npz", x=numbers.normal(size=(300, 2)), y=np.array(["ant", "bee", "cat"] * 100))
    return ArrayFile(path=root / "x.npz", **options)


def image_folder(root, **options):
    for seed, name in enumerate(("ant", "bee", "cat")):
        write_images(root / "images" / name, 20, seed=seed)
    return ImageFolder(path=root / "images", root=root, val_size=0.2, test_size=0.3, **options)


def mnist(root, **options):
    write_mnist(root, n_train=40, n_test=20)
    return MNIST(root=root, val_size=10, **options)


def svhn(root, **options):
    write_svhn(root, n_train=40, n_test=20)
    return SVHN(root=root, val_size=10, **options)


def hub(root, **options):
    pytest.importorskip("datasets")
    with open(root / "train.csv", "w", newline="") as file:
        rows = np.random.default_rng(0).normal(size=(300, 2)).tolist()
        csv.writer(file).writerows([["a", "b", "label"], *([*row, i % 3] for i, row in enumerate(rows))])
    return HubData(repo=str(root), **options)


def digits(root, **options):
    return Digits(**options)


@pytest.mark.parametrize("build", [digits, array_file, image_folder, mnist, svhn, hub])
def test_training_and_validation_have_all_examples_but_those_of_held_out_classes(build, tmp_path):
    whole = build(tmp_path)
    rest = build(tmp_path, held_out_classes=[1])
    for data in (whole, rest):
        data.setup()
    for split in ("train", "val"):
        kept = getattr(whole.labels, split) != 1
        assert 0 < kept.sum() < len(kept)
        assert torch.equal(getattr(rest.labels, split), getattr(whole.labels, split)[kept])
        # Vectors of files are standardised by the remaining training examples.
        expected = rest.from_units(whole.in_units(getattr(whole.splits, split)[kept]))
        torch.testing.assert_close(getattr(rest.splits, split), expected)
    assert torch.equal(rest.labels.test, whole.labels.test)
    torch.testing.assert_close(rest.splits.test, rest.from_units(whole.in_units(whole.splits.test)))
    assert (whole.labels.test == 1).any()
    if (digests := whole.example_digests()) is not None:
        assert torch.equal(rest.state_dict()["train"], digests.train[whole.labels.train != 1].unique())


def test_minibatches_of_a_small_folder_have_no_more_than_the_remaining_images(tmp_path):
    data = image_folder(tmp_path, held_out_classes=["bee"])
    found, line = data.find_options()
    data.setup()
    assert found["batch_size"] == len(data.splits.train)
    assert f"{len(data.splits.train)} for training, {len(data.splits.val)} for validation" in line


def test_held_out_examples_do_not_change_the_scale_of_the_others(tmp_path):
    y = np.arange(400) % 2
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(400, 1)) + 1000 * y[:, None], y=y)
    data = ArrayFile(path=tmp_path / "x.npz", held_out_classes=[1])
    data.setup()
    assert data.splits.train.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert (data.splits.test[data.labels.test == 1] > 500).all()


def test_validation_images_that_are_also_trained_on_are_still_told_apart(tmp_path):
    data = mnist(tmp_path, held_out_classes=[1, 7])
    data.setup()
    n = data.n_train_without("val")
    assert n == len(data.splits.train) - len(data.splits.val)
    assert torch.equal(data.splits.train[n:], data.splits.val)
    assert data.n_train_without("test") == len(data.splits.train)


def test_classes_may_be_given_by_name_and_unknown_ones_are_refused(tmp_path):
    by_name = array_file(tmp_path, held_out_classes=["bee"])
    by_name.setup()
    assert by_name.labels.train.unique().tolist() == [0, 2]
    with pytest.raises(ConfigError, match="no test example has the class 'dog'; the classes are ant, bee, cat"):
        array_file(tmp_path, held_out_classes=["dog"]).setup()
    np.save(tmp_path / "unlabelled.npy", np.random.default_rng(0).normal(size=(100, 2)))
    with pytest.raises(ConfigError, match="needs data with one label per example"):
        ArrayFile(path=tmp_path / "unlabelled.npy", held_out_classes=[1]).setup()
