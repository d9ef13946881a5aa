"""Tests of examples from array files: their splits, units, noise and images, and messages about bad files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

import eblvm_lit
from eblvm_lit.data.array_files import ArrayFile
from eblvm_lit.errors import ConfigError, DataError
from helpers.shell import evaluate
from helpers.stand_in import loaded


def points(n=400, d=2, seed=0):
    return np.random.default_rng(seed).normal(3, 2, size=(n, d)) * np.arange(1, d + 1)


def saved(path, x):
    np.save(path, x)
    return path


def in_units(data, split):
    return data.in_units(getattr(data.splits, split))


def sets_of(data):
    """Return each split as a set of rows, rounded so that float32 makes no difference."""
    return [
        {tuple(row) for row in in_units(data, name).double().numpy().round(3).tolist()} for name in data.splits._fields
    ]


def line(**options):
    return ArrayFile(**options).find_options()[1]


# ------------------------------------------------------------------ the division into splits


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), n_removed=st.integers(1, 100), added=st.integers(1, 100))
def test_added_removed_and_reordered_rows_move_no_other(tmp_path_factory, seed, n_removed, added):
    folder = tmp_path_factory.mktemp("rows")
    x = points()
    other = np.random.default_rng(seed).permutation(np.concatenate([x[n_removed:], points(added, seed=seed + 1)]))
    before, after = (
        sets_of(loaded(ArrayFile(path=saved(folder / f"{name}.npy", rows), split_seed=seed % 3)))
        for name, rows in (("a", x), ("b", other))
    )
    assert sum(map(len, before)) == 400
    for i, rows in enumerate(before):
        for j, others in enumerate(after):
            assert i == j or not rows & others


def test_equal_rows_land_in_one_split_and_files_of_equal_content_give_equal_splits(tmp_path):
    x = points()
    twice = loaded(ArrayFile(path=saved(tmp_path / "a.npy", np.concatenate([x, x]))))
    one, two, three = sets_of(twice)
    assert len(one | two | three) == len(one) + len(two) + len(three) == len(x)
    pd.DataFrame(x, columns=["x", "y"]).to_csv(tmp_path / "b.csv", index=False)
    once = loaded(ArrayFile(path=saved(tmp_path / "c.npy", x)))
    table = loaded(ArrayFile(path=tmp_path / "b.csv"))
    assert all(torch.equal(a, b) for a, b in zip(once.splits, table.splits, strict=True))


def test_splits_are_given_by_a_column_or_by_files_and_missing_ones_are_taken_from_training(tmp_path):
    x = points(60)
    frame = pd.DataFrame({"x": x[:, 0], "y": x[:, 1], "part": ["Train"] * 40 + ["valid"] * 10 + ["TEST"] * 10})
    frame.to_csv(tmp_path / "a.csv", index=False)
    column = loaded(ArrayFile(path=tmp_path / "a.csv", split_column="part"))
    files = {
        name: saved(tmp_path / f"{name}.npy", part)
        for name, part in zip(("train", "val", "test"), (x[:40], x[40:50], x[50:]), strict=True)
    }
    given_files = loaded(ArrayFile(**files))
    for data in (column, given_files):
        assert [len(split) for split in data.splits] == [40, 10, 10]
        torch.testing.assert_close(in_units(data, "val").double(), torch.from_numpy(x[40:50]), atol=1e-5, rtol=0)
    two = loaded(ArrayFile(train=files["train"], test=files["test"], val_size=0.3))
    assert len(two.splits.test) == 10
    assert len(two.splits.train) + len(two.splits.val) == 40
    frame.assign(part="a").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(DataError, match="column of splits has the word 'a': it must be"):
        loaded(ArrayFile(path=tmp_path / "b.csv", split_column="part"))


def test_a_file_with_an_array_for_each_split_gives_the_splits(tmp_path, caplog):
    x = points(60)
    path = tmp_path / "a.npz"
    np.savez(path, x_train=x[:40], y_train=np.arange(40), x_test=x[38:], y_test=np.arange(22))
    data = loaded(ArrayFile(path=path, val_size=0.3))
    assert len(data.splits.train) + len(data.splits.val) == 40
    assert data.labels.test.tolist() == list(range(22))
    torch.testing.assert_close(in_units(data, "test").double(), torch.from_numpy(x[38:]), atol=1e-5, rtol=0)
    np.savez(path, x_train=x[:40], x_val=points(5, seed=1), x_test=x[38:])
    line(path=path)
    assert "2 examples for testing are also for training, first row 0." in caplog.text
    with pytest.raises(DataError, match=r"arrays of several splits: set data\.path"):
        loaded(ArrayFile(train=path))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_that_are_repeated_across_given_splits_are_named(tmp_path, dtype, caplog):
    x = points(60)
    train = x[:40].astype(np.float32)
    files = {"train": saved(tmp_path / "a.npy", train), "test": saved(tmp_path / "b.npy", x[38:].astype(dtype))}
    files["val"] = saved(tmp_path / "c.npy", points(5, seed=1))
    line(**files)
    assert "2 examples for testing are also for training, first row 0." in caplog.text


# ------------------------------------------------------------------ the units of columns


def test_columns_are_standardised_by_the_training_split_and_converted_back(tmp_path):
    x = points(500, d=3)
    path = saved(tmp_path / "a.npy", x)
    data = loaded(ArrayFile(path=path))
    raw = loaded(ArrayFile(path=path, standardise=False))
    torch.testing.assert_close(data.splits.train.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.splits.train.std(0, correction=0), torch.ones(3))
    for split in data.splits._fields:
        torch.testing.assert_close(in_units(data, split), getattr(raw.splits, split))
    v = data.splits.test
    torch.testing.assert_close(data.from_units(data.in_units(v)), v)
    stds = raw.splits.train.double().std(0, correction=0)
    assert data.log_unit_of_v == pytest.approx(float(stds.log().sum()), abs=1e-5)
    assert raw.log_unit_of_v == 0
    assert raw.unit_of_v is None


def test_found_options_keep_the_units_when_the_file_changes_or_is_gone(tmp_path):
    x = points()
    path = saved(tmp_path / "a.npy", x)
    found, _ = ArrayFile(path=path).find_options()
    assert found.keys() == {"shape", "mean", "std"}
    before = loaded(ArrayFile(path=path, **found))
    saved(path, np.concatenate([x, points(300, seed=1) + 50]))
    after = loaded(ArrayFile(path=path, **found))
    assert len(after.splits.train) > len(before.splits.train)
    torch.testing.assert_close(after.in_units(torch.zeros(1, 2)), before.in_units(torch.zeros(1, 2)))
    path.unlink()
    gone = ArrayFile(path=path, **found)
    assert gone.event_shape == (2,)
    torch.testing.assert_close(gone.in_units(torch.zeros(1, 2)), before.in_units(torch.zeros(1, 2)))


def test_large_offsets_lose_no_precision(tmp_path):
    x = points() * 1e-3 + 1.6e9
    data = loaded(ArrayFile(path=saved(tmp_path / "a.npy", x)))
    order = np.argsort(x[:, 0])
    assert len(data.splits.train[:, 0].unique()) > 0.95 * len(data.splits.train)
    assert len(order) == 400


def test_whole_numbers_get_noise_and_the_line_says_so(tmp_path):
    x = points()
    x[:, 1] = np.random.default_rng(0).integers(0, 3, 400)
    path = saved(tmp_path / "a.npy", x)
    data = loaded(ArrayFile(path=path))
    column = in_units(data, "train")[:, 1]
    assert set(column.add(1e-4).floor().tolist()) <= {0.0, 1.0, 2.0, 3.0}
    assert len(column.unique()) > 250
    assert float(column.frac().mean()) == pytest.approx(0.5, abs=0.06)
    again = loaded(ArrayFile(path=path))
    assert torch.equal(again.splits.train, data.splits.train)
    assert "uniform noise in [0, 1) is added to column 1 of whole numbers" in line(path=path)
    bare = loaded(ArrayFile(path=path, dequantise=False))
    assert len(in_units(bare, "train")[:, 1].unique()) == 3
    assert "has no bound: data.dequantise=true" in line(path=path, dequantise=False)


def test_windows_follow_the_bulk_of_the_points(tmp_path):
    x = np.concatenate([points(1000), [[400, 400]]])
    data = loaded(ArrayFile(path=saved(tmp_path / "a.npy", x), standardise=False))
    for (low, high), column in zip(data.window, x[:-1].T, strict=True):
        assert low < np.quantile(column, 0.002) < np.quantile(column, 0.998) < high < 2 * np.max(column)
    assert loaded(ArrayFile(path=saved(tmp_path / "b.npy", points(d=3)))).window is None


# ------------------------------------------------------------------ images


@pytest.mark.parametrize("layout", ["grey", "first", "last"])
def test_images_of_every_layout_and_range_become_the_same_bytes(tmp_path, layout):
    x = np.random.default_rng(0).integers(0, 256, (50, 6, 5) if layout == "grey" else (50, 6, 5, 3), dtype=np.uint8)
    x = x.transpose(0, 3, 1, 2) if layout == "first" else x
    expected = x[:, None] if layout == "grey" else x if layout == "first" else x.transpose(0, 3, 1, 2)
    rows = {row.tobytes() for row in expected}
    for name, same in {"bytes": x, "unit": x / 255, "symmetric": x / 127.5 - 1, "whole": x.astype(float)}.items():
        data = loaded(ArrayFile(path=saved(tmp_path / f"{name}.npy", same)))
        assert data.image_shape == data.event_shape == expected.shape[1:]
        assert {row.numpy().tobytes() for split in data.splits for row in split} == rows
    flat = loaded(ArrayFile(path=saved(tmp_path / "flat.npy", x), flatten=True, value_range="symmetric"))
    assert flat.event_shape == (expected[0].size,)
    assert flat.as_float(flat.splits.train).min() < -0.9
    assert torch.equal(flat.as_bytes(flat.as_float(flat.splits.train)), flat.splits.train)


def test_floats_with_more_levels_than_bytes_stay_floats_in_the_range_of_the_model(tmp_path):
    x = np.random.default_rng(0).uniform(size=(50, 4, 4)).astype(np.float32)
    path = saved(tmp_path / "a.npy", x)
    unit = loaded(ArrayFile(path=path))
    symmetric = loaded(ArrayFile(path=path, value_range="symmetric"))
    assert {row.numpy().tobytes() for split in unit.splits for row in split} == {row.tobytes() for row in x}
    torch.testing.assert_close(symmetric.splits.test, 2 * unit.splits.test - 1)
    assert torch.equal(unit.as_bytes(unit.splits.test), symmetric.as_bytes(symmetric.splits.test))


def test_values_between_two_ranges_are_refused_and_dark_images_are_told(tmp_path, caplog):
    x = np.random.default_rng(0).uniform(0, 1, (80, 4, 4))
    with pytest.raises(DataError, match=r"has pixels from .* to 1\.0019: scale them to \[0, 1\]"):
        loaded(ArrayFile(path=saved(tmp_path / "a.npy", np.where(x == x.max(), 1.0019, x))))
    assert not caplog.text
    line(path=saved(tmp_path / "b.npy", np.rint(16 * x)))
    assert "No pixel is brighter than 16 of 255: if this is white, divide the images by 16." in caplog.text
    files = {
        "train": saved(tmp_path / "c.npy", np.rint(255 * x).astype(np.uint8)),
        "test": saved(tmp_path / "d.npy", x),
    }
    with pytest.raises(DataError, match="has splits of float64 and uint8, whose pixels have different ranges"):
        loaded(ArrayFile(**files))


def test_labels_are_complete_and_one_for_each_example(tmp_path, caplog):
    x = points(60)
    frame = pd.DataFrame({"x": x[:, 0], "kind": ["cat", "dog", None] * 20})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match=r"row [0-9]+ has no label"):
        loaded(ArrayFile(path=tmp_path / "a.csv", label_column="kind"))
    np.savez(tmp_path / "c.npz", x_train=x[:40], y_train=np.zeros(40), x_test=x[40:])
    assert loaded(ArrayFile(path=tmp_path / "c.npz")).labels is None
    assert "c.npz: the labels are ignored, because one split has none." in caplog.text


def test_numerals_that_are_names_are_held_out_by_name(tmp_path):
    frame = pd.DataFrame({"v": points(90, d=1)[:, 0], "kind": ["1", "2", "x"] * 30})
    frame.to_csv(tmp_path / "a.csv", index=False)
    data = loaded(ArrayFile(path=tmp_path / "a.csv", label_column="kind", held_out_classes=[1]))
    assert data.class_names == ("1", "2", "x")
    assert data.labels.train.unique().tolist() == [1, 2]
    with pytest.raises(ConfigError, match="leaves no example for training"):
        loaded(ArrayFile(path=tmp_path / "a.csv", label_column="kind", held_out_classes=[1, 2, "x"]))


def test_labels_follow_their_examples(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (80, 4, 4), dtype=np.uint8)
    y = x[:, 0, 0] // 64
    np.savez(tmp_path / "a.npz", x=x, y=y)
    data = loaded(ArrayFile(path=tmp_path / "a.npz"))
    for images, labels in zip(data.splits, data.labels, strict=True):
        assert torch.equal(images[:, 0, 0, 0].long() // 64, labels)
    assert line(path=tmp_path / "a.npz").startswith("80 grey images of 4 x 4 pixels (uint8), ")
    assert "labels 0, 1, 2, 3" in line(path=tmp_path / "a.npz")
    pd.DataFrame({"x": points(80)[:, 0], "kind": np.array(list("badc"))[y]}).to_csv(tmp_path / "a.csv", index=False)
    words = loaded(ArrayFile(path=tmp_path / "a.csv", label_column="kind"))
    assert words.class_names == ("a", "b", "c", "d")
    assert sorted(torch.cat(list(words.labels)).unique().tolist()) == [0, 1, 2, 3]


# ------------------------------------------------------------------ images and vectors that become bits


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.bool_, np.int64])
def test_images_of_the_numbers_0_and_1_are_black_and_white(tmp_path, dtype):
    x = np.random.default_rng(0).integers(0, 2, (40, 4, 4)).astype(dtype)
    data = loaded(ArrayFile(path=saved(tmp_path / "a.npy", x), binarize="threshold", flatten=True))
    v = torch.cat([data.as_float(part) for part in data.splits])
    assert sorted(map(tuple, v.int().tolist())) == sorted(map(tuple, x.reshape(40, 16).astype(int).tolist()))


def test_vectors_become_bits_without_noise_and_standardisation(tmp_path):
    x = np.random.default_rng(0).integers(0, 2, (400, 6))
    path = saved(tmp_path / "a.npy", x)
    data = loaded(ArrayFile(path=path, binarize="threshold"))
    v = torch.cat(list(data.splits))
    assert sorted(map(tuple, v.tolist())) == sorted(map(tuple, x.tolist()))
    assert data.unit_of_v is None
    assert "values become bits by data.binarize=threshold" in line(path=path, binarize="threshold")
    grey = loaded(
        ArrayFile(
            path=saved(tmp_path / "b.npy", np.random.default_rng(1).uniform(0.2, 0.4, (4000, 2))), binarize="stochastic"
        )
    )
    bits = torch.cat(list(grey.splits))
    assert set(bits.unique().tolist()) == {0.0, 1.0}
    assert bits.mean().item() == pytest.approx(0.3, abs=4 * (0.21 / 8000) ** 0.5)
    with pytest.raises(DataError, match=r"c\.npy has values outside of \[0, 1\], but data\.binarize needs values"):
        loaded(
            ArrayFile(
                path=saved(tmp_path / "c.npy", np.c_[np.linspace(0, 1, 99), np.full(99, 2.0)]), binarize="stochastic"
            )
        )


def test_vectors_are_images_of_the_given_size(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (80, 48), dtype=np.uint8)
    path = saved(tmp_path / "a.npy", x)
    colour = loaded(ArrayFile(path=path, image_size=(3, 4, 4)))
    assert colour.event_shape == (3, 4, 4)
    assert sorted(map(tuple, torch.cat(list(colour.splits)).flatten(1).tolist())) == sorted(map(tuple, x.tolist()))
    assert loaded(ArrayFile(path=path, image_size=(6, 8))).event_shape == (1, 6, 8)
    assert "80 grey images of 6 x 8 pixels (uint8)" in line(path=path, image_size=(6, 8))
    with pytest.raises(ConfigError, match=r"is \[C, H, W\] with C = 1 or 3"):
        ArrayFile(path=path, image_size=(4, 4, 3))
    with pytest.raises(
        ConfigError, match=r"of the shape \(48,\), and data\.image_size=\[1, 5, 5\] needs vectors of 25"
    ):
        ArrayFile(path=path, image_size=(5, 5))


# ------------------------------------------------------------------ messages and refusals


def test_the_line_says_what_was_understood(tmp_path):
    pd.DataFrame(points(), columns=["x", "y"]).to_csv(tmp_path / "a.csv", index=False)
    first = "400 points in 2 columns x, y (float64 as float32), "
    assert line(path=tmp_path / "a.csv").startswith(first)
    assert " for testing; columns are standardised" in line(path=tmp_path / "a.csv")
    few = ArrayFile(path=saved(tmp_path / "b.npy", points(40, d=9)))
    found, said = few.find_options()
    assert found["batch_size"] == len(loaded(few).splits.train)
    assert said.startswith("40 vectors in 9 columns (")
    assert f"batches of all {found['batch_size']} training examples" in said


def test_fractions_that_leave_nothing_to_train_on_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"has 400 examples, and none of them is for training: change data\.val_size"):
        ArrayFile(path=saved(tmp_path / "a.npy", points()), val_size=0.5, test_size=0.5)


BAD = {
    "constant": (
        lambda x: np.c_[x, np.full(len(x), 7.0)],
        "all training rows have one value in column 2: leave it out",
    ),
    "few": (lambda x: x[:3], "has 3 examples, and none of them is for"),
    "pixels": (lambda x: x.reshape(-1, 2, 2) * 300, "has pixels from .*: scale them to"),
    "channels": (lambda x: x.reshape(-1, 2, 2, 2), r"has the shape \(50, 2, 2, 2\): vectors are"),
}


@pytest.mark.parametrize("name", BAD)
def test_examples_that_cannot_be_used_are_one_sentence(tmp_path, name):
    change, message = BAD[name]
    with pytest.raises(DataError, match=message):
        loaded(ArrayFile(path=saved(tmp_path / "a.npy", change(points(200)))))


def test_constant_columns_are_kept_without_standardisation(tmp_path):
    path = saved(tmp_path / "a.npy", np.c_[points(), np.full(400, 7.5)])
    assert loaded(ArrayFile(path=path, standardise=False)).splits.train[:, 2].unique().tolist() == [7.5]


def test_files_and_labels_that_do_not_fit_together_are_refused(tmp_path):
    a, b = (saved(tmp_path / f"{d}.npy", points(d=d)) for d in (2, 3))
    with pytest.raises(ConfigError, match=r"needs a file: set either data\.path, or data\.train"):
        ArrayFile()
    with pytest.raises(ConfigError, match=r"needs a file: set either data\.path, or data\.train"):
        ArrayFile(path=a, test=b)
    with pytest.raises(ConfigError, match=r"needs a file: set either data\.path, or data\.train"):
        ArrayFile(val=a, test=a)
    with pytest.raises(DataError, match=r"Training examples have the shape \(2,\), and others \(3,\)"):
        ArrayFile(train=a, test=b)
    pd.DataFrame({"x": points()[:, 0], "kind": 0.5}).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match=r"a\.csv has the label 0\.5: labels are whole numbers"):
        ArrayFile(path=tmp_path / "a.csv", label_column="kind")


# ------------------------------------------------------------------ runs on a file


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a short run on points with two named columns, which have different means and widths."""
    folder = tmp_path_factory.mktemp("run")
    x = points(300) * [1, 10] + [100, -50]
    pd.DataFrame(x, columns=["height", "weight"]).to_csv(folder / "a.csv", index=False)
    small = ["marginal_model.widths=[8]", "trainer.max_steps=20", "n_validations=1", "sampler.n_steps=20"]
    words = ["data=array", f"data.path={folder / 'a.csv'}", *small, f"run_dir={folder / 'run'}", "compile=false"]
    with pytest.MonkeyPatch.context() as patch:  # as in the fixture unrendered
        patch.setattr(Figure, "savefig", lambda self, file, **options: Image.new("L", (1, 1)).save(file, "PNG"))
        return eblvm_lit.train(words)


def test_a_run_on_a_file_takes_the_model_that_fits_and_keeps_the_units(trained):
    assert type(trained.energy).__name__ == "MLPEnergy"
    assert trained.config.data.shape == [2]
    low, high = trained.data.in_units(torch.tensor(trained.data.window).T)
    assert (low < torch.tensor([100.0, -50.0])).all()
    assert (high > torch.tensor([104.0, 70.0])).all()
    assert {path.name for path in (trained.folder / "figures").iterdir()} >= {"density.png", "samples.png"}
    assert "corner.png" not in {path.name for path in (trained.folder / "figures").iterdir()}


def test_likelihoods_scores_and_samples_are_in_the_units_of_the_data(trained):
    x = trained.examples()
    assert float(x[:, 0].mean()) == pytest.approx(103, abs=2)
    v = trained.sample(50)
    assert float(v[:, 0].mean()) == pytest.approx(103, abs=6)
    log_p = trained.log_likelihood(x)
    assert float(log_p.mean()) == pytest.approx(trained.metrics["test/log_likelihood"], abs=1e-3)
    # The density integrates to one over the plane of the data, which shows that the Jacobian of the change of units has
    # the right sign.
    stds = trained.data.unit_of_v
    axes = [
        m + torch.linspace(-15, 15, 151, dtype=torch.float64) * s for m, s in zip(x.double().mean(0), stds, strict=True)
    ]
    nodes = torch.cartesian_prod(*axes)
    cell = float(torch.stack([axis[1] - axis[0] for axis in axes]).prod())
    assert float(trained.log_likelihood(nodes).exp().sum()) * cell == pytest.approx(1, abs=0.01)
    shift = torch.tensor([[0.0, 0.1]], dtype=torch.float64)
    point = x[:5].double()
    slope = (trained.log_likelihood(point + shift) - trained.log_likelihood(point - shift)) / 0.2
    torch.testing.assert_close(trained.score(point.float())[:, 1].double(), slope, rtol=1e-2, atol=1e-4)


@pytest.mark.usefixtures("unrendered")
def test_a_file_that_has_moved_is_found_in_its_new_folder(trained, tmp_path):
    source = trained.folder.parent / "a.csv"
    moved = source.rename(tmp_path / "a.csv")
    try:
        again = evaluate(tmp_path / "again", trained.folder / "checkpoints" / "last.ckpt", f"data_root={tmp_path}")
    finally:
        moved.rename(source)
    assert again["test/log_likelihood"] == pytest.approx(trained.metrics["test/log_likelihood"])


def test_columns_of_a_frame_may_have_another_order(trained):
    frame = pd.DataFrame(trained.examples().numpy(), columns=["height", "weight"])
    assert np.array_equal(trained.free_energy(frame[["weight", "height"]]), trained.free_energy(frame))


def test_a_run_without_metrics_has_a_likelihood(tmp_path):
    few = ["marginal_model.widths=[8]", "trainer.max_steps=2", "n_validations=1", "compile=false"]
    run = eblvm_lit.train(
        [*few, "callbacks.evaluation=null", "callbacks.figures=null", f"run_dir={tmp_path}"], data=points()
    )
    assert np.isfinite(run.log_likelihood(points())).all()


def test_labels_of_several_shapes_and_splits_without_training_rows_are_refused(tmp_path):
    for name, labels in (("train", np.eye(2)[[0, 1] * 20]), ("val", np.zeros(40)), ("test", np.ones(40))):
        np.savez(tmp_path / f"{name}.npz", x=points()[:40], y=labels)
    with pytest.raises(DataError, match="labels of several shapes"):
        loaded(ArrayFile(**{name: tmp_path / f"{name}.npz" for name in ("train", "val", "test")}))
    pd.DataFrame({"x": points()[:, 0], "part": "test"}).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match="no example for training"):
        loaded(ArrayFile(path=tmp_path / "a.csv", split_column="part"))
