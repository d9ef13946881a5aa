"""Image sets: what their files become, what is trained on when, and how bad files are refused."""

import hashlib
import itertools
import os
import pickle
import re
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision import datasets

from eblvm_lit.data import image_folder
from eblvm_lit.data import prepared_files as files
from eblvm_lit.data.base import Splits
from eblvm_lit.data.digits import Digits
from eblvm_lit.data.image_folder import ImageFolder
from eblvm_lit.data.images import ImageDataModule, Images
from eblvm_lit.data.torchvision_sets import CIFAR10, MNIST, SVHN, CelebA, FashionMNIST
from eblvm_lit.errors import ConfigError, DataError
from helpers.image_files import gradient, pixels, write_celeba, write_cifar10, write_images, write_mnist, write_svhn

SHARED = Path(os.environ.get("EBLVM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


class Given(ImageDataModule):
    """Given images, for what holds of every image set."""

    event_shape = image_shape = (3, 4, 4)

    def __init__(self, n=20, **options):
        super().__init__(root="nowhere", **{"val_size": 3, **options})
        images = torch.from_numpy(pixels(n + 5, 3, 4, 4))
        self.images = Images(images[:n], images[n:], torch.arange(n), torch.arange(n, n + 5))

    def read(self):
        return self.images


@pytest.mark.parametrize(("most", "sizes", "without_val"), [(2, (2, 2, 2), 2), (18, (18, 3, 5), 17)])
def test_max_examples_keeps_the_first_of_each_split_with_their_labels(most, sizes, without_val):
    whole, few = Given(), Given()
    few.max_examples = most
    whole.setup()
    few.setup()
    for kept, every in zip((*few.splits, *few.labels), (*whole.splits, *whole.labels), strict=True):
        assert torch.equal(kept, every[:most])
    assert tuple(map(len, few.splits)) == sizes
    assert few.n_train_without("val") == without_val
    assert not set(few.labels.train[:without_val].tolist()) & set(few.labels.val.tolist())


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Nothing is downloaded in a test."""

    def refuse(*_, **__):
        raise RuntimeError("there is no\nnetwork")

    for kind in (datasets.MNIST, datasets.CIFAR10, datasets.SVHN, datasets.CelebA):
        monkeypatch.setattr(kind, "download", refuse)


def refusal(data):
    """The sentence with which data are refused."""
    with pytest.raises(DataError) as caught:
        data.setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- splits, scales, flips --------------------------------------------------------------------------------


@pytest.mark.parametrize("train_on_val", [True, False])
def test_validation_images_are_the_last_and_held_out_on_demand(train_on_val):
    data = Given(train_on_val=train_on_val)
    data.setup()
    train, test = data.images[:2]
    n = 20 if train_on_val else 17
    for split, expected in zip(data.splits, (train[:n], train[17:], test), strict=True):
        assert torch.equal(split, expected)
        assert split.dtype == torch.uint8
    for labels, expected in zip(data.labels, (range(n), range(17, 20), range(20, 25)), strict=True):
        assert labels.tolist() == list(expected)
    assert data.splits.train.data_ptr() == train.data_ptr()  # a view, not a second copy


@pytest.mark.parametrize(("value_range", "low", "high"), [("unit", 0, 1), ("symmetric", -1, 1)])
def test_bytes_become_floats_of_the_range_in_batches(value_range, low, high):
    data = Given(value_range=value_range)
    x = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(data.as_float(x), torch.linspace(low, high, 256))
    assert x.dtype == torch.uint8
    block = data.on_after_batch_transfer([x, x], 0)
    assert all(torch.equal(part, data.as_float(x)) for part in block)
    floats = torch.rand(3)
    assert data.as_float(floats) is floats


def stream(**options):
    data = Given(flip=True, batch_size=6, **options)
    return data, data.train_dataloader()


def test_flips_mirror_half_of_the_images_and_depend_on_seed_and_iteration():
    (data, flipped), plain = stream(), Given(batch_size=6).train_dataloader()
    n, mirrored, masks = 400, 0, []
    for a, b in itertools.islice(zip(flipped, plain, strict=False), n):
        same, other = (a == b).flatten(1).all(1), (a == b.flip(-1)).flatten(1).all(1)
        assert (same ^ other).all()
        mirrored += int(other.sum())
        masks.append(tuple(other.tolist()))
    assert mirrored / (n / 4 * 20) == pytest.approx(0.5, abs=0.05)
    assert len(set(masks)) > 60  # of the 64 + 4 there are
    assert torch.equal(data.splits.train, data.images.train)  # batches are changed, not the data

    def first(seed):
        return next(iter(stream(seed=seed)[1]))

    assert torch.equal(first(1), first(1))
    batch = data.images.train[:20]
    other = Given(flip=True, seed=1)
    assert any(not torch.equal(data.augment(batch.clone(), t), other.augment(batch.clone(), t)) for t in range(3))


@pytest.mark.parametrize("position", [1, 5, 12])
def test_a_resumed_stream_repeats_the_flips_with_and_without_blocks(position):
    whole = list(itertools.islice(stream()[1], 25))
    _, resumed = stream()
    resumed.position = position
    assert all(torch.equal(a, b) for a, b in zip(whole[position:], resumed, strict=False))
    data, _ = stream()
    data.iterations_per_batch = 4
    blocks = data.train_dataloader()
    blocks.stream.position = position
    parts = itertools.chain.from_iterable(blocks)
    assert all(torch.equal(a, b) for a, b in zip(whole[position:], parts, strict=False))


class Recorder(pl.LightningModule):
    """Trains nothing; notes the batches and saves a checkpoint in the middle of the second epoch."""

    def __init__(self, path):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.automatic_optimization = False
        self.path, self.seen = path, []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch.clone())
        self.optimizers().step()

    def on_train_batch_end(self, *_):
        if self.global_step == 5:
            self.trainer.save_checkpoint(self.path)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def test_a_resumed_training_sees_the_same_flipped_floats(tmp_path):
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")

    def seen(path, ckpt_path=None):
        module = Recorder(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
            trainer = pl.Trainer(max_steps=9, max_epochs=-1, accelerator="cpu", **dict.fromkeys(quiet, False))
            trainer.fit(module, datamodule=stream()[0], ckpt_path=ckpt_path, weights_only=True)
        return module.seen

    whole = seen(tmp_path / "middle.ckpt")
    resumed = seen(tmp_path / "again.ckpt", tmp_path / "middle.ckpt")
    assert len(whole) == 9
    assert all(v.dtype == torch.float32 for v in whole)
    assert all(torch.equal(a, b) for a, b in zip(whole[5:], resumed, strict=True))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"value_range": "byte"}, "data.value_range is 'unit' or 'symmetric', not 'byte'"),
        ({"val_size": 0}, "data.val_size must be at least 1, and is 0"),
        ({"val_size": 1.5}, "data.val_size must be at least 1, and is 1.5; a fraction is between 0 and 1"),
        ({"batch_size": 0}, "data.batch_size must be at least 1"),
    ],
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Given(**options)


@pytest.mark.parametrize(("fraction", "n"), [(0.1, 2), (0.5, 10), (0.01, 1)])
def test_a_fraction_of_the_images_validates(fraction, n):
    data = Given(val_size=fraction, train_on_val=False)
    data.setup()
    assert [len(split) for split in data.splits] == [20 - n, n, 5]


class Flattened(Given):
    """The same as vectors, or not."""

    event_shape = ImageDataModule.event_shape


def test_flattened_images_are_vectors_that_are_flipped_as_images_are():
    flat, square = (Flattened(flatten=flatten, flip=True, batch_size=6) for flatten in (True, False))
    flat.setup()
    assert (flat.event_shape, flat.image_shape, square.event_shape) == ((48,), (3, 4, 4), (3, 4, 4))
    assert flat.splits.train.data_ptr() == flat.images.train.data_ptr()  # a view, not a second copy
    assert flat.labels.test.tolist() == list(range(20, 25))
    for a, b in itertools.islice(zip(flat.train_dataloader(), square.train_dataloader(), strict=False), 8):
        assert torch.equal(a, b.flatten(1))


def test_more_validation_than_training_images_are_refused():
    assert "has 20 images to train on, and 20 would be for validation: lower data.val_size" in refusal(
        Given(val_size=20)
    )


def test_labels_of_digits_belong_to_their_images():
    from sklearn.datasets import load_digits

    pixels_of, target = load_digits(return_X_y=True)
    known = {tuple(x): y for x, y in zip(pixels_of.tolist(), target.tolist(), strict=True)}
    data = Digits()
    data.setup()
    for images, labels in zip(data.splits, data.labels, strict=True):
        assert labels.dtype == torch.int64
        assert [known[tuple(x)] for x in (images * 16).tolist()] == labels.tolist()


# --- MNIST ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("cls", [MNIST, FashionMNIST])
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


@pytest.mark.parametrize("size", [16, 8])
def test_smaller_images_are_averages_of_squares(size, tmp_path):
    write_mnist(tmp_path)
    whole, small = (MNIST(root=tmp_path, size=s, val_size=4) for s in (32, size))
    for data in (whole, small):
        data.setup()
    expected = F.avg_pool2d(whole.splits.train.double(), 32 // size).round()
    assert small.event_shape == (1, size, size)
    assert torch.equal(small.splits.train.double(), expected)
    with pytest.raises(ConfigError, match=r"data\.size is 8, 16 or 32, not 12"):
        MNIST(root=tmp_path, size=12)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "t10k-images-idx3-ubyte.gz is damaged or cut off"),
        (lambda path: path.unlink(), "t10k-images-idx3-ubyte.gz is missing .*there is no network.*data.root"),
    ],
)
def test_bad_mnist_files_are_refused_by_name(spoil, sentence, tmp_path):
    write_mnist(tmp_path)
    spoil(tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz")
    before = sorted(tmp_path.rglob("*"))
    message = refusal(MNIST(root=tmp_path, val_size=4))
    assert re.search(sentence, message), message
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unpacked_mnist_file_that_is_cut_off_is_refused(tmp_path):
    write_mnist(tmp_path, packed=False)
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    assert "train-images-idx3-ubyte is damaged or cut off" in refusal(MNIST(root=tmp_path))


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


# --- CIFAR10 and SVHN -------------------------------------------------------------------------------------


def test_cifar10_is_its_batches_in_order(tmp_path):
    images, labels = write_cifar10(tmp_path)
    data = CIFAR10(root=tmp_path, val_size=3)
    data.setup()
    np.testing.assert_array_equal(data.splits.train, images[:5].reshape(20, 3, 32, 32))
    np.testing.assert_array_equal(data.splits.val, images[4, 1:])
    np.testing.assert_array_equal(data.splits.test, images[5])
    np.testing.assert_array_equal(data.labels.train, labels[:5].reshape(-1))
    np.testing.assert_array_equal(data.labels.test, labels[5])


class Harm:
    """Unpickling this leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_cifar10_file_with_a_wrong_checksum_is_refused_unread(tmp_path, monkeypatch):
    write_cifar10(tmp_path)
    path, mark = tmp_path / "cifar-10-batches-py" / "data_batch_3", tmp_path / "harm"
    listed = [
        [name, hashlib.md5((path.parent / name).read_bytes()).hexdigest()] for name, _ in datasets.CIFAR10.train_list
    ]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", listed)
    path.write_bytes(pickle.dumps({"data": Harm(mark), "labels": []}, protocol=2))
    message = refusal(CIFAR10(root=tmp_path, val_size=3))
    assert f"data_batch_3 is damaged, as its MD5 sum is not {listed[2][1]}: delete it" in message
    assert not mark.exists()


def test_svhn_is_transposed_and_ten_means_zero(tmp_path):
    (train, _), (test, _) = write_svhn(tmp_path)
    data = SVHN(root=tmp_path, val_size=2)
    data.setup()
    for i in range(7):
        np.testing.assert_array_equal(data.splits.train[i], train[..., i].transpose(2, 0, 1))
    np.testing.assert_array_equal(data.splits.test[4], test[..., 4].transpose(2, 0, 1))
    assert data.labels.train.tolist() == [1, 2, 3, 4, 5, 6, 7]
    write_svhn(tmp_path, n_test=10)
    other = SVHN(root=tmp_path, val_size=2)
    other.setup()
    assert other.labels.test.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


# --- downloading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (MNIST, "MNIST/raw/train-images-idx3-ubyte.gz"),
        (FashionMNIST, "FashionMNIST/raw/train-images-idx3-ubyte.gz"),
        (CIFAR10, "cifar-10-batches-py/data_batch_1"),
        (SVHN, "train_32x32.mat"),
        (lambda root: CelebA(root=root, size=32), "celeba/list_eval_partition.txt"),
    ],
)
def test_what_is_missing_offline_is_named_with_its_place_and_source(make, name, tmp_path):
    message = refusal(make(root=tmp_path / "data"))
    assert message.startswith(f"{tmp_path}/data/{name} is missing and could not be downloaded (there is no network)")
    assert "torchvision.datasets." in message
    assert "data.root" in message


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


# --- CelebA -----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("list_eval_partition.txt", "000001.jpg\n", "list_eval_partition.txt is damaged, as its MD5 sum"),
        ("list_attr_celeba.txt", "", "list_attr_celeba.txt is damaged, as its MD5 sum"),
        ("img_align_celeba/000004.jpg", "text", "000004.jpg is missing, damaged or no image"),
        ("img_align_celeba/000004.jpg", None, "000004.jpg is missing, damaged or no image"),
    ],
)
def test_bad_celeba_files_are_refused_by_name(name, content, sentence, tmp_path, monkeypatch):
    write_celeba(tmp_path)
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in (tmp_path / "celeba").glob("*.txt")}
    monkeypatch.setattr(datasets.CelebA, "file_list", [("", md5, name) for name, md5 in sums.items()])
    (tmp_path / "celeba" / name).unlink()
    if content is not None:
        (tmp_path / "celeba" / name).write_text(content)
    assert sentence in refusal(CelebA(root=tmp_path, size=8, val_size=2))


# --- prepared arrays --------------------------------------------------------------------------------------


def prepared(root):
    return list((root / "prepared").iterdir()) if (root / "prepared").exists() else []


def test_images_are_decoded_once_and_mapped(tmp_path, monkeypatch):
    x = write_images(tmp_path / "set", 9)
    options = {"path": tmp_path / "set", "root": tmp_path, "test_size": 2, "val_size": 2}
    data = ImageFolder(**options)
    data.setup()
    (file,) = prepared(tmp_path)
    stored = np.load(file)
    assert stored.dtype == np.uint8
    assert {image.tobytes() for image in stored} == {image.transpose(2, 0, 1).tobytes() for image in x}

    monkeypatch.setattr(files, "open_image", None)  # no file is opened
    monkeypatch.setattr(ImageFolder, "_headers", (["RGB"], [(6, 6)]))
    again = ImageFolder(**options)
    again.setup()
    assert all(torch.equal(a, b) for a, b in zip(data.splits, again.splits, strict=True))
    assert str(file) in Path("/proc/self/maps").read_text()
    # whoever writes into the arrays changes them for himself alone
    again.splits.train.zero_()
    np.testing.assert_array_equal(np.load(file), stored)


def test_an_interrupted_preparation_leaves_nothing_that_is_taken_for_whole(tmp_path, monkeypatch):
    write_images(tmp_path / "set", 9)
    options = {"path": tmp_path / "set", "root": tmp_path, "test_size": 2, "val_size": 2}
    decode, calls = ImageFolder._decode, []

    def dying(self, path, **options):
        calls.append(path)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return decode(self, path, **options)

    monkeypatch.setattr(ImageFolder, "_decode", dying)
    with pytest.raises(KeyboardInterrupt):
        ImageFolder(**options).setup()
    assert prepared(tmp_path) == []
    (tmp_path / "prepared" / ".set.123.tmp").write_bytes(b"left by a process that was killed")
    monkeypatch.setattr(ImageFolder, "_decode", decode)
    data = ImageFolder(**options)
    data.setup()
    assert [len(split) for split in data.splits] == [7, 2, 2]


def test_a_changed_folder_is_prepared_anew(tmp_path):
    write_images(tmp_path / "set", 6)
    options = {"path": tmp_path / "set", "root": tmp_path, "test_size": 1, "val_size": 1}
    ImageFolder(**options).setup()
    write_images(tmp_path / "set", 8, seed=1)
    data = ImageFolder(**options)
    data.setup()
    assert len(data.splits.train) == 7


def test_a_root_that_cannot_be_written_to_is_named(tmp_path):
    write_images(tmp_path / "set", 6)
    (tmp_path / "file").touch()
    options = {"path": tmp_path / "set", "test_size": 1, "val_size": 1}
    assert "could not be written" in refusal(ImageFolder(root=tmp_path / "file", **options))


# --- a folder of images -----------------------------------------------------------------------------------


def folder(tmp_path, **options):
    return ImageFolder(path=tmp_path / "set", root=tmp_path, **{"test_size": 2, "val_size": 2, **options})


def rows_of(images, pool):
    """Where each image is in a pool (n, H, W, 3)."""
    places = {x.transpose(2, 0, 1).tobytes(): i for i, x in enumerate(pool)}
    return [places[image.numpy().tobytes()] for image in images]


def test_classes_are_labels_and_every_image_is_in_one_part(tmp_path):
    pools = [write_images(tmp_path / "set" / name, 8, seed=i) for i, name in enumerate(("cat", "dog", "eel"))]
    data = folder(tmp_path, train_on_val=False, test_size=5, val_size=4)
    data.setup()
    assert data.class_names == ("cat", "dog", "eel")
    assert data.image_shape == (3, 6, 6)
    pool, found = np.concatenate(pools), []
    for images, labels, n in zip(data.splits, data.labels, (15, 4, 5), strict=True):
        rows = rows_of(images, pool)
        assert labels.tolist() == [row // 8 for row in rows]
        assert len(rows) == n
        found += rows
    assert sorted(found) == list(range(24))
    assert len(set(data.labels.val.tolist() + data.labels.test.tolist())) == 3  # not the last class alone


def test_train_and_test_folders_are_kept_apart(tmp_path):
    pools = {}
    for i, (part, name, n) in enumerate(itertools.product(("train", "test"), ("a", "b"), (5,))):
        pools.setdefault(part, []).append(write_images(tmp_path / "set" / part / name, n, seed=i))
    data = folder(tmp_path)
    data.setup()
    train, test = (np.concatenate(pools[part]) for part in ("train", "test"))
    assert sorted(rows_of(data.splits.train, train)) == list(range(10))
    assert rows_of(data.splits.test, test) == list(range(10))
    assert data.labels.test.tolist() == [0] * 5 + [1] * 5
    assert data.labels.train.tolist() == [row // 5 for row in rows_of(data.splits.train, train)]
    # as classes on demand
    for part in ("train", "test"):
        for path in list((tmp_path / "set" / part / "a").iterdir()):
            path.rename(tmp_path / "set" / part / path.name)
        (tmp_path / "set" / part / "a").rmdir()
        for path in list((tmp_path / "set" / part / "b").iterdir()):
            path.unlink()
        (tmp_path / "set" / part / "b").rmdir()
    classes = folder(tmp_path, split_folders=False)
    classes.setup()
    assert classes.class_names == ("test", "train")


def test_a_flat_folder_has_no_labels_and_hidden_files_do_not_count(tmp_path):
    write_images(tmp_path / "set", 7)
    (tmp_path / "set" / ".DS_Store").write_text("not an image")
    data = folder(tmp_path)
    data.setup()
    assert data.labels is data.class_names is None
    assert [len(split) for split in data.splits] == [5, 2, 2]


def test_grey_and_colour_are_converted_on_demand(tmp_path):
    colour = write_images(tmp_path / "set", 5)
    grey = folder(tmp_path, channels=1)
    grey.setup()
    expected = {np.asarray(Image.fromarray(x).convert("L")).tobytes() for x in colour}
    assert {x.numpy().tobytes() for x in torch.cat([grey.splits.train, grey.splits.test])} == expected
    assert grey.event_shape == (1, 6, 6)
    write_images(tmp_path / "other" / "set", 5, mode="L")
    back = folder(tmp_path / "other")
    back.setup()
    assert back.event_shape == (3, 6, 6)
    assert torch.equal(back.splits.train[:, 0], back.splits.train[:, 2])


def test_sizes_are_cropped_to_a_square_and_resampled(tmp_path):
    (tmp_path / "set").mkdir()
    for i, size in enumerate([(40, 60), (80, 40), (20, 20), (40, 40)]):
        Image.fromarray(gradient(i, size)).save(tmp_path / "set" / f"{i}.jpg", quality=98)
    data = folder(tmp_path, size=10, test_size=1, val_size=1)
    data.setup()
    images = {round(float(x[2].float().mean()) / 10): x for x in torch.cat([data.splits.train, data.splits.test])}
    # the wide one begins at column 10, the high one at column 0, in squares of 4 pixels
    for i, first in ((0, 10 + 1.5), (1, 1.5), (2, 0.5), (3, 1.5)):
        assert images[i].shape == (3, 10, 10)
        assert abs(float(images[i][0, :, 0].float().mean()) - first) < 2.5
    assert "set data.size" in refusal(folder(tmp_path))
    assert "pixels, too small for data.crop=50" in refusal(folder(tmp_path, crop=50))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: write_images(path / "new", 1), "holds folders and the file 00.png"),
        (lambda path: (path / "notes.txt").write_text("words"), "notes.txt is missing, damaged or no image"),
        (lambda path: (path / "05.png").write_bytes((path / "05.png").read_bytes()[:60]), "05.png is missing, damaged"),
        (lambda path: Image.new("RGB", (6, 7)).save(path / "05.png"), "05.png is 7 x 6 pixels, and 00.png 6 x 6"),
        (lambda path: Image.new("F", (6, 6)).save(path / "05.tiff"), "05.tiff has numbers of 32 bits"),
        (lambda path: [file.unlink() for file in path.iterdir()], "There is no folder .*set with images"),
        (lambda path: path.rename(path.with_name("moved")), "There is no folder .*set with images"),
        (
            lambda path: [file.unlink() for file in list(path.iterdir())[2:]],
            "holds 2 images, of which training, validation and testing need at least one each",
        ),
        (
            lambda path: [file.unlink() for file in list(path.iterdir())[3:]],
            "has 1 images to train on, and at least two",
        ),
        (
            lambda path: [file.unlink() for file in list(path.iterdir())[4:]],
            "2 would be for validation: lower data.val_",
        ),
    ],
)
def test_bad_folders_are_refused_by_the_file(spoil, sentence, tmp_path):
    write_images(tmp_path / "set", 7)
    spoil(tmp_path / "set")
    assert re.search(sentence, refusal(folder(tmp_path)))
    assert prepared(tmp_path) == [] or "train" in sentence or "validation" in sentence


@pytest.mark.parametrize(
    ("folders", "options", "sentence"),
    [
        (["train/a", "test/b"], {}, "must have the same classes; a is in one"),
        (["train", "test", "val"], {}, "holds train, test and val: set data.split_folders"),
        (["a", "b"], {"split_folders": True}, "There is no folder .*train with images"),
    ],
)
def test_folders_of_unclear_meaning_are_refused(folders, options, sentence, tmp_path):
    for name in folders:
        write_images(tmp_path / "set" / name, 4)
    assert re.search(sentence, refusal(folder(tmp_path, **options)))


def test_an_empty_class_is_refused(tmp_path):
    write_images(tmp_path / "set" / "a", 4)
    (tmp_path / "set" / "b").mkdir()
    assert re.search("There is no folder .*b with images", refusal(folder(tmp_path)))


@pytest.mark.parametrize("options", [{"channels": 4}, {"test_size": 0}])
def test_impossible_folder_options_are_refused(options, tmp_path):
    with pytest.raises(ConfigError, match=f"data.{next(iter(options))} "):
        folder(tmp_path, **options)


def test_test_and_validation_images_may_be_fractions(tmp_path):
    write_images(tmp_path / "set", 24, size=(8, 8))
    data = folder(tmp_path, test_size=0.25, val_size=0.5, train_on_val=False)
    data.setup()
    assert [len(split) for split in data.splits] == [9, 9, 6]


@pytest.mark.parametrize(
    ("sizes", "side"), [([(28, 28)], 32), ([(20, 20)], 16), ([(4, 9)], 8), ([(9, 7), (60, 90), (40, 33)], 32)]
)
def test_a_run_finds_out_how_large_images_are_and_in_which_colours(sizes, side, tmp_path):
    (tmp_path / "set").mkdir()
    for i, size in enumerate(size for size in sizes for _ in range(5)):
        Image.fromarray(gradient(i, size)[..., 0]).save(tmp_path / "set" / f"{i}.png")
    data = folder(tmp_path, channels=None, test_size=0.2, val_size=0.2)
    found, line = data.find_options()
    n = 4 * len(sizes)
    assert found == {"size": side, "channels": 1, "batch_size": n}
    smallest, largest = (f"{height} x {width}" for height, width in (min(sizes), max(sizes)))
    pixels_of = smallest if smallest == largest else f"{smallest} to {largest}"
    assert f"{5 * len(sizes)} grey images of {pixels_of} pixels in {tmp_path}/set, {n} for training, " in line
    whole = folder(tmp_path, test_size=0.2, val_size=0.2, **found)
    whole.setup()
    assert whole.splits.train.shape == (n, 1, side, side)
    assert whole.find_options()[0] == {}


def test_colours_stay_and_a_crop_is_the_size(tmp_path):
    write_images(tmp_path / "set", 12, size=(20, 20))
    assert folder(tmp_path, channels=None, crop=16, batch_size=4).find_options()[0] == {"size": 16, "channels": 3}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("options", [{}, {"size": 10}])
def test_photographs_lie_as_a_viewer_shows_them(orientation, options, tmp_path):
    upright = gradient(0, (20, 40))
    # of each orientation, what is stored: the inverse of what a viewer does, by the EXIF standard
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: np.rot90(upright.transpose(1, 0, 2), 2),
        8: np.rot90(upright, -1),
    }[orientation]
    (tmp_path / "set").mkdir()
    exif = Image.Exif()
    exif[0x0112] = orientation
    for i in range(3):
        Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "set" / f"{i}.png", exif=exif)
    data = folder(tmp_path, test_size=1, val_size=1, **options)
    data.setup()
    expected = Image.fromarray(upright)
    if options:
        expected = expected.crop((10, 0, 30, 20)).resize((10, 10), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(data.splits.test[0], np.asarray(expected).transpose(2, 0, 1))
    assert "3 colour images of 20 x 40 pixels" in data.find_options()[1]


def test_what_is_prepared_by_another_version_is_made_anew(tmp_path, monkeypatch):
    write_images(tmp_path / "set", 7)
    monkeypatch.setattr(image_folder, "VERSION", "sideways")
    folder(tmp_path).setup()
    monkeypatch.undo()
    folder(tmp_path).setup()
    assert len(prepared(tmp_path)) == 2


@pytest.mark.parametrize("channels", [None, 3])
def test_other_modes_are_converted_and_counted_once(channels, tmp_path, caplog):
    write_images(tmp_path / "set", 4)
    image, grey = (
        Image.fromarray(gradient(0, (6, 6)) * 40),
        Image.fromarray((np.arange(36) * 1820).astype(np.uint16).reshape(6, 6)),
    )
    others = {"00": image.convert("1"), "1": image.convert("P"), "2": image.convert("RGBA"), "3": grey}
    others["4"] = image.convert("L")
    for name, other in others.items():
        other.save(tmp_path / "set" / f"{name}.png")
    data = folder(tmp_path, channels=channels)
    with caplog.at_level("INFO", "eblvm_lit"):
        data.setup()
        folder(tmp_path, channels=channels).setup()
    assert caplog.messages == [f"5 of 8 images in {tmp_path}/set were converted to colour images of 8 bits."]
    found = {x.numpy().tobytes() for x in torch.cat([data.splits.train, data.splits.test])}
    for name in ("00", "1", "2", "4"):
        assert np.asarray(others[name].convert("RGB")).transpose(2, 0, 1).tobytes() in found
    deep = np.asarray(grey) // 256
    assert np.stack([deep] * 3).astype(np.uint8).tobytes() in found


@pytest.mark.skipif(not (SHARED / "cifar10_jpeg.tar.xz").is_file(), reason=f"no cifar10_jpeg.tar.xz in {SHARED}")
def test_real_photographs_are_read_from_their_folder(tmp_path):
    with tarfile.open(SHARED / "cifar10_jpeg.tar.xz") as archive:
        images = (member for member in archive if member.name.endswith(".jpg"))
        for member in itertools.islice(images, 60):
            (tmp_path / "set").mkdir(exist_ok=True)
            (tmp_path / "set" / Path(member.name).name).write_bytes(archive.extractfile(member).read())
    data = folder(tmp_path, test_size=10, val_size=10)
    data.setup()
    assert data.event_shape == (3, 32, 32)
    assert [len(split) for split in data.splits] == [50, 10, 10]
    train = data.as_float(data.splits.train)
    assert 0.3 < train.mean() < 0.7
    assert train.diff(dim=-1).abs().mean() < 0.5 * train.std()  # neighbours resemble each other


def test_splits_are_what_the_base_promises(tmp_path):
    write_images(tmp_path / "set", 7)
    data = folder(tmp_path)
    data.setup()
    assert isinstance(data.splits, Splits)
    assert data.batch_sizes() == [2, 5]
    (v,) = [data.on_after_batch_transfer(batch, 0) for batch in data.val_dataloader()]
    torch.testing.assert_close(v, data.splits.val / 255)
