"""Small files in the formats of published data sets.

Importing this module makes the data modules accept these files, although their checksums are not the published ones.
"""

import gzip
import hashlib
import pickle
import struct

import numpy as np
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from eblvm_lit.data import frey_face

# The listed MD5 sums are removed, so that torchvision accepts the random images of these tests.
for kind in (datasets.CIFAR10, datasets.CIFAR100):
    for listed in (kind.train_list, kind.test_list):
        listed[:] = [[name, None] for name, _ in listed]
    kind.meta["md5"] = None
for entry in datasets.SVHN.split_list.values():
    entry[2] = None
datasets.CelebA.file_list[:] = [(address, None, name) for address, _, name in datasets.CelebA.file_list]


def pixels(*shape, seed=0):
    """Return random bytes of a given shape."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    """Return the bytes of an IDX file."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(root, n_train=12, n_test=5, folder="MNIST", packed=True):
    """Write the four IDX files of MNIST, and return the arrays by name."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, n in (("train", n_train), ("t10k", n_test)):
        arrays[f"{part}-images-idx3-ubyte"] = pixels(n, 28, 28, seed=n)
        arrays[f"{part}-labels-idx1-ubyte"] = pixels(n, seed=n + 1) % 10
    for name, array in arrays.items():
        path = raw / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return arrays


def write_cifar10(root, n=4):
    """Write the six pickle files of CIFAR-10 with n images each; return pixels (6, n, 3, 32, 32) and labels (6, n)."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    data = pixels(6, n, 3, 32, 32)
    labels = pixels(6, n, seed=1) % 10
    for name, x, y in zip(names, data, labels, strict=True):
        content = {"data": x.reshape(n, 3072), "labels": y.tolist(), "filenames": [f"{i}.png" for i in range(n)]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}, protocol=2))
    return data, labels


def write_frey(root, faces=None):
    """Write the MATLAB file of the Frey faces (560, 1965), make the data module accept it, and return the faces."""
    faces = pixels(560, 1965) if faces is None else faces
    savemat(root / frey_face.FACES, {"ff": faces})
    accept_frey(root)
    return faces


def accept_frey(root):
    """Make the data module accept the file of Frey faces in this folder, by adding its checksum to the known ones."""
    frey_face.SHA256.add(hashlib.sha256((root / frey_face.FACES).read_bytes()).hexdigest())


def write_svhn(root, n_train=7, n_test=5):
    """Write the two MATLAB files of SVHN; return for each the pixels (32, 32, 3, n) and labels in {1..10}."""
    root.mkdir(parents=True, exist_ok=True)
    arrays = []
    for name, n in (("train", n_train), ("test", n_test)):
        x = pixels(32, 32, 3, n, seed=n)
        y = np.arange(n, dtype=np.uint8)[:, None] % 10 + 1
        savemat(root / f"{name}_32x32.mat", {"X": x, "y": y})
        arrays.append((x, y))
    return arrays


def gradient(i, size=(218, 178)):
    """Return a smooth picture uint8 (H, W, 3), which JPEG compression hardly changes and whose halves differ."""
    y, x = np.mgrid[: size[0], : size[1]]
    return np.stack([x, y // 2 + 5 * i, x * 0 + 10 * i], axis=-1).astype(np.uint8)


def write_celeba(root, parts=(0, 0, 0, 1, 1, 2, 2, 2), attributes=True):
    """Write the photographs 000001.jpg, ... and the lists of CelebA; return the attributes (n, 40) as 0 and 1."""
    folder = root / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True, exist_ok=True)
    names = [f"{i + 1:06d}.jpg" for i in range(len(parts))]
    for i, name in enumerate(names):
        Image.fromarray(gradient(i)).save(folder / "img_align_celeba" / name, quality=95)
    (folder / "list_eval_partition.txt").write_text(
        "".join(f"{name} {part}\n" for name, part in zip(names, parts, strict=True))
    )
    values = pixels(len(parts), 40) % 2
    if attributes:
        lines = [str(len(parts)), " ".join(f"A{k}" for k in range(40))]
        lines += [
            f"{name}  " + " ".join("1" if a else "-1" for a in row) for name, row in zip(names, values, strict=True)
        ]
        (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    return values


def write_images(folder, n, *, size=(6, 6), mode="RGB", suffix="png", seed=0):
    """Write random images 00.png, ... into a folder, and return their pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = {"RGB": (n, *size, 3), "RGBA": (n, *size, 4), "L": (n, *size)}[mode]
    x = pixels(*shape, seed=seed)
    for i, image in enumerate(x):
        Image.fromarray(image).save(folder / f"{i:02d}.{suffix}")
    return x
