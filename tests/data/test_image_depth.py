"""Tests of images with 16 bits per value, in several formats and with several numbers of channels."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from eblvm_lit.data.image_depth import peak_of
from eblvm_lit.data.prepared_files import decode_image, open_image
from eblvm_lit.errors import DataError


def write_png(path, x):
    """Write a PNG file with 16 bits per value, which Pillow cannot write for images in colour."""
    height, width, channels = x.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in x)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = (struct.pack(">I", len(c)) + name + c + struct.pack(">I", zlib.crc32(name + c)) for name, c in chunks)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_of_12_bits_is_not_black(channels, tmp_path):
    x = np.random.default_rng(0).integers(0, 4096, (5, 7, channels), dtype=np.uint16)
    if channels in (2, 4):
        x[..., -1] = 65535  # the last channel is the opacity, here of opaque pixels
    write_png(tmp_path / "a.png", x)
    colours = x[..., : {2: 1, 4: 3}.get(channels, channels)]
    with open_image(tmp_path / "a.png") as image:
        assert peak_of(tmp_path / "a.png", image) == colours.max()
    mode = "L" if channels < 3 else "RGB"
    found = decode_image(tmp_path / "a.png", mode=mode, crop=None, side=None, white=4095)
    np.testing.assert_array_equal(found, np.rint(colours / 4095 * 255).transpose(2, 0, 1))
    dark = decode_image(tmp_path / "a.png", mode=mode, crop=None, side=None)
    np.testing.assert_array_equal(dark, np.rint(colours / 65535 * 255).transpose(2, 0, 1))


@pytest.mark.parametrize("suffix", ["tif", "pgm"])
def test_other_formats_of_16_bits(suffix, tmp_path):
    x = np.array([[0, 100], [3000, 4000]], dtype=np.uint16)
    path = tmp_path / f"a.{suffix}"
    if suffix == "tif":
        Image.fromarray(x).save(path)
    else:
        path.write_bytes(b"P5 2 2 65535\n" + x.astype(">u2").tobytes())
    with open_image(path) as image:
        assert peak_of(path, image) == 4000
    assert decode_image(path, mode="L", crop=None, side=None, white=4000).tolist() == [[[0, 6], [191, 255]]]


def test_numbers_of_32_bits_need_a_white(tmp_path):
    path = tmp_path / "a.tif"
    Image.fromarray(np.array([[0.0, 0.5, 2.0]], dtype=np.float32)).save(path)
    with pytest.raises(DataError, match=r"a\.tif has numbers of 32 bits.*set data\.white"):
        decode_image(path, mode="L", crop=None, side=None)
    assert decode_image(path, mode="L", crop=None, side=None, white=1.0).tolist() == [[[0, 128, 255]]]


def test_colours_of_16_bits_in_tiff_are_refused(tmp_path):
    x = np.zeros((2, 2, 3), dtype=np.uint16)
    path = tmp_path / "a.tif"
    tags = ((256, 2), (257, 2), (258, 0), (259, 1), (262, 2), (273, 0), (277, 3), (278, 2), (279, 24))
    start = 8 + 2 + 12 * len(tags) + 4
    values = {258: start, 273: start + 6}
    entries = b"".join(struct.pack("<HHII", t, 3, 3 if t == 258 else 1, values.get(t, v)) for t, v in tags)
    header = b"II*\0" + struct.pack("<IH", 8, len(tags))
    path.write_bytes(header + entries + struct.pack("<I", 0) + struct.pack("<HHH", 16, 16, 16) + x.tobytes())
    with pytest.raises(DataError, match=r"a\.tif has colours of 16 bits.*save it as PNG"):
        decode_image(path, mode="RGB", crop=None, side=None)
