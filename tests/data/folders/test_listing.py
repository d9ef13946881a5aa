"""Tests of folders of images: which are splits, which are classes, what is skipped and what is refused."""

import pytest

from eblvm_lit.data.folders.listing import folders_of_splits, list_images
from eblvm_lit.errors import DataError


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


def splits(folder):
    return {split: path.name for split, path in folders_of_splits(folder, {}).items()}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("train", "test"), {"train": "train", "test": "test"}),
        (("Train", "VALID", "testing"), {"train": "Train", "val": "VALID", "test": "testing"}),
        (("training", "Validation"), {"train": "training", "val": "Validation"}),
        (("train", "val"), {"train": "train", "val": "val"}),
        (("train",), {"train": "train"}),
    ],
)
def test_folders_of_usual_names_are_splits(names, expected, tmp_path):
    touch(tmp_path, *(f"{name}/a.png" for name in names), ".git/x", "__MACOSX/._a.png", "read me.txt")
    assert splits(tmp_path) == expected
    assert folders_of_splits(None, {"train": tmp_path}) == {"train": tmp_path}
    assert {*list_images(tmp_path).classes} == {*names}  # without splits, the folders are classes


def test_other_folders_are_classes(tmp_path):
    assert splits(touch(tmp_path, "cat/a.png", "trains/b.png")) == {"train": tmp_path.name}


def test_decoded_images_are_neither_a_split_nor_a_class_but_a_class_may_have_that_name(tmp_path):
    touch(tmp_path, "cat/a.png", "dog/b.png", "prepared/images_1x8x8.npy")
    found = list_images(tmp_path)
    assert found.classes == ["cat", "dog"]
    touch(tmp_path, "prepared/c.png")
    assert list_images(tmp_path).classes == ["cat", "dog", "prepared"]
    split = touch(tmp_path / "split", "train/a.png", "test/b.png", "prepared/images_1x8x8.npy")
    assert splits(split) == {"train": "train", "test": "test"}


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("train/a.png", "test/a.png", "cat/a.png"), "holds test, train and cat: keep only"),
        (("train/a.png", "car/a.png"), "holds train and car: .* set data.train="),
        (("train/a.png", "test/a.png", "loose.png"), "holds test, train and loose.png"),
        (("Train/a.png", "training/a.png"), "holds training and Train: keep only one folder of each split"),
        (("val/a.png", "test/a.png"), "none to train on"),
    ],
)
def test_splits_beside_others_are_never_taken_for_classes(names, sentence, tmp_path):
    with pytest.raises(DataError, match=sentence):
        splits(touch(tmp_path, *names))


def test_given_folders_take_the_place_of_found_ones(tmp_path):
    touch(tmp_path, "a/train/x.png", "a/test/x.png", "b/x.png")
    found = folders_of_splits(tmp_path / "a", {"train": None, "val": tmp_path / "b", "test": None})
    assert {split: path.name for split, path in found.items()} == {"train": "train", "val": "b", "test": "test"}
    for path, given in ((None, {"val": tmp_path / "b"}), (tmp_path / "a", {"train": tmp_path / "b"})):
        with pytest.raises(DataError, match=r"either data\.path or data\.train"):
            folders_of_splits(path, given)


def test_images_of_a_class_lie_at_any_depth(tmp_path):
    found = list_images(
        touch(tmp_path, "dog/a.PNG", "cat/deep/er/b.jpeg", "cat/c", "cat/film.MP4", "cat/.hidden.png", "eel/d.HEIC")
    )
    assert [path.name for path in found.files] == ["c", "b.jpeg", "a.PNG"]
    assert found.classes == ["cat", "cat", "dog"]
    assert found.skipped == [".hidden.png", "d.HEIC", "film.MP4"]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("cat/a.png", "b.png"), "holds folders and the image b.png"),
        (("notes.txt",), "holds no images"),
    ],
)
def test_what_would_be_left_out_unnoticed_is_refused(names, sentence, tmp_path):
    with pytest.raises(DataError, match=sentence) as refusal:
        list_images(touch(tmp_path, *names))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("name", "what"), [("a.zip", "unpack"), ("a.csv", "data=array")])
def test_a_file_in_place_of_a_folder_is_refused(name, what, tmp_path):
    with pytest.raises(DataError, match=what):
        list_images(touch(tmp_path, name) / name)


def test_a_broken_link_is_an_image_that_is_not_there_and_no_skipped_file(tmp_path):
    touch(tmp_path, "a.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "nowhere.png")
    found = list_images(tmp_path)
    assert [path.name for path in found.files] == ["a.png", "b.png"]
    assert not found.skipped
