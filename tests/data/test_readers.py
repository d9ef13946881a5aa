"""Tests of files of arrays and tables: what each format gives, and the message for each unusable file."""

from __future__ import annotations

import importlib.util
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.io import savemat

from eblvm_lit.data.readers import read
from eblvm_lit.data.tables import Names
from eblvm_lit.errors import DataError

X = np.array([[0.5, 10.0], [1.5, 20.25], [-2.0, 30.0]])
Y = np.array([0, 1, 1])


def frame():
    return pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "kind": ["a", "b", "b"]})


def write(path, kind):
    """Write X in one of the formats, with the labels Y where the format has a place for them."""
    writers = {
        "npy": lambda: np.save(path, X),
        "npz": lambda: np.savez(path, x=X, y=Y),
        "npz of two names": lambda: np.savez(path, points=X, kinds=Y),
        "csv": lambda: frame().to_csv(path, index=False),
        "csv with row numbers": lambda: frame().to_csv(path),
        "csv without names": lambda: np.savetxt(path, X, delimiter=","),
        "csv of savetxt": lambda: np.savetxt(path, X, delimiter=",", header="x,y"),
        "csv with semicolons": lambda: frame().to_csv(path, index=False, sep=";"),
        "csv with spaces": lambda: np.savetxt(path, X),
        "tsv": lambda: frame().to_csv(path, index=False, sep="\t"),
        "parquet": lambda: frame().to_parquet(path),
        "mat": lambda: savemat(path, {"X": X, "y": Y}),
        "pt": lambda: torch.save(torch.from_numpy(X), path),
        "pt of two": lambda: torch.save({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}, path),
        "pt of a pair": lambda: torch.save((torch.from_numpy(X), torch.from_numpy(Y)), path),
    }
    writers[kind]()
    return path


KIND = Names(label_column="kind")
HAS_PARQUET = importlib.util.find_spec("pyarrow") is not None
FORMATS = {
    "npy": (None, None, None),
    "npz": (None, None, Y),
    "npz of two names": (Names(key="points", label_key="kinds"), None, Y),
    "csv": (KIND, ("x", "y"), ["a", "b", "b"]),
    "csv with row numbers": (KIND, ("x", "y"), ["a", "b", "b"]),
    "csv without names": (None, None, None),
    "csv of savetxt": (None, ("x", "y"), None),
    "csv with semicolons": (KIND, ("x", "y"), ["a", "b", "b"]),
    "csv with spaces": (None, None, None),
    "tsv": (KIND, ("x", "y"), ["a", "b", "b"]),
    "mat": (None, None, Y),
    "pt": (None, None, None),
    "pt of two": (None, None, Y),
    "pt of a pair": (None, None, Y),
    **({"parquet": (KIND, ("x", "y"), ["a", "b", "b"])} if HAS_PARQUET else {}),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_values_the_names_and_the_labels(tmp_path, kind):
    names, columns, labels = FORMATS[kind]
    table = read(write(tmp_path / f"points.{kind.split()[0]}", kind), names)
    np.testing.assert_array_equal(table.values, X)
    assert table.columns == columns
    assert (table.labels is None) == (labels is None)
    if labels is not None:
        np.testing.assert_array_equal(table.labels, labels)


PARTS = {"train": X, "val": X[:1] + 1, "test": X[:2] - 1}


PATTERNS = ["x_{}", "{}_images", "{}_data", "{}"]


@pytest.mark.parametrize(
    ("pattern", "suffix"),
    [*((pattern, suffix) for pattern in PATTERNS for suffix in ("npz", "mat")), ("X-{}", "npz")],
)
def test_arrays_named_by_their_splits_are_one_table_with_splits(tmp_path, pattern, suffix):
    label = "y_{}" if pattern.startswith("x") else "{}_labels"
    arrays = {pattern.format(name): part for name, part in PARTS.items()}
    arrays |= {label.format(name): np.arange(len(part))[:, None] for name, part in PARTS.items()}
    path = tmp_path / f"points.{suffix}"
    if suffix == "npz":
        np.savez(path, **arrays)
    else:
        savemat(path, arrays)
    table = read(path)
    np.testing.assert_array_equal(table.values, np.concatenate([*PARTS.values()]))
    assert table.split.tolist() == ["train"] * 3 + ["val"] + ["test"] * 2
    np.testing.assert_array_equal(table.labels, [0, 1, 2, 0, 0, 1])


def test_key_names_arrays_of_all_splits_without_the_split_or_one_array(tmp_path):
    path = tmp_path / "points.npz"
    np.savez(path, train_left=X, train_right=X + 1, valid_left=X[:1], valid_right=X[:1] + 1, names=Y)
    with pytest.raises(DataError, match=r"has the arrays train_left \(3, 2\), .*: set data.key"):
        read(path)
    table = read(path, Names(key="right"))
    np.testing.assert_array_equal(table.values, np.concatenate([X, X[:1]]) + 1)
    assert table.split.tolist() == ["train"] * 3 + ["val"]
    one = read(path, Names(key="train_left"))
    np.testing.assert_array_equal(one.values, X)
    assert one.split is None


def test_an_array_without_a_split_is_for_training(tmp_path):
    path = tmp_path / "points.npz"
    np.savez(path, x=X, y=Y, x_test=X[:1], y_test=Y[:1], test_flags=Y)
    table = read(path)
    np.testing.assert_array_equal(table.values, np.concatenate([X, X[:1]]))
    assert table.split.tolist() == ["train"] * 3 + ["test"]
    np.testing.assert_array_equal(table.labels, [*Y, Y[0]])


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": X, "train_mask": Y, "test_mask": Y},
        {"data": X, "train_idx": Y[:2], "test_idx": Y[2:], "n_train": 2},
        {"x": X, "val_loss": Y[:1]},
        {"x": X, "images": Y},
        {"x_train": X},
        {"train": X},
        {"x_train": X, "n_test": 3},
    ],
)
def test_other_arrays_do_not_hide_the_examples(tmp_path, arrays):
    np.savez(tmp_path / "points.npz", **arrays)
    table = read(tmp_path / "points.npz")
    np.testing.assert_array_equal(table.values, X)
    assert table.split is None
    assert table.labels is None


def test_numerals_name_columns(tmp_path):
    pd.DataFrame(np.c_[X, Y]).to_csv(tmp_path / "points.csv", index=False)
    table = read(tmp_path / "points.csv", Names(label_column=2, columns=[1, 0]))
    np.testing.assert_array_equal(table.values, X[:, ::-1])
    np.testing.assert_array_equal(table.labels.astype(float), Y)


@pytest.mark.parametrize("index", [False, True])
def test_the_numbers_that_pandas_gives_to_columns_are_names(tmp_path, index):
    path = tmp_path / "points.csv"
    pd.DataFrame(X).to_csv(path, index=index)
    table = read(path)
    np.testing.assert_array_equal(table.values, X)
    assert table.columns == ("0", "1")
    path.write_text("0,1\n2,3\n4,5\n")  # whole numbers throughout: an example, not names
    assert len(read(path).values) == 3


def test_words_in_a_file_of_tensors_are_labels(tmp_path):
    torch.save({"x": torch.from_numpy(X), "y": ["a", "b", "b"]}, tmp_path / "points.pt")
    assert read(tmp_path / "points.pt").labels.tolist() == ["a", "b", "b"]


def test_arrays_of_splits_of_two_ranges_or_that_are_not_finite_are_refused(tmp_path):
    path = tmp_path / "points.npz"
    np.savez(path, x_train=np.zeros((3, 4, 4), np.uint8), x_test=np.zeros((3, 4, 4)))
    with pytest.raises(DataError, match="has splits of float64 and uint8, whose pixels have different ranges"):
        read(path)
    np.savez(path, x_train=X, x_test=np.where(X == 20.25, np.nan, X))
    with pytest.raises(DataError, match="npz, test: row 1, column 1 is nan"):
        read(path)


def test_columns_are_chosen_by_name_or_index(tmp_path):
    table = read(write(tmp_path / "points.csv", "csv"), Names(columns=("y",)))
    assert table.columns == ("y",)
    assert table.values.tolist() == X[:, 1:].tolist()
    assert read(write(tmp_path / "points.npy", "npy"), Names(columns=(1,))).values.tolist() == X[:, 1:].tolist()
    bare = read(write(tmp_path / "bare.csv", "csv without names"), Names(columns=(0,), label_column=1))
    assert bare.values.tolist() == X[:, :1].tolist()
    assert bare.labels.tolist() == X[:, 1].tolist()


class Code:
    """An object that would run code if it were unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def with_value(value):
    x = X.copy()
    x[1, 1] = value
    return x


def text(content):
    return lambda path: path.write_text(content)


BAD = {
    "nan.npy": (lambda path: np.save(path, with_value(np.nan)), "row 1, column 1 is nan, the first of 1 such"),
    "inf.npy": (lambda path: np.save(path, np.full((3, 2), np.inf)), "row 0, column 0 is inf, the first of 6 such"),
    "nan_image.npy": (lambda path: np.save(path, with_value(np.nan)[:, None]), r"row 1, pixel \(0, 1\) is nan"),
    "text.npy": (lambda path: np.save(path, np.array(["a", "b"])), "holds an array of type <U1: save"),
    "complex.npy": (lambda path: np.save(path, X * 1j), "holds an array of type complex128: save"),
    "cell.mat": (lambda path: savemat(path, {"x": np.array([{}, "a"], dtype=object)}), "an array of type object: save"),
    "two.npz": (lambda path: np.savez(path, a=X, b=Y), r"has the arrays a \(3, 2\), b \(3,\): set data.key"),
    "labels.npz": (lambda path: np.savez(path, x=X, y=Y[:2]), "3 examples and 2 labels"),
    "tensors.pt": (lambda path: torch.save({"a": 1}, path), "has the arrays : set data.key"),
    "text.csv": (text("x,y\n1,2\n3,b\n"), "row 1, column y is 'b', and no number"),
    "missing.csv": (text("x,y\n1,2\n3,\n"), "row 1, column y is 'nan', and no number, as in 1 rows"),
    "short.csv": (text("1,2\n3\n"), "row 1, column 1 is 'nan'"),
    "decimals.csv": (text("x;y\n1,5;2\n"), "row 0, column x is '1,5', and no number"),
    "points.xlsx": (text("x"), "no file of a known format"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, name):
    write, message = BAD[name]
    write(tmp_path / name)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "write", "error"),
    [
        ("objects.npy", lambda path: np.save(path, np.array([Code()]), allow_pickle=True), ValueError),
        ("objects.npz", lambda path: np.savez(path, x=np.array([Code()])), ValueError),
        ("objects.pt", lambda path: torch.save(Code(), path), pickle.UnpicklingError),
    ],
)
def test_nothing_is_unpickled(tmp_path, name, write, error):
    write(tmp_path / name)
    with pytest.raises(error):
        read(tmp_path / name)


def test_wrong_names_are_sentences_that_list_the_known_ones(tmp_path):
    npz = write(tmp_path / "a.npz", "npz")
    csv = write(tmp_path / "a.csv", "csv")
    wrong = [
        (npz, Names(key="z"), r"no array 'z'; it has x \(3, 2\), y \(3,\): set data.key"),
        (npz, Names(label_key="z"), "set data.label_key to one"),
        (npz, Names(columns=("x",)), "no column 'x'; its columns are the numbers 0 to 1"),
        (npz, Names(label_column="y"), "data.label_key"),
        (csv, Names(columns=("z",)), "no column 'z'; its columns are x, y, kind"),
        (csv, Names(key="x"), "is a table: name its columns by data.columns"),
    ]
    for path, names, message in wrong:
        with pytest.raises(DataError, match=message):
            read(path, names)
    with pytest.raises(DataError, match="There is no file"):
        read(tmp_path / "nowhere.npy")


def test_two_columns_of_one_name_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x,z,y,y\n1,2,0,1\n3,4,1,0\n")
    with pytest.raises(DataError, match="several columns of one name"):
        read(tmp_path / "a.csv", Names(None, None, None, "y", None))
