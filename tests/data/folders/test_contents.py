"""Tests of the digests of files and of their pages: what changes a digest, and which files are read only once."""

import numpy as np
import pytest
from PIL import Image

from eblvm_lit.data.folders import contents as module
from eblvm_lit.data.folders.contents import contents_of
from helpers.image_files import write_images


def save_pages(path, pages, **options):
    first, *others = map(Image.fromarray, pages)
    first.save(path, save_all=True, append_images=others, **options)


@pytest.fixture
def read(tmp_path):
    def found(pattern="*", **options):
        files = sorted((tmp_path / "set").glob(pattern))
        return contents_of(files, folder=tmp_path / "prepared", name="set", **options)

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


def test_pages_have_digests_of_their_own_that_other_pages_do_not_change(read, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (5, 6, 6), dtype=np.uint8)
    save_pages(tmp_path / "set" / "a.tif", x[:3])
    before = read()
    assert before.page.tolist() == [0, 1, 2]
    save_pages(tmp_path / "set" / "a.tif", x[[4, 0, 1, 2, 3]], compression="tiff_lzw")
    after = read()
    assert after.digests()[1:4] == before.digests()
    save_pages(tmp_path / "set" / "b.tif", x[:2])
    both = read()
    assert both.source.tolist() == [0] * 5 + [1] * 2
    assert both.digests()[5:] == before.digests()[:2]  # equal pages of two files have equal digests


def test_damaged_files_are_found_only_if_asked_and_pages_that_cannot_be_counted_are_not_lost(read, tmp_path):
    write_images(tmp_path / "set", 3, size=(40, 40))
    (tmp_path / "set" / "01.png").write_bytes((tmp_path / "set" / "01.png").read_bytes()[:900])
    (tmp_path / "set" / "gone.png").symlink_to("nowhere")
    save_pages(tmp_path / "set" / "z.tif", np.zeros((3, 6, 6), dtype=np.uint8))
    whole = (tmp_path / "set" / "z.tif").read_bytes()
    (tmp_path / "set" / "z.tif").write_bytes(whole[: len(whole) // 2])
    assert read(check=True).damaged.tolist() == [1, 3, 4]
    found = read()
    assert found.damaged.tolist() == [4]
    assert found.page.tolist() == [0, 0, 0, 0, -1]


def test_the_peak_is_that_of_all_images_of_16_bits(read, tmp_path):
    write_images(tmp_path / "set", 1)
    assert read().peak == -1
    Image.fromarray(np.full((3, 3), 900, dtype=np.uint16)).save(tmp_path / "set" / "a.png")
    assert read().peak == 900
    save_pages(tmp_path / "set" / "b.tif", np.array([[[5, 7]], [[0, 3000]]], dtype=np.uint16))
    assert read().peak == 3000
