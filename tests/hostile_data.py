"""Data files of somebody who means harm or of nobody's making: each case writes one, and says how it is read."""

import builtins
import codecs
import functools
import gzip
import io
import os
import pickle
import struct
import zipfile
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.io import savemat
from scipy.sparse import csc_matrix

from eblvm_lit.data.celeba import CelebA
from eblvm_lit.data.cifar10 import CIFAR10
from eblvm_lit.data.frey_face import FreyFace
from eblvm_lit.data.image_folder import ImageFolder
from eblvm_lit.data.mnist import MNIST
from eblvm_lit.data.svhn import SVHN
from hostile import Calls, pickles
from image_files import idx, pixels, write_celeba, write_cifar10, write_images, write_mnist, write_svhn

__all__ = ["Case", "data_cases"]

TERABYTE = 1 << 40


class Case(NamedTuple):
    """A file, how it is read, and why it is accepted, if that is right."""

    name: str
    write: object  # a function of an empty folder
    read: object  # a function of the folder
    right: str | None = None


# --- what stands in a file's place ------------------------------------------------------------------------


def of_bytes(content):
    return lambda path: path.write_bytes(content)


def fresh(make):
    """Whatever was there is replaced."""

    def write(path):
        if path.is_dir() and not path.is_symlink():
            for inner in path.iterdir():
                inner.unlink()
            path.rmdir()
        path.unlink(missing_ok=True)
        make(path)

    return write


PLACES = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/full"),
    "a link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to(path.with_name("pipe"))),
    "a terabyte of holes": lambda path: (path.touch(), os.truncate(path, TERABYTE)),
    "nothing": of_bytes(b""),
    "a page": of_bytes(b"<html>404</html>"),
}


def zeros(n_bytes, wrap=31):
    """A compressed stream of zeros that is made in no time: one block, over and over."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wrap)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (n_bytes >> 20)


# --- CIFAR10: pickles -------------------------------------------------------------------------------------

RECONSTRUCT, *_ = np.zeros(0, np.uint8).__reduce__()
U1 = np.dtype("u1")
WHOLE = bytes(4 * 3072)


def array(shape=(4, 3072), dtype=U1, by_columns=False, raw=WHOLE, version=1):
    """An array as a pickle describes it, with any state."""
    return Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(version, shape, dtype, by_columns, raw))


def type_of(name, *state):
    """A dtype as a pickle describes it, with any state."""
    return Calls(np.dtype, name, False, True, state=state)


def batch(data=None, labels=(1, 2, 3, 4), protocol=2, **more):
    content = {"data": array() if data is None else data, "labels": list(labels), **more}
    return pickle.dumps(content, protocol)


def with_raw(operations, protocol=b"\x80\x02"):
    """A batch with one more entry, whose value is made by these operations."""
    return protocol + b"}(" + batch()[2:-1] + operations + b"u."


def before(operations):
    """A batch before which these operations are run."""
    return b"\x80\x04" + operations + batch()[2:]


CIFAR = {
    "strides beyond the buffer": batch(Calls(np.ndarray, (4, 3072), U1, WHOLE, 0, (10**9, 1))),
    "an offset beyond the buffer": batch(Calls(np.ndarray, (4, 3072), U1, WHOLE, 10**9)),
    "an offset before the buffer": batch(Calls(np.ndarray, (4, 3072), U1, WHOLE, -4096)),
    "negative strides": batch(Calls(np.ndarray, (4, 3072), U1, WHOLE, 0, (-3072, 1))),
    "strides of zero": batch(Calls(np.ndarray, (4, 3072), U1, b"0", 0, (0, 0))),
    "pointers as pixels": batch(array(dtype=np.dtype("O"), shape=(4, 384))),
    "pointers as labels": batch(labels=[array((4,), np.dtype("O"), raw=b"A" * 32)]),
    "an array of pointers as labels": pickle.dumps({"data": array(), "labels": array((4,), np.dtype("O"))}, 2),
    "a type with a longer item": batch(array(dtype=type_of("V1", 3, "|", None, None, None, 1 << 20, 1, 0))),
    "a byte of a megabyte": batch(array(dtype=type_of("u1", 3, "|", None, None, None, 1 << 20, 1, 0), raw=b"")),
    "a type with fields beyond it": batch(
        array(dtype=type_of("V8", 3, "|", None, ("a",), {"a": (np.dtype("O"), 10**6)}, 8, 1, 27))
    ),
    "a structured type": batch(array(dtype=np.dtype([("a", "u1")]))),
    "text": batch(array((4, 768), np.dtype("<U1"))),
    "a date": batch(array((4, 384), np.dtype("M8[s]"))),
    "big-endian words": batch(array((4, 1536), np.dtype(">u2"))),
    "floats": batch(array((4, 768), np.dtype("f4"))),
    "signed bytes": batch(array(dtype=np.dtype("i1"))),
    "truth values": batch(array(dtype=np.dtype("?"))),
    "columns first": batch(array(by_columns=True)),
    "an order that is a number": batch(array(by_columns=0)),
    "fewer bytes than the shape": batch(array(raw=WHOLE[:-1])),
    "more bytes than the shape": batch(array(raw=WHOLE + b"0")),
    "bytes that are a list": batch(array(raw=[0] * len(WHOLE))),
    "bytes that are text beyond bytes": batch(array(raw="€" * len(WHOLE))),
    "a negative size": batch(array((-4, -3072))),
    "sizes whose product overflows": batch(array((1 << 32, 1 << 32), raw=b"")),
    "a size of 10**4000": batch(array((10**4000, 3072))),
    "sizes that are no integers": batch(array((4.0, 3072))),
    "sizes that are truths": batch(array((True, 4 * 3072))),
    "a shape that is a list": batch(array([4, 3072])),
    "no rows": batch(array((0, 3072), raw=b""), labels=()),
    "one dimension": batch(array((4 * 3072,))),
    "three dimensions": batch(array((4, 3, 1024))),
    "other pixels": batch(array((3, 4096))),
    "a state that is none": batch(Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state="state")),
    "a state of three": batch(Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (4, 3072), U1))),
    "no state": batch(Calls(RECONSTRUCT, np.ndarray, (0,), b"b")),
    "a type for an array": batch(U1),
    "an array for a type": batch(array(dtype=array())),
    "bytes for an array": batch(WHOLE),
    "a list for an array": batch([[0] * 3072] * 4),
    "a dictionary for an array": batch({"shape": (4, 3072)}),
    "an array of an array": batch(array(raw=array())),
    "a label that is text": batch(labels=["1", 2, 3, 4]),
    "a label that is a float": batch(labels=[1.0, 2, 3, 4]),
    "a label that is a truth": batch(labels=[True, 2, 3, 4]),
    "a label that is nothing": batch(labels=[None, 2, 3, 4]),
    "a negative label": batch(labels=[-1, 2, 3, 4]),
    "a label beyond the classes": batch(labels=[10, 2, 3, 4]),
    "a label of 10**30": batch(labels=[10**30, 2, 3, 4]),
    "fewer labels": batch(labels=[1, 2, 3]),
    "more labels": batch(labels=[1, 2, 3, 4, 5]),
    "labels that are an array": pickle.dumps({"data": array(), "labels": array((4,), raw=b"\1\2\3\4")}, 2),
    "labels that are text": pickle.dumps({"data": array(), "labels": "1234"}, 2),
    "labels in a dictionary": pickle.dumps({"data": array(), "labels": {0: 1, 1: 2, 2: 3, 3: 4}}, 2),
    "no labels": pickle.dumps({"data": array()}, 2),
    "no data": pickle.dumps({"labels": [1, 2, 3, 4]}, 2),
    "a list of both": pickle.dumps([array(), [1, 2, 3, 4]], 2),
    "a number": pickle.dumps(7),
    "a key that is a list": b"\x80\x02}]K\x01s.",
    "a dictionary with a key and no value": b"\x80\x02}(K\x01u.",
    "a memo that is not there": b"\x80\x02h\x07.",
    "a number of a million digits": before(b"I" + b"9" * 10**6 + b"\n"),
    "a number longer than the file": b"\x80\x02\x8b\xff\xff\xff\x7f1.",
    "a number of negative length": b"\x80\x02\x8b\xff\xff\xff\xff1.",
    "bytes longer than the file": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"a.",
    "text longer than the file": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"a.",
    "a frame longer than memory": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"\x8e.",
    "a bytearray longer than memory": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "an extension": before(b"\x82\x010"),
    "a persistent object": b"\x80\x02Pname\n.",
    "an instance": b"(S'true'\nios\nsystem\n.",
    "an object of its class": b"(cos\nsystem\nS'true'\no.",
    "a new object": b"\x80\x02cbuiltins\nobject\n)\x81.",
    "a pop below the stack": b"\x80\x0200000.",
    "a mark that is not there": b"\x80\x02e.",
    "two million operations": before(b"N" * 2_000_001),
    "a hundred thousand open lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "one text encoded without end": b"\x80\x02c_codecs\nencode\nq\x00X\x00\x00\x10\x00"
    + b"a" * (1 << 20)
    + b"q\x01"
    + b"h\x00h\x01X\x06\x00\x00\x00latin1\x86R" * 10_000
    + b".",
    "text of another encoding": batch(array(raw=Calls(codecs.encode, "a" * len(WHOLE), "utf-16"))),
    "an array added to": batch()[:-1] + b"U\x04datahU\x01.",
    "arrays of protocol 5": pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": [1, 2, 3, 4]}, 5),
    "a function": batch(builtins.print),
    "operations that are none": b"\x80\x02\xfe\xff.",
    "the middle of it": batch()[20:],
    "the half of it": batch()[:4000],
    "no stop": batch()[:-1],
    "numpy's own file": b"\x93NUMPY\x01\x00",
    "packed": gzip.compress(batch()),
}
CIFAR_RIGHT = {
    "of protocol 0": (batch(np.zeros((4, 3072), np.uint8), protocol=0), "protocols 0 to 4 describe arrays by bytes"),
    "of protocol 4": (batch(np.zeros((4, 3072), np.uint8), protocol=4), "protocols 0 to 4 describe arrays by bytes"),
    "a dictionary that holds itself": (
        b"\x80\x02}q\xff" + b"U\x02meh\xff" + b"s(" + batch()[4:-2].split(b"(", 1)[-1] + b"u.",
        "nothing reads further entries",
    ),
    "a memo of two billion entries": (before(b"Nr\xff\xff\xff\x7f"), "a number in a memo is a name, not a size"),
    "what follows the end": (batch() + b"cos\nsystem\n(S'true'\ntR.", "a pickle ends at its stop"),
}


def read_cifar(folder):
    CIFAR10(root=folder, val_size=1).setup()


def spoiled_cifar(make):
    def write(folder):
        write_cifar10(folder)
        fresh(make)(folder / "cifar-10-batches-py" / "data_batch_3")

    return write


def executing(name, folder):
    """A batch that would execute something."""
    spoiled_cifar(of_bytes(batch(pickles(folder / "executed")[name])))(folder)


def cifar_cases():
    for name, content in CIFAR.items():
        yield Case(f"cifar: {name}", spoiled_cifar(of_bytes(content)), read_cifar)
    for name, (content, right) in CIFAR_RIGHT.items():
        yield Case(f"cifar: {name}", spoiled_cifar(of_bytes(content)), read_cifar, right)
    for name in pickles("sentinel"):
        yield Case(f"cifar: {name}", functools.partial(executing, name), read_cifar)
    for name, make in PLACES.items():
        yield Case(f"cifar: {name} in its place", spoiled_cifar(make), read_cifar)


# --- MNIST: IDX files -------------------------------------------------------------------------------------


def header(*sizes, kind=8, zeros=0, n_dims=None):
    return struct.pack(f">HBB{len(sizes)}I", zeros, kind, n_dims or len(sizes), *sizes)


PICTURES = pixels(5, 28, 28)
IDX = {
    "numbers of four bytes": header(5, 28, 28, kind=12) + bytes(4 * 5 * 784),
    "doubles": header(5, 28, 28, kind=14) + bytes(8 * 5 * 784),
    "no dimensions": header(n_dims=0) + PICTURES.tobytes(),
    "255 dimensions": header(5, 28, 28, n_dims=255) + PICTURES.tobytes(),
    "a magic number": b"\xff" + idx(PICTURES)[1:],
    "sizes whose product overflows": header(1 << 31, 1 << 31, 1 << 31),
    "four billion images": header((1 << 32) - 1, 28, 28) + PICTURES.tobytes(),
    "no images": header(0, 28, 28),
    "images without pixels": header(5, 0, 28),
    "wider images": idx(pixels(5, 28, 29)),
    "little-endian sizes": struct.pack("<HBB3I", 0, 8, 3, 5, 28, 28) + PICTURES.tobytes(),
    "a header alone": header(5, 28, 28),
    "half a header": header(5, 28, 28)[:9],
    "one byte more": idx(PICTURES) + b"0",
    "one byte less": idx(PICTURES)[:-1],
    "fewer images than labels": idx(PICTURES[:4]),
    "labels in their place": idx(np.arange(5, dtype=np.uint8)),
}
PACKED = {
    "zeros without end": zeros(1 << 32),
    "a header and zeros without end": gzip.compress(header(5, 28, 28)) + zeros(1 << 32),
    "packed twice": gzip.compress(gzip.compress(idx(PICTURES))),
    "another checksum": gzip.compress(idx(PICTURES))[:-8] + bytes(8),
    "half of it": gzip.compress(idx(PICTURES))[:2000],
    "something after it": gzip.compress(idx(PICTURES)) + b"something",
    "another method": b"\x1f\x8b\x07" + gzip.compress(idx(PICTURES))[3:],
    "a name without end": b"\x1f\x8b\x08\x08" + b"a" * 10**6,
    "not packed": idx(PICTURES),
}
LABELS = {"a label beyond the classes": [0, 1, 2, 3, 10], "a label of 255": [255] * 5}


def spoiled_mnist(name, make, packed=True):
    def write(folder):
        write_mnist(folder, packed=packed)
        fresh(make)(folder / "MNIST" / "raw" / name)

    return write


def read_mnist(folder):
    MNIST(root=folder, val_size=1).setup()


def mnist_cases():
    images, packed = "t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz"
    for name, content in IDX.items():
        yield Case(f"mnist: {name}", spoiled_mnist(images, of_bytes(content), packed=False), read_mnist)
    for name, content in PACKED.items():
        yield Case(f"mnist, packed: {name}", spoiled_mnist(packed, of_bytes(content)), read_mnist)
    for name, labels in LABELS.items():
        content = idx(np.array(labels, np.uint8))
        write = spoiled_mnist("t10k-labels-idx1-ubyte", of_bytes(content), packed=False)
        yield Case(f"mnist: {name}", write, read_mnist)
    for name, make in PLACES.items():
        yield Case(f"mnist, packed: {name} in its place", spoiled_mnist(packed, make), read_mnist)
    padded = gzip.compress(idx(PICTURES)) + bytes(512)
    write = spoiled_mnist(packed, of_bytes(padded))
    yield Case("mnist, packed: padded with zeros", write, read_mnist, "tapes pad so, and gzip reads it")
    write = spoiled_mnist(images, os.mkfifo)
    yield Case("mnist: a pipe beside the packed file", write, read_mnist, "the packed file is read")
    write = spoiled_mnist("t10k-labels-idx1-ubyte", of_bytes(PLACES and b""), packed=False)
    yield Case("mnist: no labels at all", write, read_mnist)


# --- SVHN and Frey faces: MATLAB files --------------------------------------------------------------------

HOUSES, DIGITS = pixels(32, 32, 3, 5), np.arange(1, 6, dtype=np.uint8)[:, None]


def mat(do_compression=False, **arrays):
    file = io.BytesIO()
    savemat(file, arrays, do_compression=do_compression)
    return file.getvalue()


def element(kind, content, announced=None, order="<"):
    n_bytes = len(content) if announced is None else announced
    return struct.pack(f"{order}II", kind, n_bytes) + content + bytes(-len(content) % 8)


def matrix(name, sizes, content, mclass=9, kind=2, flags=0, order="<"):
    """A variable with any sizes and content."""
    parts = element(6, struct.pack(f"{order}II", mclass | flags << 8, 0), order=order)
    parts += element(5, struct.pack(f"{order}{len(sizes)}i", *sizes), order=order) + element(1, name, order=order)
    return element(14, parts + element(kind, content, order=order), order=order)


HEADER = mat()[:128]
Y = mat(y=DIGITS)[128:]
SVHN_FILES = {
    "sparse images": mat(X=csc_matrix(np.eye(5)), y=DIGITS),
    "complex images": mat(X=HOUSES.astype(np.complex64), y=DIGITS),
    "images of doubles": mat(X=HOUSES.astype(float), y=DIGITS),
    "signed images": mat(X=HOUSES.astype(np.int8), y=DIGITS),
    "truths as images": mat(X=HOUSES > 7, y=DIGITS),
    "text as images": mat(X="text", y=DIGITS),
    "cells as images": mat(X=np.array([DIGITS, "text"], object), y=DIGITS),
    "a structure as images": mat(X={"a": HOUSES}, y=DIGITS),
    "three dimensions": mat(X=HOUSES[..., 0], y=DIGITS),
    "rows first": mat(X=HOUSES.transpose(3, 0, 1, 2), y=DIGITS),
    "no images": mat(y=DIGITS),
    "no labels": mat(X=HOUSES),
    "an empty list of images": mat(X=HOUSES[..., :0], y=DIGITS[:0]),
    "fewer labels": mat(X=HOUSES, y=DIGITS[:4]),
    "labels in a row": mat(X=HOUSES, y=DIGITS.T),
    "a label of zero": mat(X=HOUSES, y=DIGITS - 1),
    "a label of eleven": mat(X=HOUSES, y=DIGITS + 10),
    "half a label": mat(X=HOUSES, y=DIGITS + 0.5),
    "a label that is no number": mat(X=HOUSES, y=np.full((5, 1), np.nan)),
    "sparse labels": mat(X=HOUSES, y=csc_matrix(DIGITS)),
    "images twice": mat(X=HOUSES, y=DIGITS) + mat(X=HOUSES)[128:],
    "a variable that unpacks without end": HEADER + element(15, zeros(1 << 30, 15)) + Y,
    "a name that unpacks without end": mat(X=HOUSES, y=DIGITS) + element(15, zeros(1 << 30, 15)),
    "a variable longer than the file": HEADER + element(14, b"", announced=(1 << 32) - 1),
    "fewer pixels than the sizes": HEADER + matrix(b"X", (32, 32, 3, 5), b"0000") + Y,
    "more pixels than the sizes": HEADER + matrix(b"X", (32, 32, 3, 5), bytes(10**6)) + Y,
    "pixels longer than the file": HEADER + matrix(b"X", (32, 32, 3, 5), b"")[:-8] + b"\2\0\0\0\xff\xff\xff\x7f" + Y,
    "negative sizes": HEADER + matrix(b"X", (-32, -32, 3, 5), HOUSES.tobytes()) + Y,
    "sizes whose product overflows": HEADER + matrix(b"X", (1 << 30,) * 4, b"0000") + Y,
    "64 dimensions": HEADER + matrix(b"X", (1,) * 64, b"0000") + Y,
    "no dimensions": HEADER + matrix(b"X", (), b"0000") + Y,
    "a class of nobody": HEADER + matrix(b"X", (32, 32, 3, 5), HOUSES.tobytes(), mclass=250) + Y,
    "a function": HEADER + matrix(b"X", (32, 32, 3, 5), HOUSES.tobytes(), mclass=16) + Y,
    "an object": HEADER + matrix(b"X", (32, 32, 3, 5), HOUSES.tobytes(), mclass=3) + Y,
    "a flag of complex numbers": HEADER + matrix(b"X", (32, 32, 3, 5), HOUSES.tobytes(), flags=8) + Y,
    "a type of nobody": HEADER + matrix(b"X", (32, 32, 3, 5), HOUSES.tobytes(), kind=99) + Y,
    "matrices in a matrix": HEADER + matrix(b"X", (32, 32, 3, 5), matrix(b"X", (1,), b"0"), kind=14) + Y,
    "ten thousand variables": HEADER + matrix(b"a", (1, 1), b"0") * 10_000,
    "zeros": HEADER + bytes(10**6),
    "a header alone": HEADER,
    "half of it": mat(X=HOUSES, y=DIGITS)[:5000],
    "half of it, packed": mat(True, X=HOUSES, y=DIGITS)[:5000],
    "of version 7.3": b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + b"\x89HDF\r\n\x1a\n",
    "of version 4 with a size beyond memory": struct.pack("<5i", 50, 1 << 15, 1 << 15, 0, 2) + b"X\0" + bytes(64),
    "of version 4 with a negative size": struct.pack("<5i", 50, -1, 5, 0, 2) + b"X\0" + bytes(64),
    "of version 4 with a long name": struct.pack("<5i", 50, 1, 5, 0, 1 << 30) + b"X\0" + bytes(64),
}


def spoiled_svhn(make):
    def write(folder):
        write_svhn(folder)
        fresh(make)(folder / "test_32x32.mat")

    return write


def read_svhn(folder):
    SVHN(root=folder, val_size=1).setup()


def read_frey(folder):
    FreyFace(root=folder).setup()


def matlab_cases():
    for name, content in SVHN_FILES.items():
        yield Case(f"svhn: {name}", spoiled_svhn(of_bytes(content)), read_svhn)
    for name, make in PLACES.items():
        yield Case(f"svhn: {name} in its place", spoiled_svhn(make), read_svhn)
        yield Case(f"frey: {name} in its place", lambda folder, make=make: make(folder / "frey_rawface.mat"), read_frey)
    other = b"".ljust(124) + b"\1\0MI" + matrix(b"y", (5, 1), DIGITS.tobytes(), order=">")
    other += matrix(b"X", HOUSES.shape, HOUSES.tobytes("F"), order=">")
    yield Case("svhn: of the other order of bytes", spoiled_svhn(of_bytes(other)), read_svhn, "the header says so")
    doubles = mat(X=HOUSES, y=DIGITS.astype(float))
    yield Case("svhn: labels that are doubles", spoiled_svhn(of_bytes(doubles)), read_svhn, "MATLAB's usual numbers")
    more = mat(X=HOUSES, y=DIGITS, other={"a": 1})
    yield Case("svhn: a structure beside them", spoiled_svhn(of_bytes(more)), read_svhn, "nothing reads it")


# --- arrays that were prepared ----------------------------------------------------------------------------

N_IMAGES = 6


def npy(text, data=b"", version=b"\x01\x00"):
    """numpy's file with any header."""
    text = text.encode() if isinstance(text, str) else text
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text + data


def described(dtype="'|u1'", shape=(N_IMAGES, 3, 6, 6), order="False"):
    return npy(f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}}}", bytes(N_IMAGES * 108))


def saved(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def zipped(**entries):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


ARRAYS = {
    "a structured type": described("[('a', '|u1')]"),
    "a type with fields beyond it": described("{'names': ['a'], 'formats': ['u1'], 'offsets': [99999]}"),
    "text": described("'<U1'"),
    "dates": described("'<M8[s]'"),
    "big-endian words": described("'>u2'"),
    "floats": described("'<f4'"),
    "truths": described("'|b1'"),
    "pointers": described("'|O'"),
    "objects": saved(np.array([Calls(print, 1)] * 2, object), allow_pickle=True),
    "a type that is none": described("'nothing'"),
    "columns first": described(order="True"),
    "an order that is none": described(order="'yes'"),
    "no rows": described(shape=(0, 3, 6, 6)),
    "fewer rows": saved(np.zeros((N_IMAGES - 1, 3, 6, 6), np.uint8)),
    "more rows": saved(np.zeros((N_IMAGES + 1, 3, 6, 6), np.uint8)),
    "other pixels": saved(np.zeros((N_IMAGES, 3, 4, 9), np.uint8)),
    "no dimensions": described(shape=()),
    "one dimension": described(shape=(N_IMAGES * 108,)),
    "a negative size": described(shape=(-N_IMAGES, 3, 6, 6)),
    "a size beyond memory": described(shape=(1 << 60, 3, 6, 6)),
    "a size of 10**4000": described(shape=f"({'9' * 4000}, 3, 6, 6)"),
    "a size that is text": described(shape="('6', 3, 6, 6)"),
    "a shape that is a number": described(shape="6"),
    "a header that calls": npy("__import__('os').system('true')", bytes(N_IMAGES * 108)),
    "a header of parentheses": npy("(" * 5000, bytes(N_IMAGES * 108)),
    "a header that is a list": npy("[1, 2]", bytes(N_IMAGES * 108)),
    "a header that is not text": npy(b"\xff\xfe", bytes(N_IMAGES * 108)),
    "a header longer than the file": b"\x93NUMPY\x01\x00\xff\xff{",
    "a header of four gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "version 9": npy("{}", version=b"\x09\x00"),
    "cut off": described()[:-1],
    "longer than it says": described() + b"0",
    "an archive": zipped(**{"arr_0.npy": described()}),
    "an archive of nothing": zipped(),
    "a pickle": pickle.dumps(np.zeros((N_IMAGES, 3, 6, 6), np.uint8)),
}
ANEW = "what is no file is taken for missing, and the images are decoded anew"


@functools.cache
def prepared_name(folder):
    """Where the folder's images go."""
    data = ImageFolder(path=folder / "set", root=folder, test_size=1, val_size=1)
    data.setup()
    (path,) = (folder / "prepared").iterdir()
    return path


def read_folder(folder):
    ImageFolder(path=folder / "set", root=folder, test_size=1, val_size=1).setup()


def spoiled_array(make):
    def write(folder):
        write_images(folder / "set", N_IMAGES)
        fresh(make)(prepared_name(folder))

    return write


def array_cases():
    for name, content in ARRAYS.items():
        yield Case(f"array: {name}", spoiled_array(of_bytes(content)), read_folder)
    for name, make in PLACES.items():
        decoded = name not in ("a folder", "a terabyte of holes", "nothing", "a page")
        yield Case(f"array: {name} in its place", spoiled_array(make), read_folder, ANEW if decoded else None)


# --- images -----------------------------------------------------------------------------------------------


def picture(kind, mode="RGB", size=(6, 6), **options):
    file = io.BytesIO()
    Image.fromarray(pixels(*size, 3)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width=6, height=6, bits=8, colour=2, data=b"", more=b""):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + more + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def dds(flags, four=b"\0\0\0\0", bits=24, size=(6, 6)):
    head = struct.pack("<7I44x", 124, 0x1007, *size, 18, 0, 0)
    return b"DDS " + head + struct.pack("<II4s5I", 32, flags, four, bits, 255, 65280, 255 << 16, 0) + bytes(200)


AVIF = b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf"
IMAGES = {
    "a DDS of another kind of pixels": dds(0x80000),
    "a DDS of another compression": dds(4, b"ABCD"),
    "a DDS of DX10 and nothing": dds(4, b"DX10"),
    "a DDS without a head": b"DDS " + bytes(40),
    "a DDS of four billion pixels": dds(0x40, size=(65535, 65535)),
    "an AVIF without images": AVIF + bytes(100),
    "an AVIF of noise": AVIF + pixels(4000).tobytes(),
    "an AVIF cut off": AVIF,
    "a PNG of two billion pixels": png(65500, 32700),
    "a PNG of a hundred million pixels": png(10_000, 10_000),
    "a PNG without pixels": png(0, 0),
    "a PNG whose pixels are none": png(data=b"nothing"),
    "a PNG with fewer pixels": png(data=zlib.compress(bytes(20))),
    "a PNG of another depth": png(bits=7, data=zlib.compress(bytes(200))),
    "a PNG with a text without end": png(more=chunk(b"zTXt", b"a\0\0" + zeros(1 << 28, 15)), data=zlib.compress(b"")),
    "a PNG with a chunk longer than the file": png()[:33] + b"\x7f\xff\xff\xffIDAT",
    "a GIF cut off": picture("GIF")[:40],
    "a GIF without images": b"GIF89a\6\0\6\0\0\0\0;",
    "a BMP of two billion pixels": b"BM" + struct.pack("<IHHIIiiHHII", 0, 0, 0, 54, 40, 65500, 32700, 1, 24, 0, 0),
    "a BMP of another compression": b"BM" + struct.pack("<IHHIIiiHHII", 0, 0, 0, 54, 40, 6, 6, 1, 24, 77, 0),
    "a TIFF whose tags lie elsewhere": b"II*\0" + struct.pack("<I", 1 << 30),
    "a TIFF whose tags are a circle": b"II*\0\x08\0\0\0" + struct.pack("<H", 0) + struct.pack("<I", 8),
    "a TIFF of too many tags": b"II*\0\x08\0\0\0" + struct.pack("<H", 65535) + bytes(100),
    "a TIFF cut off": picture("TIFF")[:100],
    "a WEBP of noise": b"RIFF" + struct.pack("<I", 500) + b"WEBPVP8 " + pixels(500).tobytes(),
    "a WEBP cut off": picture("WEBP")[:40],
    "a JPEG cut off": picture("JPEG", size=(60, 60))[:700],
    "a JPEG without tables": b"\xff\xd8\xff\xc0\0\x11\x08\0\6\0\6\3\1\x22\0\2\x11\1\3\x11\1\xff\xd9",
    "a JPEG 2000 of noise": b"\0\0\0\x0cjP  \r\n\x87\n" + pixels(300).tobytes(),
    "an ICO of nothing": b"\0\0\1\0\1\0" + bytes(100),
    "an ICNS of nothing": b"icns" + struct.pack(">I", 8),
    "a PSD of nothing": b"8BPS\0\1" + bytes(20),
    "a PPM of two billion pixels": b"P6 65500 32700 255\n",
    "a PPM of letters": b"P6 a b c\n",
    "an EPS, which another program draws": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nquit\n",
    "a WMF, which another program draws": b"\xd7\xcd\xc6\x9a\0\0" + bytes(80),
    "an FLI of nothing": struct.pack("<IHH", 128, 0xAF11, 1) + bytes(120),
    "an SGI of nothing": b"\x01\xda\x01\x01\x00\x03" + bytes(10),
    "four colours": picture("TIFF", "CMYK"),
    "grey of sixteen bits": picture("PNG", "I;16"),
    "a palette": picture("PNG", "P"),
    "a picture with transparency": picture("PNG", "RGBA"),
    "a grey one among colours": picture("PNG", "L"),
    "another size": picture("PNG", size=(6, 7)),
    "a film of fonts": b"\0\1\0\0" + bytes(40),
}
ODD_NAMES = [b"two\nlines.png", b"\xff\xfe.png", b"[red]a[bold].png", b"\x1b[31m.png", "а\u202e.png".encode()]


def with_file(folder, name, make):
    """A folder of pictures one of which is spoiled."""
    write_images(folder / "set", N_IMAGES)
    path = folder / "set" / "03.png"
    path.unlink()
    make(folder / "set" / name)


def image_case(name, content):
    return Case(f"image: {name}", lambda folder: with_file(folder, "03.png", of_bytes(content)), read_folder)


def odd_names(name, content):
    return lambda folder: with_file(folder, os.fsdecode(name), of_bytes(content))


def deeper(folder):
    write_images(folder / "set" / "a", 3)
    write_images(folder / "set" / "b" / "c", 3)


def named(folder, name):
    """A folder of images with another name."""
    write_images(folder / name, N_IMAGES)
    (folder / "set").symlink_to(folder / name)


def image_cases():
    for name, content in IMAGES.items():
        yield image_case(name, content)
    for name, make in PLACES.items():
        yield Case(
            f"image: {name} in its place", lambda folder, make=make: with_file(folder, "03.png", make), read_folder
        )
    for name in ODD_NAMES:
        yield Case(f"image: damaged, named {name!a}", odd_names(name, b"damaged"), read_folder)
        yield Case(f"image: named {name!a}", odd_names(name, picture("PNG")), read_folder, "a name is no content")
    for kind, mode in (("JPEG", "RGB"), ("PNG", "RGB"), ("WEBP", "RGB"), ("AVIF", "RGB"), ("TIFF", "RGB")):
        noisy = bytearray(picture(kind, mode, (24, 24)))
        for at in np.random.default_rng(0).integers(len(noisy) // 3, len(noisy), 8):
            noisy[at] ^= 0x55
        yield Case(f"image: a {kind} with other bits", functools.partial(flipped, bytes(noisy)), read_either, "pixels")
    yield Case("image: folders in a folder of a class", deeper, read_folder)
    long = "é" * 120
    yield Case("image: a long name", lambda f: named(f, long), lambda f: read_named(f, long), "the array's is shorter")
    marked = "[red]x[bold]"
    yield Case("image: a name of markup", lambda f: named(f, marked), lambda f: read_named(f, marked), "it is text")
    yield Case("image: a pipe for a folder", lambda folder: os.mkfifo(folder / "set"), read_folder)
    yield Case("image: a name longer than names", lambda folder: None, lambda folder: read_named(folder, "a" * 300))


def flipped(content, folder):
    write_images(folder / "set", N_IMAGES, size=(24, 24))
    (folder / "set" / "03.png").write_bytes(content)


def read_either(folder):
    """Whether other bits are other pixels or damage is the format's matter."""
    from eblvm_lit.errors import DataError

    try:
        read_folder(folder)
    except DataError as error:
        if "03.png" not in str(error):
            raise


def read_named(folder, name):
    ImageFolder(path=folder / name, root=folder, test_size=1, val_size=1).setup()


# --- CelebA: lists ----------------------------------------------------------------------------------------

NAMES = [f"{i + 1:06d}.jpg" for i in range(8)]
ROWS = [f"{name}  " + " ".join(["1", "-1"] * 20) for name in NAMES]
TITLES = " ".join(f"A{k}" for k in range(40))
PARTS = "".join(f"{name} {part}\n" for name, part in zip(NAMES, (0, 0, 0, 1, 1, 2, 2, 2), strict=True))
LISTS = {
    "an image twice": ("list_eval_partition.txt", PARTS + "000001.jpg 2\n"),
    "a part of a million digits": ("list_eval_partition.txt", PARTS + "a.jpg " + "9" * 10**6),
    "a part of nobody": ("list_eval_partition.txt", PARTS + "a.jpg 3\n"),
    "a name that climbs": ("list_eval_partition.txt", PARTS + "../a.jpg 2\n"),
    "a name with a zero byte": ("list_eval_partition.txt", PARTS + "a\0.jpg 2\n"),
    "bytes that are no text": ("list_eval_partition.txt", b"\xff\xfe" + PARTS.encode()),
    "millions of empty lines": ("list_eval_partition.txt", b"\n" * (40 << 20)),
    "an attribute that is a letter": ("list_attr_celeba.txt", "\n".join(["8", TITLES, *ROWS[:-1], "000008.jpg a"])),
    "an attribute of two": ("list_attr_celeba.txt", "\n".join(["8", TITLES, *ROWS]).replace("-1", "2")),
    "an attribute of a megabyte": (
        "list_attr_celeba.txt",
        "\n".join(["8", TITLES, *ROWS[:-1], ROWS[-1] + "1" * (1 << 20)]),
    ),
    "fewer attributes": ("list_attr_celeba.txt", "\n".join(["8", TITLES, *ROWS[:-1], "000008.jpg 1"])),
    "one line": ("list_attr_celeba.txt", "8"),
}


def spoiled_celeba(name, make):
    def write(folder):
        write_celeba(folder)
        fresh(make)(folder / "celeba" / name)

    return write


def read_celeba(folder):
    CelebA(root=folder, size=8, val_size=2).setup()


def celeba_cases():
    for case, (name, content) in LISTS.items():
        content = content.encode() if isinstance(content, str) else content
        yield Case(f"celeba: {case}", spoiled_celeba(name, of_bytes(content)), read_celeba)
    for place in ("a pipe", "a link to nothing", "a link to itself", "a folder"):
        write = spoiled_celeba("list_attr_celeba.txt", PLACES[place])
        yield Case(f"celeba: {place} for attributes", write, read_celeba)
    write = spoiled_celeba("list_eval_partition.txt", os.mkfifo)
    yield Case("celeba: a pipe for the parts", write, read_celeba)
    write = spoiled_celeba("img_align_celeba", os.mkfifo)
    yield Case("celeba: a pipe for the photographs", write, read_celeba)


def data_cases():
    """All of them."""
    families = (cifar_cases, mnist_cases, matlab_cases, array_cases, image_cases, celeba_cases)
    return [case for family in families for case in family()]
