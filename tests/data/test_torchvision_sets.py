"""Tests of published sets of images: the arrays read from their files, and how bad files are refused."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision import datasets

from eblvm_lit.data.torchvision_sets import CIFAR10, CIFAR100, MNIST, SVHN, CelebA, FashionMNIST, Textures
from eblvm_lit.errors import DataError
from helpers.image_files import write_celeba, write_cifar10, write_images, write_mnist, write_svhn
from helpers.stand_in import loaded


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Make every download fail."""

    def refuse(*_, **__):
        raise RuntimeError("there is no\nnetwork")

    for kind in (datasets.MNIST, datasets.CIFAR10, datasets.SVHN, datasets.CelebA):
        monkeypatch.setattr(kind, "download", refuse)
    monkeypatch.setattr(datasets.dtd, "download_and_extract_archive", refuse)


def refusal(data):
    with pytest.raises(DataError) as caught:
        data.setup()
    return str(caught.value)


@pytest.mark.parametrize(("cls", "packed"), [(MNIST, True), (FashionMNIST, False)])
def test_mnist_is_padded_and_keeps_order_and_labels(cls, packed, tmp_path):
    arrays = write_mnist(tmp_path, folder=cls.__name__, packed=packed)
    data = loaded(cls(root=tmp_path, val_size=4))
    train, test = (np.pad(arrays[f"{part}-images-idx3-ubyte"], ((0, 0), (2, 2), (2, 2))) for part in ("train", "t10k"))
    for split, expected in zip(data.splits, (train, train[8:], test), strict=True):
        np.testing.assert_array_equal(split[:, 0], expected)
    np.testing.assert_array_equal(data.labels.val, arrays["train-labels-idx1-ubyte"][8:])
    np.testing.assert_array_equal(data.labels.test, arrays["t10k-labels-idx1-ubyte"])
    assert data.image_shape == data.event_shape == (1, 32, 32)
    assert len(data.class_names) == 10


def test_smaller_images_are_averages_of_squares(tmp_path):
    write_mnist(tmp_path)
    whole, small = (loaded(MNIST(root=tmp_path, size=s, val_size=4)) for s in (32, 8))
    expected = F.avg_pool2d(whole.splits.train.double(), 4).round()
    assert small.event_shape == (1, 8, 8)
    assert torch.equal(small.splits.train.double(), expected)


def test_files_with_another_checksum_are_refused_by_name(tmp_path, monkeypatch):
    write_cifar10(tmp_path)
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [[n, "0" * 32] for n, _ in datasets.CIFAR10.train_list])
    assert "data_batch_1 is damaged" in refusal(CIFAR10(root=tmp_path, val_size=3))


def test_cifar10_is_its_batches_in_order(tmp_path):
    images, labels = write_cifar10(tmp_path)
    data = loaded(CIFAR10(root=tmp_path, val_size=3))
    for split, expected in zip(data.splits, (images[:5].reshape(20, 3, 32, 32), images[4, 1:], images[5]), strict=True):
        np.testing.assert_array_equal(split, expected)
    for split, expected in zip(data.labels, (labels[:5].reshape(-1), labels[4, 1:], labels[5]), strict=True):
        np.testing.assert_array_equal(split, expected)


def test_cifar100_is_read_with_its_fine_labels(tmp_path):
    images, labels = write_cifar10(tmp_path)
    folder = (tmp_path / "cifar-10-batches-py").rename(tmp_path / "cifar-100-python")
    for name, old, i in (("train", "data_batch_1", 0), ("test", "test_batch", 5)):
        content = pickle.loads((folder / old).read_bytes())
        content |= {"fine_labels": content.pop("labels"), "coarse_labels": [0] * len(labels[i])}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": []}, protocol=2))
    data = loaded(CIFAR100(root=tmp_path, val_size=1))
    assert torch.equal(data.splits.test, torch.from_numpy(images[5]))
    assert data.labels.train.tolist() == labels[0].tolist()


def test_svhn_is_transposed_and_ten_means_zero(tmp_path):
    (train, _), (test, _) = write_svhn(tmp_path, n_test=10)
    data = loaded(SVHN(root=tmp_path, val_size=2))
    np.testing.assert_array_equal(data.splits.train, train.transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(data.splits.test, test.transpose(3, 2, 0, 1))
    assert data.labels.train.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert data.labels.test.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


@pytest.mark.parametrize(("make", "name"), [(MNIST, "MNIST/raw/train-images-idx3-ubyte.gz"), (Textures, "dtd/dtd")])
def test_what_is_missing_offline_is_named(make, name, tmp_path):
    message = refusal(make(root=tmp_path / "data"))
    assert message.startswith(f"{tmp_path}/data/{name} is missing")
    assert "no network" in message


def test_a_download_arrives_whole_or_not_at_all(tmp_path, monkeypatch):
    def download(self):
        write_mnist(Path(self.root), packed=False)
        if broken:
            raise OSError("connection lost")

    monkeypatch.setattr(datasets.MNIST, "download", download)
    broken = True
    assert "connection lost" in refusal(MNIST(root=tmp_path, val_size=4))
    assert list(tmp_path.iterdir()) == []
    broken = False
    (tmp_path / "MNIST").mkdir()  # a folder of this name exists already
    data = loaded(MNIST(root=tmp_path, val_size=4))
    assert len(data.splits.train) == 12
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]


def test_celeba_is_cropped_around_the_centre_and_goes_by_the_official_parts(tmp_path):
    attributes = write_celeba(tmp_path, parts=(2, 1, 0, 0, 2, 1))
    rows = [2, 3, 1, 5, 0, 4]
    crop = 140
    left = 19
    top = 39
    data = loaded(CelebA(root=tmp_path, size=20, crop=crop, val_size=2))
    assert [len(split) for split in data.splits] == [4, 2, 2]
    # The images are linear ramps. The mean of a ramp over a square is its value at the centre of the square.
    centres = (np.arange(20) + 0.5) * crop / 20 - 0.5
    for i, image in zip(rows, torch.cat([data.splits.train, data.splits.test]), strict=True):
        assert np.abs(image[0].float().mean(0).numpy() - (left + centres)).max() < 2
        assert np.abs(image[1].float().mean(1).numpy() - ((top + centres) / 2 + 5 * i)).max() < 2
        assert abs(image[2].float().mean() - 10 * i) < 2
    np.testing.assert_array_equal(torch.cat([data.labels.train, data.labels.test]), attributes[rows])
    assert data.class_names[39] == "A39"


def test_a_subset_of_celeba_is_fixed_and_disjoint_from_its_test_images(tmp_path, monkeypatch):
    attributes = write_celeba(tmp_path)
    monkeypatch.setattr(CelebA, "subset_test_size", 2)
    chosen = []
    for seed in (0, 1):
        data = loaded(CelebA(root=tmp_path, size=8, crop=160, subset=4, val_size=1, seed=seed))
        chosen.append([[round(float(x[2].float().mean()) / 10) for x in split] for split in data.splits])
        np.testing.assert_array_equal(data.labels.train, attributes[chosen[-1][0]])
    (train, val, test), again = chosen
    assert [train, val, test] == again
    assert (len(train), len(test), len({*train, *test}), val) == (4, 2, 6, train[-1:])


def test_celeba_without_attributes_has_no_labels_and_prepared_needs_no_photographs(tmp_path, caplog):
    write_celeba(tmp_path, attributes=False)
    first, again = (CelebA(root=tmp_path, size=8, val_size=2) for _ in range(2))
    first.setup()
    shutil.rmtree(tmp_path / "celeba" / "img_align_celeba")
    again.setup()
    assert first.labels is again.labels is None
    assert all(torch.equal(a, b) for a, b in zip(first.splits, again.splits, strict=True))
    # no prepared file has this size, so that the photographs are needed
    assert "img_align_celeba is missing" in refusal(CelebA(root=tmp_path, size=16, val_size=2))
    (file,) = (tmp_path / "prepared").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert "img_align_celeba is missing" in refusal(CelebA(root=tmp_path, size=8, val_size=2))
    assert f"{file} is damaged" in caplog.text


def write_dtd(root):
    """Write six pictures of two classes in three splits, in the format of the Describable Textures Dataset."""
    labels = root / "dtd" / "dtd" / "labels"
    labels.mkdir(parents=True)
    names = []
    for kind, seed in (("banded", 0), ("woven", 1)):
        write_images(root / "dtd" / "dtd" / "images" / kind, 3, size=(12, 20), suffix="jpg", seed=seed)
        names += [f"{kind}/{i:02d}.jpg" for i in range(3)]
    for i, split in enumerate(("train", "val", "test")):
        (labels / f"{split}1.txt").write_text("\n".join(names[i::3]) + "\n")
    return [names[j] for i in range(3) for j in range(i, 6, 3)]


def test_textures_are_those_of_all_splits_cropped_and_resized(tmp_path):
    order = write_dtd(tmp_path)
    data = loaded(Textures(root=tmp_path, size=6))
    for found, name in zip(data.splits.test, order, strict=True):
        with Image.open(tmp_path / "dtd" / "dtd" / "images" / name) as image:
            expected = np.asarray(image.crop((4, 0, 16, 12)).resize((6, 6), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(found, expected.transpose(2, 0, 1))
