"""Tests of the digests of files: what changes a digest, and which files are read only once."""

import numpy as np
import pytest
from PIL import Image

from eblvm_lit.data.folders import contents as module
from eblvm_lit.data.folders.contents import contents_of
from eblvm_lit.errors import DataError
from helpers.image_files import write_images


@pytest.fixture
def read(tmp_path):
    def found():
        return contents_of(sorted((tmp_path / "set").iterdir()), folder=tmp_path / "prepared", name="set")

    (tmp_path / "set").mkdir()
    return found


def test_files_are_read_once_and_again_when_one_has_changed(read, tmp_path, monkeypatch):
    write_images(tmp_path / "set", 4)
    first = read()
    with monkeypatch.context() as closed:
        closed.setattr(module, "_content_of", None)
        again = read()
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    Image.new("L", (4, 4)).save(tmp_path / "set" / "02.png")
    changed = read()
    assert [a == b for a, b in zip(first.digests(), changed.digests(), strict=True)] == [True, True, False, True]


def test_a_file_of_several_pages_is_refused(read, tmp_path):
    pages = [Image.new("L", (6, 6), i) for i in range(3)]
    pages[0].save(tmp_path / "set" / "one.tif")
    read()
    pages[0].save(tmp_path / "set" / "stack.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match=r"stack\.tif has several pages: save each"):
        read()


def test_the_peak_is_that_of_all_images_of_16_bits(read, tmp_path):
    write_images(tmp_path / "set", 1)
    assert read().peak == -1
    Image.fromarray(np.full((3, 3), 900, dtype=np.uint16)).save(tmp_path / "set" / "a.png")
    assert read().peak == 900
    Image.fromarray(np.array([[0, 3000]], dtype=np.uint16)).save(tmp_path / "set" / "b.tif")
    assert read().peak == 3000
    whole = (tmp_path / "set" / "b.tif").read_bytes()
    (tmp_path / "set" / "b.tif").write_bytes(whole[: len(whole) // 2])
    assert read().peak == 900  # decoding names all damaged files
