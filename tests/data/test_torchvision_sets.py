"""Published sets of images: what their files become, and how bad files are refused."""

import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision import datasets

from eblvm_lit.data.torchvision_sets import CIFAR10, CIFAR100, MNIST, SVHN, CelebA, FashionMNIST, Places365, Textures
from eblvm_lit.errors import ConfigError, DataError
from helpers.image_files import pixels, write_celeba, write_cifar10, write_images, write_mnist, write_svhn
from helpers.pickled import Pickled

SHARED = Path(os.environ.get("EBLVM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Nothing is downloaded in a test."""

    def refuse(*_, **__):
        raise RuntimeError("there is no\nnetwork")

    for kind in (datasets.MNIST, datasets.CIFAR10, datasets.SVHN, datasets.CelebA):
        monkeypatch.setattr(kind, "download", refuse)
    monkeypatch.setattr(datasets.dtd, "download_and_extract_archive", refuse)


def refusal(data):
    """The sentence with which data are refused."""
    with pytest.raises(DataError) as caught:
        data.setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("cls", "packed"), [(MNIST, True), (FashionMNIST, False)])
def test_mnist_is_padded_and_keeps_order_and_labels(cls, packed, tmp_path):
    arrays = write_mnist(tmp_path, folder=cls.__name__, packed=packed)
    data = cls(root=tmp_path, val_size=4)
    data.setup()
    train, test = (np.pad(arrays[f"{part}-images-idx3-ubyte"], ((0, 0), (2, 2), (2, 2))) for part in ("train", "t10k"))
    for split, expected in zip(data.splits, (train, train[8:], test), strict=True):
        np.testing.assert_array_equal(split[:, 0], expected)
    np.testing.assert_array_equal(data.labels.val, arrays["train-labels-idx1-ubyte"][8:])
    np.testing.assert_array_equal(data.labels.test, arrays["t10k-labels-idx1-ubyte"])
    assert data.image_shape == data.event_shape == (1, 32, 32)
    assert len(data.class_names) == 10


def test_smaller_images_are_averages_of_squares(tmp_path):
    write_mnist(tmp_path)
    whole, small = (MNIST(root=tmp_path, size=s, val_size=4) for s in (32, 8))
    for data in (whole, small):
        data.setup()
    expected = F.avg_pool2d(whole.splits.train.double(), 4).round()
    assert small.event_shape == (1, 8, 8)
    assert torch.equal(small.splits.train.double(), expected)
    with pytest.raises(ConfigError, match=r"data\.size"):
        MNIST(root=tmp_path, size=12)


@pytest.mark.parametrize("packed", [True, False])
def test_an_mnist_file_that_is_cut_off_is_refused_by_name(packed, tmp_path):
    write_mnist(tmp_path, packed=packed)
    path = next((tmp_path / "MNIST" / "raw").glob("t10k-images*"))
    path.write_bytes(path.read_bytes()[:-30])
    assert f"{path.name} is damaged" in refusal(MNIST(root=tmp_path, val_size=4))


@pytest.mark.skipif(not (SHARED / "MNIST").is_dir(), reason=f"no MNIST in {SHARED}")
def test_real_mnist_is_the_official_one():
    data = MNIST(root=SHARED)
    data.setup()
    assert [tuple(split.shape) for split in data.splits] == [(n, 1, 32, 32) for n in (60_000, 10_000, 10_000)]
    for part, images, labels in (
        ("train", data.splits.train, data.labels.train),
        ("t10k", data.splits.test, data.labels.test),
    ):
        inner = images[:, :, 2:-2, 2:-2].contiguous().numpy()
        assert images.sum() == inner.sum(dtype=np.int64)
        header = np.array([0x803, len(images), 28, 28], ">u4").tobytes()
        assert hashlib.md5(header + inner.tobytes()).hexdigest() == MD5[f"{part}-images-idx3-ubyte"]
        header = np.array([0x801, len(labels)], ">u4").tobytes()
        content = header + labels.numpy().astype(np.uint8).tobytes()
        assert hashlib.md5(content).hexdigest() == MD5[f"{part}-labels-idx1-ubyte"]


def test_cifar10_is_its_batches_in_order(tmp_path):
    images, labels = write_cifar10(tmp_path)
    data = CIFAR10(root=tmp_path, val_size=3)
    data.setup()
    np.testing.assert_array_equal(data.splits.train, images[:5].reshape(20, 3, 32, 32))
    np.testing.assert_array_equal(data.splits.val, images[4, 1:])
    np.testing.assert_array_equal(data.splits.test, images[5])
    np.testing.assert_array_equal(data.labels.train, labels[:5].reshape(-1))
    np.testing.assert_array_equal(data.labels.test, labels[5])


def test_a_cifar10_file_with_a_wrong_checksum_is_refused_unread(tmp_path, monkeypatch, sentinel):
    write_cifar10(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    names = [name for name, _ in datasets.CIFAR10.train_list]
    listed = [[name, hashlib.md5((folder / name).read_bytes()).hexdigest()] for name in names]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", listed)
    content = {"data": Pickled(f"touch {sentinel}"), "labels": []}
    (folder / "data_batch_3").write_bytes(pickle.dumps(content, protocol=2))
    assert "data_batch_3 is damaged" in refusal(CIFAR10(root=tmp_path, val_size=3))


def test_svhn_is_transposed_and_ten_means_zero(tmp_path):
    (train, _), (test, _) = write_svhn(tmp_path, n_test=10)
    data = SVHN(root=tmp_path, val_size=2)
    data.setup()
    np.testing.assert_array_equal(data.splits.train, train.transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(data.splits.test, test.transpose(3, 2, 0, 1))
    assert data.labels.train.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert data.labels.test.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (MNIST, "MNIST/raw/train-images-idx3-ubyte.gz"),
        (lambda root: CelebA(root=root, size=32), "celeba/list_eval_partition.txt"),
        (Textures, "dtd/dtd"),
    ],
)
def test_what_is_missing_offline_is_named(make, name, tmp_path):
    message = refusal(make(root=tmp_path / "data"))
    assert message.startswith(f"{tmp_path}/data/{name} is missing")
    assert "no network" in message


def test_a_download_arrives_whole_or_not_at_all(tmp_path, monkeypatch):
    def broken(self):
        write_mnist(Path(self.root), packed=False)
        raise OSError("connection lost")

    monkeypatch.setattr(datasets.MNIST, "download", broken)
    assert "connection lost" in refusal(MNIST(root=tmp_path, val_size=4))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(datasets.MNIST, "download", lambda self: write_mnist(Path(self.root), packed=False))
    (tmp_path / "MNIST").mkdir()  # with other files of the user
    data = MNIST(root=tmp_path, val_size=4)
    data.prepare_data()
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]
    data.setup()
    assert len(data.splits.train) == 12


@pytest.mark.parametrize(("crop", "left", "top"), [(140, 19, 39), (160, 9, 29)])
def test_celeba_is_cropped_around_the_centre(crop, left, top, tmp_path):
    attributes = write_celeba(tmp_path)
    data = CelebA(root=tmp_path, size=20, crop=crop, val_size=2)
    data.setup()
    assert [len(split) for split in data.splits] == [5, 2, 3]
    # of a linear ramp, a square's mean is its centre
    centres = (np.arange(20) + 0.5) * crop / 20 - 0.5
    for i, image in enumerate(torch.cat([data.splits.train, data.splits.test])):
        assert np.abs(image[0].float().mean(0).numpy() - (left + centres)).max() < 2
        assert np.abs(image[1].float().mean(1).numpy() - ((top + centres) / 2 + 5 * i)).max() < 2
        assert abs(image[2].float().mean() - 10 * i) < 2
    np.testing.assert_array_equal(torch.cat([data.labels.train, data.labels.test]), attributes)
    assert data.class_names[39] == "A39"


def test_celeba_goes_by_the_official_parts_whatever_their_order(tmp_path):
    attributes = write_celeba(tmp_path, parts=(2, 1, 0, 0, 2, 1))
    data = CelebA(root=tmp_path, size=8, val_size=2)
    data.setup()
    for split, labels, rows in zip(data.splits, data.labels, ([2, 3, 1, 5], [1, 5], [0, 4]), strict=True):
        assert [round(float(x[2].float().mean()) / 10) for x in split] == rows
        np.testing.assert_array_equal(labels, attributes[rows])


def test_a_subset_of_celeba_is_fixed_and_disjoint_from_its_test_images(tmp_path, monkeypatch):
    attributes = write_celeba(tmp_path)
    monkeypatch.setattr(CelebA, "subset_test_size", 2)
    chosen = []
    for seed in (0, 1):
        data = CelebA(root=tmp_path, size=8, crop=160, subset=4, val_size=1, seed=seed)
        data.setup()
        rows = [[round(float(x[2].float().mean()) / 10) for x in split] for split in data.splits]
        np.testing.assert_array_equal(data.labels.train, attributes[rows[0]])
        chosen.append(rows)
    (train, val, test), again = chosen
    assert [train, val, test] == again
    assert (len(train), len(test), len({*train, *test})) == (4, 2, 6)
    assert val == train[-1:]


def test_celeba_without_attributes_has_no_labels_and_prepared_needs_no_photographs(tmp_path):
    write_celeba(tmp_path, attributes=False)
    first, again = (CelebA(root=tmp_path, size=8, val_size=2) for _ in range(2))
    first.setup()
    for path in (tmp_path / "celeba" / "img_align_celeba").iterdir():
        path.unlink()
    (tmp_path / "celeba" / "img_align_celeba").rmdir()
    again.setup()
    assert first.labels is again.labels is None
    assert all(torch.equal(a, b) for a, b in zip(first.splits, again.splits, strict=True))
    # another size is another file
    assert "img_align_celeba is missing" in refusal(CelebA(root=tmp_path, size=16, val_size=2))


def write_cifar100(root, n=4):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True, exist_ok=True)
    data, labels = pixels(2, n, 3, 32, 32), pixels(2, n, seed=1) % 100
    for name, x, y in zip(("train", "test"), data, labels, strict=True):
        content = {"data": x.reshape(n, 3072), "fine_labels": y.tolist(), "coarse_labels": [0] * n}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": []}, protocol=2))
    return data, labels


def test_cifar100_is_read_with_its_fine_labels(tmp_path):
    images, labels = write_cifar100(tmp_path)
    data = CIFAR100(root=tmp_path, val_size=1)
    data.setup()
    assert torch.equal(data.splits.test, torch.from_numpy(images[1]))
    assert data.labels.train.tolist() == labels[0].tolist()


def write_dtd(root):
    """Two classes, and six pictures of three splits."""
    labels = root / "dtd" / "dtd" / "labels"
    labels.mkdir(parents=True)
    names = []
    for kind, seed in (("banded", 0), ("woven", 1)):
        write_images(root / "dtd" / "dtd" / "images" / kind, 3, size=(12, 20), suffix="jpg", seed=seed)
        names += [f"{kind}/{i:02d}.jpg" for i in range(3)]
    for i, split in enumerate(("train", "val", "test")):
        (labels / f"{split}1.txt").write_text("\n".join(names[i::3]) + "\n")
    return [names[j] for i in range(3) for j in range(i, 6, 3)]


def write_places(root, n=5):
    folder = root / "places365"
    write_images(folder / "val_256", n, size=(16, 16), suffix="jpg")
    (folder / "categories_places365.txt").write_text("/a/airfield 0\n/b/bar 1\n")
    (folder / "places365_val.txt").write_text("".join(f"{i:02d}.jpg {i % 2}\n" for i in range(n)))


def test_textures_are_those_of_all_splits_cropped_and_resized(tmp_path):
    order = write_dtd(tmp_path)
    data = Textures(root=tmp_path, size=6)
    data.setup()
    for found, name in zip(data.splits.test, order, strict=True):
        with Image.open(tmp_path / "dtd" / "dtd" / "images" / name) as image:
            expected = np.asarray(image.crop((4, 0, 16, 12)).resize((6, 6), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(found, expected.transpose(2, 0, 1))


def test_places_are_the_first_ones_of_the_list(tmp_path, monkeypatch):
    write_places(tmp_path)
    monkeypatch.setattr(datasets.Places365, "_check_integrity", lambda *args: True)  # these lists are not the true ones
    places = Places365(root=tmp_path, size=16, n_max=4)
    places.setup()
    assert places.splits.test.shape == (4, 3, 16, 16)
