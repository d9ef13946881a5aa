"""Tests that the split of an image depends only on its content, not on its name or on other images."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eblvm_lit.data.folders.division import list_folders
from eblvm_lit.errors import DataError
from helpers.image_files import write_images

SIZES = {"val": 0.25, "test": 0.25}


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Write twenty-four random images, and return their files."""
    folder = tmp_path_factory.mktemp("pool") / "all"
    write_images(folder, 24, suffix="bmp")
    return sorted(folder.iterdir())


def placed(folder, files, names):
    """Copy files to a folder under other names, and return the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, name in zip(files, names, strict=True):
        shutil.copy(file, folder / f"{name}.bmp")
    return folder


def listed(folder, cache, **given_folders):
    found = list_folders(folder, given_folders, cache=cache, sizes=SIZES)
    return found, dict(zip(found.digests, np.repeat([0, 1, 2], found.counts).tolist(), strict=True))


@settings(deadline=None, max_examples=12)
@given(
    kept=st.lists(st.integers(0, 23), min_size=18, max_size=24, unique=True),
    copies=st.lists(st.integers(0, 23), max_size=3),
    names=st.permutations(range(24 + 3)),
)
def test_added_removed_renamed_and_copied_images_move_no_other(kept, copies, names, pool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("some")
    cache = folder / "prepared"
    whole, splits = listed(pool[0].parent, cache)
    chosen = [pool[i] for i in [*kept, *copies]]
    some, own = listed(placed(folder / "set", chosen, names[: len(chosen)]), cache)
    assert len(some.files) == len(chosen)
    assert all(splits[digest] == split for digest, split in own.items())  # a copy is in the split of its original
    in_order = [digest for digest in whole.digests if digest in own]
    assert [*dict.fromkeys(some.digests)] == in_order  # the order of the images does not depend on names either


def test_a_split_without_a_folder_is_taken_from_training_and_repeated_images_are_told(pool, tmp_path):
    placed(tmp_path / "train", pool[:20], range(20))
    test = placed(tmp_path / "test", pool[18:], range(6))
    found, _ = listed(tmp_path, tmp_path / "prepared", train=None)
    assert found.counts[2] == 6
    assert found.counts[0] + found.counts[1] == 20
    (repeated,) = found.notes
    assert "2 equal one in another split" in repeated
    assert str(test) in repeated


def test_classes_of_the_splits_are_the_same_and_tables_may_lie_above_them(pool, tmp_path):
    (tmp_path / "set").mkdir()
    for split, files in (("train", pool[:18]), ("test", pool[18:])):
        placed(tmp_path / "set" / split, files, [f"{split}{i}" for i in range(len(files))])
    rows = [f"train{i},{i % 2}" for i in range(18)] + [f"test{i},{i % 2}" for i in range(6)]
    (tmp_path / "set" / "labels.csv").write_text("\n".join(row.replace(",", ".bmp,") for row in rows))
    found, _ = listed(tmp_path / "set", tmp_path / "prepared")
    numbers = [int(file.stem.removeprefix("train").removeprefix("test")) % 2 for file in found.files]
    assert found.labels.tolist() == numbers
    assert found.class_names == ("0", "1")
    (tmp_path / "set" / "test" / "labels.csv").write_text("\n".join(f"test{i}.bmp,2" for i in range(6)))
    with pytest.raises(DataError, match=r"must have the same classes; 0 is in one\.$"):
        listed(tmp_path / "set", tmp_path / "prepared")
    (tmp_path / "set" / "labels.csv").unlink()
    with pytest.raises(DataError, match=r"must have the same classes; 2 is in one\.$"):
        listed(tmp_path / "set", tmp_path / "prepared")


def test_a_split_that_is_empty_by_chance_is_refused(pool, tmp_path):
    with pytest.raises(DataError, match=r"has 2 examples, and none of them is for \w+: .* data\.split_seed"):
        listed(placed(tmp_path / "set", pool[:2], range(2)), tmp_path / "prepared")
