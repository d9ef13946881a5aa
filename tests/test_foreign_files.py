"""Data files and checkpoints from elsewhere: none runs anything, ends the process or is read beyond its bounds."""

import contextlib
import json
import os
import pickle
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import loadmat, savemat

from eblvm_lit.data.array_pickles import read_pickle
from eblvm_lit.data.matlab_files import Expected, read_matlab
from eblvm_lit.data.prepared_files import decode_once, open_image
from eblvm_lit.errors import DataError
from eblvm_lit.utils.foreign_files import read_bounded
from eblvm_lit.utils.tensor_files import check_tensors, load_tensors
from hostile_worker import CPU

TESTS = Path(__file__).parent
GIGABYTE = 1 << 30


def test_every_hostile_file_ends_in_a_sentence_or_is_accepted_for_a_reason(honest, tmp_path):
    torch.save(honest, tmp_path / "honest.ckpt")
    (tmp_path / "cases").mkdir()
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(TESTS / "hostile_worker.py"), str(tmp_path / "honest.ckpt")],
        cwd=tmp_path / "cases",
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 250
    wrong = {
        name: case for name, case in found.items() if case["outcome"] != ("accepted" if case["right"] else "sentence")
    }
    assert not wrong
    assert set(Counter(case["outcome"] for case in found.values())) == {"sentence", "accepted"}
    assert not [name for name, case in found.items() if case["executed"]]
    assert not [name for name, case in found.items() if case["seconds"] > CPU or case["memory"] > GIGABYTE]
    assert not [name for name, case in found.items() if not case["text"].isprintable()]
    assert not [name for name, case in found.items() if case["outcome"] == "sentence" and case["text"][-1] not in ".:"]


# --- what honest files hold -------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(5))
def test_a_pickle_is_read_as_pickle_reads_it(protocol):
    x = np.random.default_rng(0).integers(0, 256, (3, 7), dtype=np.uint8)
    honest = {"data": x, "labels": [3, -1, 2**40], "names": ["a", b"\xff\x00", ("é", None, True)], 7: {"x": []}}
    found = read_pickle(pickle.dumps(honest, protocol))
    np.testing.assert_array_equal(found.pop("data").uint8(3, -1), x)
    del honest["data"]
    assert found == honest


def test_a_text_is_not_taken_for_a_name_of_a_function():
    for text in ("_reconstruct", "dtype", "encode"):
        with pytest.raises(ValueError, match="calls what is no part of an array"):
            read_pickle(b"\x80\x02U" + bytes([len(text)]) + text.encode() + b")R.")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "i8", "f4", "f8"])
def test_a_matlab_file_is_read_as_scipy_reads_it(dtype, packed, tmp_path):
    path, random = tmp_path / "a.mat", np.random.default_rng(0)
    arrays = {name: random.integers(0, 100, shape).astype(dtype) for name, shape in (("X", (4, 3, 2)), ("y", (1, 1)))}
    savemat(path, {"other": {"a": "text"}, **arrays}, do_compression=packed)
    found = read_matlab(path, {"X": Expected((4, -1, 2), None), "y": Expected((1, 1), arrays["y"].dtype.name)}, "", "")
    for name, array in arrays.items():
        assert found[name].dtype == loadmat(path)[name].dtype == dtype
        np.testing.assert_array_equal(found[name], array)


def test_numbers_that_a_matlab_file_stores_in_fewer_bytes_are_those_of_their_class(tmp_path):
    savemat(tmp_path / "a.mat", {"X": np.array([[1.0, 2.0, 250.0]])})
    content = (tmp_path / "a.mat").read_bytes()
    at = content.index(struct.pack("<II", 9, 24))
    content = content[:at] + struct.pack("<HH3sx", 2, 3, b"\1\2\xfa")
    content = content[:132] + struct.pack("<I", len(content) - 136) + content[136:]
    (tmp_path / "a.mat").write_bytes(content)
    found = read_matlab(tmp_path / "a.mat", {"X": Expected((1, 3), "float64")}, "", "")["X"]
    assert found.tolist() == loadmat(tmp_path / "a.mat")["X"].tolist() == [[1.0, 2.0, 250.0]]


# --- what tensors may be ----------------------------------------------------------------------------------


def test_dense_tensors_of_any_layout_are_read(tmp_path):
    whole = torch.arange(60.0).view(3, 4, 5)
    tensors = {
        "transposed": whole.permute(2, 0, 1),
        "a column": whole[:, 1],
        "every second": whole[::2],
        "one row, expanded along nothing": whole[:1].expand(1, 4, 5),
        "a number": torch.tensor(1.5, dtype=torch.float64),
        "none": torch.zeros(0, 5),
        "counts": torch.arange(4),
        "images": torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    torch.save(tensors, tmp_path / "a.pt")
    found = load_tensors(tmp_path / "a.pt")
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(("size", "stride"), [((2, 2), (1, 1)), ((2, 3), (2, 1)), ((3,), (0,)), ((2, 2), (3, 3))])
def test_overlapping_rows_are_refused(size, stride):
    with pytest.raises(ValueError, match=r"a\.0 repeats its numbers"):
        check_tensors({"a": [torch.as_strided(torch.zeros(9), size, stride)]})


def test_a_tensor_is_within_its_memory_to_the_last_number():
    x = torch.zeros(6)[1:]
    check_tensors({"x": x})
    x.untyped_storage().resize_(20)  # of the 24 bytes that it ends at
    with pytest.raises(ValueError, match="x lies beyond its memory"):
        check_tensors({"x": x})


# --- bounds -----------------------------------------------------------------------------------------------


def test_a_file_is_read_up_to_the_bound_and_not_beyond(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bounded(path, "", 5) == b"12345"
    with pytest.raises(DataError, match="a has more than 4 bytes: mend it"):
        read_bounded(path, "mend it.", 4)


def test_images_up_to_the_bound_are_decoded_and_larger_ones_are_not(tmp_path, monkeypatch):
    Image.new("L", (8, 4)).save(tmp_path / "a.png")
    monkeypatch.setattr("eblvm_lit.data.prepared_files.MAX_PIXELS", 32)
    with open_image(tmp_path / "a.png") as image:
        assert image.size == (8, 4)
    monkeypatch.setattr("eblvm_lit.data.prepared_files.MAX_PIXELS", 31)
    with pytest.raises(DataError, match=r"a.png has more than 31 pixels"), open_image(tmp_path / "a.png"):
        pass


def test_large_images_are_decoded_one_at_a_time(tmp_path, monkeypatch):
    inside, most = [], []

    def decode(path):
        with open_image(path) as image:
            inside.append(path)
            most.append(len(inside))
            time.sleep(0.005)  # in which the other threads would open theirs
            pixels = np.asarray(image)[None]
            inside.remove(path)
            return pixels

    files = [tmp_path / f"{i}.png" for i in range(24)]
    for path in files:
        Image.new("L", (64, 64)).save(path)
    monkeypatch.setattr("eblvm_lit.data.prepared_files.LARGE", 64 * 64 - 1)
    decode_once(tmp_path / "a.npy", files, decode, (1, 64, 64))
    assert set(most) == {1}


def test_no_program_is_started_to_draw_an_image(tmp_path, monkeypatch):
    for name in ("gs", "gswin32c"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    path = tmp_path / "a.eps"
    Image.new("RGB", (8, 8)).save(path)
    with Image.open(path) as image, contextlib.suppress(Exception):  # what was started draws nothing
        image.load()
    assert (tmp_path / "started").exists()  # as Pillow does
    (tmp_path / "started").unlink()
    with pytest.raises(DataError, match=r"a.eps is damaged or no image"), open_image(path) as image:
        image.load()
    assert not (tmp_path / "started").exists()


def test_a_name_of_markup_is_text(tmp_path, capsys):
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    decode_once(
        tmp_path / "[bold]x[red].npy", [tmp_path / "a.png"], lambda path: np.zeros((1, 8, 8), np.uint8), (1, 8, 8)
    )
    assert "Preparing [bold]x[red]" in capsys.readouterr().out
