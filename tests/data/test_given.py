"""Tests of examples that are given in Python.

Each kind of object gives the array that it holds, and an object that is no array is refused in one sentence.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from eblvm_lit.data.array_files import ArrayFile
from eblvm_lit.data.digits import Digits
from eblvm_lit.data.given import as_points, examples_in
from eblvm_lit.errors import ConfigError

X = np.arange(6.0).reshape(3, 2)


class Pairs(Dataset):
    """A dataset of Pillow images with labels, which raises no IndexError after its last item."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return Image.fromarray(np.full((4, 5), i, dtype=np.uint8)), i


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.from_numpy(X))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8, np.int64, np.bool_])
def test_an_array_keeps_its_type(dtype):
    values = X.astype(dtype)
    for given in (values, torch.from_numpy(values), values.tolist()):
        found = examples_in(given)
        np.testing.assert_array_equal(found.values, values)
        assert isinstance(given, list) or found.values.dtype == dtype
        assert (found.labels, found.columns) == (None, ())


def test_a_frame_has_names_and_missing_values_are_nan():
    found = examples_in(pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}))
    assert found.columns == ("a", "b")
    assert found.values.tolist() == [[1, 0.5], [2, 1.5]]
    missing = examples_in(pd.DataFrame({"a": pd.array([1, None], dtype="Int64")})).values
    assert missing[0, 0] == 1
    assert np.isnan(missing[1, 0])


def test_a_dataset_is_stacked_with_its_labels():
    found = examples_in(Pairs())
    assert (found.values.shape, found.values.dtype, found.labels.tolist()) == ((3, 4, 5), np.uint8, [0, 1, 2])
    assert found.values[:, 0, 0].tolist() == [0, 1, 2]
    tensors = examples_in(TensorDataset(torch.from_numpy(X), torch.tensor([5, 6, 7])))
    np.testing.assert_array_equal(tensors.values, X)
    assert tensors.labels.tolist() == [5, 6, 7]
    stream = examples_in(Stream())
    np.testing.assert_array_equal(stream.values, X)
    assert stream.labels is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("points.npy", r"^data is a NumPy array, .* not of <U10: data=array data\.path=FILE reads a file"),
        ({"x": X}, "of numbers: .*not 'dict'"),
        (pd.DataFrame({"x": [1.0, 2.0], "kind": ["a", "b"]}), "of numbers: could not convert string to float: 'a'"),
        (np.array(["a"]), "of real numbers, not of <U1"),
        (X + 1j, "of real numbers, not of complex128"),
        ([[1.0, 2.0], [3.0]], "of numbers: "),
        ((X, X[:, 0]), "of numbers: "),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_in_one_sentence(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        examples_in(given)


def test_points_get_the_shape_of_the_model_and_bytes_its_values():
    pixels = np.arange(128, dtype=np.uint8).reshape(2, 8, 8)
    v = as_points(pixels, Digits(), (64,))
    torch.testing.assert_close(v, torch.from_numpy(pixels).reshape(2, 64) / 255)
    assert as_points(v.double(), Digits(), (64,)).dtype == torch.float64
    with pytest.raises(ConfigError, match=r"^v has the shape \(\), and this model takes \(B, 64\)"):
        as_points(3.0, Digits(), (64,))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.bool_])
def test_images_of_every_type_are_the_images_of_the_training(dtype):
    bits = np.arange(128).reshape(2, 8, 8) % 3 == 0
    torch.testing.assert_close(
        as_points(bits.astype(dtype), Digits(), (64,)).float(), torch.from_numpy(bits).reshape(2, 64).float()
    )
    if dtype != np.bool_:
        grey = np.arange(128).reshape(2, 8, 8)
        found = as_points((grey / 255 if dtype == np.float32 else grey).astype(dtype), Digits(), (64,))
        torch.testing.assert_close(found.float(), torch.from_numpy(grey).reshape(2, 64).float() / 255)


def test_images_in_another_range_are_refused():
    with pytest.raises(ConfigError, match="values up to 255, and images that are floats have the model's range"):
        as_points(np.full((2, 8, 8), 255.0), Digits(), (64,))
    with pytest.raises(ConfigError, match="whole numbers from -1 to 256"):
        as_points(np.array([-1, 256]).repeat(64).reshape(2, 8, 8), Digits(), (64,))


def test_columns_of_a_frame_are_taken_by_name(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    frame.to_csv(tmp_path / "a.csv", index=False)
    data = ArrayFile(path=tmp_path / "a.csv")
    expected = torch.from_numpy(frame.to_numpy())
    assert torch.equal(as_points(frame[["b", "a"]].assign(c=1.0), data, (2,)), expected)
    with pytest.raises(KeyError, match=r"'b'. not in index"):
        as_points(frame[["a"]], data, (2,))
    data = ArrayFile(path=tmp_path / "gone.csv", shape=[2], mean=[0, 0], std=[1, 1])
    assert torch.equal(as_points(frame, data, (2,)), expected)


def test_numbers_are_points_of_one_coordinate(tmp_path):
    np.save(tmp_path / "a.npy", np.linspace(0, 1.5, 60))
    assert as_points(np.zeros(5), ArrayFile(path=tmp_path / "a.npy"), (1,)).shape == (5, 1)


def test_whole_numbers_of_a_table_are_the_same_points_in_every_type(tmp_path):
    np.save(tmp_path / "counts.npy", np.arange(40, dtype=np.uint8).reshape(20, 2))
    table = ArrayFile(path=tmp_path / "counts.npy")
    counts = np.array([[3, 250], [0, 17]])
    for dtype in (np.uint8, np.int64, np.float32):
        assert as_points(counts.astype(dtype), table, (2,)).tolist() == counts.tolist()
