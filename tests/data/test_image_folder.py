"""Tests of folders of images: how they are read and prepared, how bad folders are refused, and runs on them."""

import itertools
import re
import shutil
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
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.runs import run
from helpers.image_files import gradient, write_images, write_mnist
from helpers.shell import configure, evaluate, of_checkpoint
from helpers.stand_in import loaded


def prepared(root):
    """Return the files that hold the decoded images."""
    return list((root / "prepared").glob("*.npy"))


def write(folder, n, **options):
    """Write random images as BMP files, and return their pixels.

    BMP files do not depend on the version of an encoder, and so the splits of the images do not either.
    """
    return write_images(folder, n, suffix="bmp", **options)


def folder(tmp_path, **options):
    return ImageFolder(path=tmp_path / "set", root=tmp_path, **{"test_size": 0.25, "val_size": 0.25, **options})


def rows_of(images, pool):
    """Return the index of each image in a pool (n, H, W, 3)."""
    places = {x.transpose(2, 0, 1).tobytes(): i for i, x in enumerate(pool)}
    return [places[image.numpy().tobytes()] for image in images]


def test_images_are_decoded_once_and_mapped(tmp_path, monkeypatch):
    x = write(tmp_path / "set", 12)
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
    write(tmp_path / "set", 11, seed=1)  # a changed folder is prepared anew
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
def test_a_damaged_array_is_made_anew_and_named_in_one_line(spoil, tmp_path, caplog):
    write(tmp_path / "set", 12)
    expected = [split.clone() for split in loaded(folder(tmp_path)).splits]
    (file,) = prepared(tmp_path)
    spoil(file)
    with caplog.at_level("WARNING"):
        found = loaded(folder(tmp_path)).splits
        loaded(folder(tmp_path))  # the second module finds a valid array again
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert [record.message.partition(" (")[0] for record in caplog.records] == [f"{file} is damaged"]


def test_classes_are_labels_and_every_image_is_in_one_part(tmp_path):
    pools = [write(tmp_path / "set" / name, 8, seed=i) for i, name in enumerate(("cat", "dog", "eel"))]
    data = loaded(folder(tmp_path, train_on_val=False))
    assert data.class_names == ("cat", "dog", "eel")
    assert data.image_shape == (3, 6, 6)
    pool = np.concatenate(pools)
    found = []
    for images, labels in zip(data.splits, data.labels, strict=True):
        rows = rows_of(images, pool)
        assert labels.tolist() == [row // 8 for row in rows]
        found += rows
    assert sorted(found) == list(range(24))
    # 6 images are expected in each split, with a standard error of 2.1
    assert all(6 - 5 <= len(split) <= 6 + 7 for split in data.splits[1:])
    whole = loaded(folder(tmp_path))
    assert torch.equal(whole.splits.train, torch.cat([data.splits.train, data.splits.val]))
    assert whole.n_train_without("val") == len(data.splits.train)
    # these splits have images of all classes, not only of the last one
    assert len(set(data.labels.val.tolist() + data.labels.test.tolist())) == 3


def test_train_and_test_folders_are_kept_apart(tmp_path):
    pools = {}
    for i, (part, name, n) in enumerate(itertools.product(("train", "test"), ("a", "b"), (5,))):
        pools.setdefault(part, []).append(write(tmp_path / "set" / part / name, n, seed=i))
    data = loaded(folder(tmp_path, val_size=0.4))
    train, test = (np.concatenate(pools[part]) for part in ("train", "test"))
    for split, pool in ((data.splits.train, train), (data.splits.test, test)):
        assert sorted(rows_of(split, pool)) == list(range(10))
    assert 0 < len(data.splits.val) < 10
    assert data.labels.test.tolist() == [row // 5 for row in rows_of(data.splits.test, test)]
    assert data.labels.train.tolist() == [row // 5 for row in rows_of(data.splits.train, train)]


def splits_of(data):
    """Return a dictionary from the bytes of each image to the name of its split."""
    return {x.numpy().tobytes(): name for name, part in data.splits._asdict().items() for x in part}


def test_images_that_come_go_and_are_renamed_move_no_other(tmp_path):
    options = {"train_on_val": False, "test_size": 0.2, "val_size": 0.2}
    write(tmp_path / "set", 40)
    before = splits_of(loaded(folder(tmp_path, **options)))
    write(tmp_path / "set" / "..." / "more", 25, seed=1)
    for i, path in enumerate(sorted((tmp_path / "set" / "..." / "more").iterdir())):
        path.rename(tmp_path / "set" / f"new {25 - i}.bmp")
    shutil.rmtree(tmp_path / "set" / "...")
    (tmp_path / "set" / "07.bmp").rename(tmp_path / "set" / "zzz.bmp")
    for name in ("03.bmp", "11.bmp"):
        (tmp_path / "set" / name).unlink()
    shutil.copy(tmp_path / "set" / "05.bmp", tmp_path / "set" / "copy.bmp")
    data = loaded(folder(tmp_path, **options))
    after = splits_of(data)
    assert sum(map(len, data.splits)) == 40 + 25 - 2 + 1
    assert len(after) == 63  # one of the 64 images is a copy of another one
    assert len(before.keys() & after.keys()) == 38
    assert all(before[x] == after[x] for x in before.keys() & after.keys())
    other = splits_of(loaded(folder(tmp_path, split_seed=1, **options)))
    assert any(other[x] != after[x] for x in after)


def test_given_folders_are_splits_wherever_they_lie(tmp_path):
    x, y, z = (write(tmp_path / name, 9, seed=i) for i, name in enumerate("xyz"))
    folders = {"train": tmp_path / "x", "val": tmp_path / "y", "test": tmp_path / "z"}
    data = loaded(ImageFolder(root=tmp_path, train_on_val=False, **folders))
    for split, pool in zip(data.splits, (x, y, z), strict=True):
        assert sorted(rows_of(split, pool)) == list(range(9))
    some = loaded(ImageFolder(root=tmp_path, path=tmp_path / "x", test=tmp_path / "z", val_size=0.3))
    assert torch.equal(some.splits.test, data.splits.test)
    assert sorted(rows_of(some.splits.train, x)) == list(range(9))


def test_all_damaged_files_are_listed_at_once(tmp_path):
    write(tmp_path / "set", 30)
    for name in ("05.bmp", "21.bmp"):
        (tmp_path / "set" / name).write_bytes((tmp_path / "set" / name).read_bytes()[:60])
    data = folder(tmp_path, channels=None)
    assert data.find_options()[0]["size"] == 8  # the size is found although the headers of some files are damaged
    with pytest.raises(DataError, match=r"These files are missing, damaged .*05\.bmp, .*21\.bmp\.$"):
        data.setup()


def test_what_is_no_image_is_skipped_in_one_line(tmp_path, caplog):
    write(tmp_path / "set", 12)
    for name in (".DS_Store", "Thumbs.db", "a.txt", "b.txt"):
        (tmp_path / "set" / name).write_text("no image")
    with caplog.at_level("INFO"):
        data = loaded(folder(tmp_path))
    assert len(data.splits.train) + len(data.splits.test) == 12
    assert caplog.messages == ["4 files were skipped, whose formats are not read, such as .DS_Store."]


def test_labels_of_a_table_follow_their_images(tmp_path):
    x = write(tmp_path / "set" / "pictures", 20)
    lines = [f"pictures/{i:02d}.bmp,{10 - i % 3}" for i in reversed(range(20))]
    (tmp_path / "set" / "labels.csv").write_text("\n".join(["file,label", *lines, "gone.bmp,8"]))
    data = loaded(folder(tmp_path))
    assert data.class_names == ("8", "9", "10")
    for images, labels in zip(data.splits, data.labels, strict=True):
        assert labels.tolist() == [2 - row % 3 for row in rows_of(images, x)]


def test_images_of_12_bits_are_scaled_by_their_own_maximum(tmp_path):
    (tmp_path / "set").mkdir()
    x = np.random.default_rng(0).integers(0, 4000, (12, 6, 6), dtype=np.uint16)
    x[3, 0, 0] = 4001
    for i, image in enumerate(x):
        Image.fromarray(image).save(tmp_path / "set" / f"{i}.{'png' if i % 2 else 'tif'}")
    data = folder(tmp_path, channels=None)
    found, line = data.find_options()
    assert found["white"] == 4001
    assert found["channels"] == 1
    assert "12 grey images" in line
    pixels = np.rint(x / 4001 * 255).astype(np.uint8)
    images = torch.cat([(data := loaded(folder(tmp_path, channels=1))).splits.train, data.splits.test])
    assert {image.numpy().tobytes() for image in images} == {one.tobytes() for one in pixels}
    brighter = loaded(folder(tmp_path, channels=1, white=2000))
    assert brighter.splits.train.float().mean() > 1.4 * data.splits.train.float().mean()


def too_large():
    """Return the bytes of a small PNG file whose header says that the image has 180 megapixels."""
    header = struct.pack(">IIBBBBB", 18_000, 10_000, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", b""), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x)) for name, x in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: write(path / "new", 1), "holds folders and the image 00.bmp"),
        (
            lambda path: (path / "05.bmp").write_bytes((path / "05.bmp").read_bytes()[:60]),
            "These files are missing, damaged .*05.bmp",
        ),
        (lambda path: (path / "05.bmp").write_bytes(too_large()), "05.bmp has more than the 179 megapixels"),
        (
            lambda path: Image.new("RGB", (6, 7)).save(path / "05.bmp"),
            "05.bmp has the shape .3, 7, 6., and others .3, 6, 6.: set data.size",
        ),
        (lambda path: path.rename(path.with_name("moved")), "is not a folder with images.*set"),
        (lambda path: [(path / kind).mkdir() for kind in ("train", "test", "val")], "data.train="),
        (lambda path: [x.unlink() for x in path.glob("*.bmp") if x.name != "00.bmp"], "has 1 example, and none"),
    ],
)
def test_bad_folders_are_refused_by_the_file(spoil, sentence, tmp_path):
    write(tmp_path / "set", 12)
    spoil(tmp_path / "set")
    with pytest.raises(DataError, match=sentence):
        folder(tmp_path, split_seed=3).setup()
    assert prepared(tmp_path) == []


@pytest.mark.parametrize("size", [10_000, 0.5])
def test_sizes_that_leave_nothing_to_train_on_are_refused(size, tmp_path):
    write(tmp_path / "set", 12)
    with pytest.raises(DataError, match=r"nothing to train on: lower|none of them is for training"):
        folder(tmp_path, val_size=size, test_size=0.5).setup()


@pytest.mark.parametrize(("sizes", "side", "seed"), [([(20, 20)], 16, 0), ([(9, 7), (60, 90), (40, 33)], 32, 0)])
def test_a_run_finds_out_how_large_images_are_and_in_which_colours(sizes, side, seed, tmp_path):
    (tmp_path / "set").mkdir()
    for i, size in enumerate(size for size in sizes for _ in range(5)):
        Image.fromarray(gradient(i, size)[..., 1]).save(tmp_path / "set" / f"{i}.bmp")
    options = {"test_size": 0.3, "val_size": 0.3, "split_seed": seed}
    data = folder(tmp_path, channels=None, **options)
    found, _ = data.find_options()
    n = found["batch_size"]
    assert 0 < n < 5 * len(sizes)
    assert found == {"size": side, "channels": 1, "batch_size": n}
    whole = loaded(folder(tmp_path, **options, **found))
    assert whole.splits.train.shape == (n, 1, side, side)
    assert whole.find_options()[0] == {}


@pytest.mark.parametrize("size", [None, 10])
def test_photographs_lie_as_a_viewer_shows_them(size, tmp_path):
    upright = gradient(0, (20, 40))
    # The pixels that are stored for each EXIF orientation. A viewer turns or mirrors them so that they look like the
    # upright image.
    stored = {1: upright, 2: upright[:, ::-1], 5: upright.transpose(1, 0, 2), 6: np.rot90(upright, 1)}
    (tmp_path / "set").mkdir()
    exif = Image.Exif()
    for orientation, array in stored.items():
        exif[0x0112] = orientation
        Image.fromarray(np.ascontiguousarray(array)).save(tmp_path / "set" / f"{orientation}.png", exif=exif)
    write_images(tmp_path / "other", 2, size=(20, 40))
    data = loaded(folder(tmp_path, test=tmp_path / "set", val=tmp_path / "other", size=size))
    expected = Image.fromarray(upright)
    if size:
        expected = expected.crop((10, 0, 30, 20)).resize((10, 10), Image.Resampling.BILINEAR)
    assert len(data.splits.test) == 4
    for image in data.splits.test:
        np.testing.assert_array_equal(image, np.asarray(expected).transpose(2, 0, 1))


SMALL = ("model.network.channels=2", "model.h_dim=3", "model.head_dim=4", "posterior.network.widths=[2,2,2]")
FAST = ("debug=fast", "data.batch_size=64", "trainer.max_steps=2", "callbacks.figures=null")


def test_a_folder_of_images_needs_no_other_key_and_its_run_is_resumed(tmp_path, caplog):
    write(tmp_path / "mine", 30, size=(20, 28), mode="L")
    write(tmp_path / "held out", 3, size=(20, 28), mode="L", seed=1)
    folders = [f"data.root={tmp_path}", f"outputs_dir={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    own = ["method=bidsm", "data=image_folder", "data.split_seed=1", f"data.path={tmp_path / 'mine'}"]
    own += [f"data.test={tmp_path / 'held out'}", *folders, *SMALL, *FAST]
    metrics = run.train(configure(*own))
    assert metrics["test/posterior_fisher"] > 0
    stored = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert (stored.data.size, stored.data.channels) == (16, 1)
    assert 20 < stored.data.batch_size < 30
    assert stored.sizes.v_shape == stored.method.energy.network.v_shape == [1, 16, 16]
    again = evaluate(tmp_path / "again", tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert again == of_checkpoint(metrics)
    splits = {"path": tmp_path / "mine", "test": tmp_path / "held out", "split_seed": 1, "val_size": 0.1}
    seen = ImageFolder(root=tmp_path, **splits)._listing.files[0]
    write(tmp_path / "mine" / "new", 2, size=(20, 28), mode="L", seed=2)
    for path in (tmp_path / "mine" / "new").iterdir():
        path.rename(tmp_path / "mine" / f"new {path.name}")
    (tmp_path / "mine" / "new").rmdir()
    own.append(f"data.batch_size={stored.data.batch_size}")
    with caplog.at_level("WARNING"):
        assert run.train(configure(*own, "trainer.max_steps=3", "ckpt=last"))["iteration"] == 3
    assert any(re.search(r"changed since .*last\.ckpt was written: \d added", x) for x in caplog.messages)
    seen.rename(tmp_path / "held out" / "seen.bmp")
    for again in (
        lambda: evaluate(tmp_path / "again", tmp_path / "run" / "checkpoints" / "last.ckpt"),
        lambda: run.train(configure(*own, "trainer.max_steps=4", "ckpt=last")),
    ):
        with pytest.raises(ConfigError, match=r"trained on 1 of the \d test examples.*resume\.allow=\[data\.splits\]"):
            again()


def test_flattened_images_train_a_model_of_vectors(tmp_path):
    write_mnist(tmp_path, n_train=30, n_test=8)
    data = ["data=mnist", f"data.root={tmp_path}", "data.flatten=true", "data.size=8", "data.val_size=0.1"]
    short = ["debug=fast", "trainer.max_steps=2", "model.h_dim=3", "callbacks.figures=null", f"run_dir={tmp_path}/run"]
    assert run.train(configure("method=dsm", "model=grbm", *data, *short))["iteration"] == 2
    assert OmegaConf.load(tmp_path / "run" / "config.yaml").method.energy.v_dim == 64
