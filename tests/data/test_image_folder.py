"""A folder of images: how it is read and prepared, how bad folders are refused, and runs with one."""

import itertools
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image

from eblvm_lit.data import prepared_files as files
from eblvm_lit.data.image_folder import ImageFolder
from eblvm_lit.errors import DataError
from eblvm_lit.runs import run
from helpers.image_files import gradient, write_images, write_mnist
from helpers.shell import configure, evaluate, of_checkpoint
from helpers.stand_in import loaded


def prepared(root):
    return list((root / "prepared").iterdir()) if (root / "prepared").exists() else []


def folder(tmp_path, **options):
    return ImageFolder(path=tmp_path / "set", root=tmp_path, **{"test_size": 2, "val_size": 2, **options})


def rows_of(images, pool):
    """Return the index of each image in a pool (n, H, W, 3)."""
    places = {x.transpose(2, 0, 1).tobytes(): i for i, x in enumerate(pool)}
    return [places[image.numpy().tobytes()] for image in images]


def test_images_are_decoded_once_and_mapped(tmp_path, monkeypatch):
    x = write_images(tmp_path / "set", 9)
    (tmp_path / "set" / ".DS_Store").write_text("hidden files do not count")
    data = loaded(folder(tmp_path))
    assert data.labels is data.class_names is None
    (file,) = prepared(tmp_path)
    stored = np.load(file)
    assert {image.tobytes() for image in stored} == {image.transpose(2, 0, 1).tobytes() for image in x}
    monkeypatch.setattr(files, "open_image", None)  # no image file may be opened from here on
    monkeypatch.setattr(ImageFolder, "_headers", (["RGB"], [(6, 6)]))
    again = loaded(folder(tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(data.splits, again.splits, strict=True))
    assert str(file) in Path("/proc/self/maps").read_text()
    again.splits.train.zero_()  # this changes the array in memory, but not the file
    np.testing.assert_array_equal(np.load(file), stored)
    monkeypatch.undo()
    write_images(tmp_path / "set", 8, seed=1)  # a changed folder is prepared again
    assert not torch.equal(loaded(folder(tmp_path)).splits.test, data.splits.test)


def pickled(file):
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(b""),
        lambda file: np.save(file, np.load(file)[1:]),
        lambda file: np.save(file, np.load(file).transpose(0, 2, 3, 1)),
        lambda file: np.save(file, np.load(file).view(np.int8)),
        pickled,
    ],
)
def test_a_damaged_array_is_prepared_again_and_named_in_one_line(spoil, tmp_path, caplog):
    write_images(tmp_path / "set", 9)
    expected = [split.clone() for split in loaded(folder(tmp_path)).splits]
    (file,) = prepared(tmp_path)
    spoil(file)
    with caplog.at_level("WARNING"):
        found = loaded(folder(tmp_path)).splits
        loaded(folder(tmp_path))  # the second module finds a valid array again
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert [record.message.partition(" (")[0] for record in caplog.records] == [f"{file} is damaged"]


def test_classes_are_labels_and_every_image_is_in_one_part(tmp_path):
    pools = [write_images(tmp_path / "set" / name, 8, seed=i) for i, name in enumerate(("cat", "dog", "eel"))]
    data = loaded(folder(tmp_path, train_on_val=False, test_size=5, val_size=4))
    assert data.class_names == ("cat", "dog", "eel")
    assert data.image_shape == (3, 6, 6)
    pool = np.concatenate(pools)
    found = []
    for images, labels, n in zip(data.splits, data.labels, (15, 4, 5), strict=True):
        rows = rows_of(images, pool)
        assert labels.tolist() == [row // 8 for row in rows]
        assert len(rows) == n
        found += rows
    assert sorted(found) == list(range(24))
    # the validation and test images are not all of the last class
    assert len(set(data.labels.val.tolist() + data.labels.test.tolist())) == 3


def test_train_and_test_folders_are_kept_apart(tmp_path):
    pools = {}
    for i, (part, name, n) in enumerate(itertools.product(("train", "test"), ("a", "b"), (5,))):
        pools.setdefault(part, []).append(write_images(tmp_path / "set" / part / name, n, seed=i))
    data = loaded(folder(tmp_path))
    train, test = (np.concatenate(pools[part]) for part in ("train", "test"))
    assert sorted(rows_of(data.splits.train, train)) == list(range(10))
    assert rows_of(data.splits.test, test) == list(range(10))
    assert data.labels.test.tolist() == [0] * 5 + [1] * 5
    assert data.labels.train.tolist() == [row // 5 for row in rows_of(data.splits.train, train)]


def too_large():
    """Return a picture of 180 megapixels that takes a few bytes."""
    header = struct.pack(">IIBBBBB", 18_000, 10_000, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", b""), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x)) for name, x in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: write_images(path / "new", 1), "contains folders and the file 00.png"),
        (lambda path: (path / "05.png").write_bytes((path / "05.png").read_bytes()[:60]), "05.png is missing, damaged"),
        (lambda path: (path / "05.png").write_bytes(too_large()), "05.png has more than the 179 megapixels"),
        (lambda path: Image.new("RGB", (6, 7)).save(path / "05.png"), "05.png is 7 x 6 pixels, and 00.png 6 x 6"),
        (lambda path: path.rename(path.with_name("moved")), "is not a folder with images.*set"),
        (lambda path: [(path / kind).mkdir() for kind in ("train", "test", "val")], "data.split_folders"),
    ],
)
def test_bad_folders_are_refused_by_the_file(spoil, sentence, tmp_path):
    write_images(tmp_path / "set", 7)
    spoil(tmp_path / "set")
    with pytest.raises(DataError, match=sentence):
        folder(tmp_path).setup()
    assert prepared(tmp_path) == []


@pytest.mark.parametrize(("sizes", "side"), [([(20, 20)], 16), ([(9, 7), (60, 90), (40, 33)], 32)])
def test_a_run_finds_out_how_large_images_are_and_in_which_colours(sizes, side, tmp_path):
    (tmp_path / "set").mkdir()
    for i, size in enumerate(size for size in sizes for _ in range(5)):
        Image.fromarray(gradient(i, size)[..., 0]).save(tmp_path / "set" / f"{i}.png")
    data = folder(tmp_path, channels=None, test_size=0.2, val_size=0.2)
    found, _ = data.find_options()
    n = 4 * len(sizes)
    assert found == {"size": side, "channels": 1, "batch_size": n}
    whole = loaded(folder(tmp_path, test_size=0.2, val_size=0.2, **found))
    assert whole.splits.train.shape == (n, 1, side, side)
    assert whole.find_options()[0] == {}


@pytest.mark.parametrize("size", [None, 10])
def test_photographs_lie_as_a_viewer_shows_them(size, tmp_path):
    upright = gradient(0, (20, 40))
    # the stored pixels for each orientation: the inverse of what a viewer does by the EXIF standard
    stored = {1: upright, 2: upright[:, ::-1], 5: upright.transpose(1, 0, 2), 6: np.rot90(upright, 1)}
    (tmp_path / "set").mkdir()
    exif = Image.Exif()
    for orientation, array in stored.items():
        exif[0x0112] = orientation
        Image.fromarray(np.ascontiguousarray(array)).save(tmp_path / "set" / f"{orientation}.png", exif=exif)
    data = loaded(folder(tmp_path, test_size=2, val_size=1, size=size))
    expected = Image.fromarray(upright)
    if size:
        expected = expected.crop((10, 0, 30, 20)).resize((10, 10), Image.Resampling.BILINEAR)
    for image in torch.cat([data.splits.train, data.splits.test]):
        np.testing.assert_array_equal(image, np.asarray(expected).transpose(2, 0, 1))
    assert "4 colour images of 20 x 40 pixels" in data.find_options()[1]


SMALL = ("model.network.channels=2", "model.h_dim=3", "model.head_dim=4", "posterior.network.widths=[2,2,2]")
FAST = ("debug=fast", "data.batch_size=64", "trainer.max_steps=2", "callbacks.figures=null")


def test_a_folder_of_images_needs_no_other_key_and_its_run_is_resumed(tmp_path):
    write_images(tmp_path / "mine", 30, size=(20, 28), mode="L")
    folders = [f"data.root={tmp_path}", f"outputs_dir={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    own = ["data=image_folder", f"data.path={tmp_path / 'mine'}", *folders, *SMALL, *FAST]
    metrics = run.train(configure(*own))
    assert metrics["test/posterior_fisher"] > 0
    stored = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert (stored.data.size, stored.data.channels, stored.data.batch_size) == (16, 1, 24)
    assert stored.sizes.v_shape == stored.method.energy.network.v_shape == [1, 16, 16]
    again = evaluate(tmp_path / "again", tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert again == of_checkpoint(metrics)
    assert run.train(configure(*own, "trainer.max_steps=3", "ckpt=last"))["iteration"] == 3


def test_flattened_images_train_a_model_of_vectors(tmp_path):
    write_mnist(tmp_path, n_train=30, n_test=8)
    data = ["data=mnist", f"data.root={tmp_path}", "data.flatten=true", "data.size=8", "data.val_size=0.1"]
    short = ["debug=fast", "trainer.max_steps=2", "model.h_dim=3", "callbacks.figures=null", f"run_dir={tmp_path}/run"]
    assert run.train(configure("method=dsm", "model=grbm", *data, *short))["iteration"] == 2
    assert OmegaConf.load(tmp_path / "run" / "config.yaml").method.energy.v_dim == 64
