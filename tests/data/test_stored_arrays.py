"""Tests of arrays that are given in Python: training, evaluating, resuming and moving work as for files."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import eblvm_lit
from eblvm_lit.data import stored_arrays
from eblvm_lit.data.stored_arrays import arrays_to_store
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.runs import run as runtime
from helpers.shell import configure

SHORT = [
    "kind=vectors",
    "sizes.h_dim=4",
    "model.energy.network.widths=[8]",
    "trainer.max_steps=20",
    "method.compile=false",
    "callbacks.progress=null",
    "n_validations=2",
]
SHORT += ["callbacks.figures=null", "sampler.n_steps=20"]
X = np.random.default_rng(0).normal(5, 2, size=(500, 2))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return eblvm_lit.train([*SHORT, f"run_dir={tmp_path_factory.mktemp('runs') / 'given'}"], data=X)


def test_a_run_of_an_array_is_that_of_its_file(trained, tmp_path):
    np.save(tmp_path / "points.npy", X)
    words = ["data=array", f"data.path={tmp_path / 'points.npy'}", f"run_dir={tmp_path / 'run'}"]
    same = eblvm_lit.train([*SHORT, *words])
    tests = [name for name in same.metrics if name.startswith("test/")]
    assert tests
    assert {name: trained.metrics[name] for name in tests} == {name: same.metrics[name] for name in tests}
    for split in ("train", "val", "test"):
        assert torch.equal(trained.examples(split), same.examples(split))


def test_the_folder_of_a_run_holds_its_data_and_may_be_moved(trained, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "moved")
    run = eblvm_lit.load(tmp_path / "moved")
    assert run.data.train.parent == tmp_path / "moved"
    assert torch.equal(run.examples(), trained.examples())
    evaluation = configure(f"ckpt={tmp_path / 'moved'}", f"run_dir={tmp_path / 'again'}", name="evaluate")
    metrics = runtime.evaluate(evaluation)
    assert metrics["test/fisher"] == trained.metrics["test/fisher"]
    for file in (tmp_path / "moved").glob("given_*.npz"):
        file.unlink()
    run = eblvm_lit.load(tmp_path / "moved")  # the model needs no data to compute scores and samples
    np.testing.assert_array_equal(run.score(X[:3]), trained.score(X[:3]))
    assert torch.equal(run.sample(3), trained.sample(3))
    with pytest.raises(DataError, match=r"There is no file .*moved/given_\w+\.npz"):
        run.examples()


def test_a_run_is_resumed_with_the_same_arrays_and_no_others(trained, tmp_path):
    longer = [*SHORT, "trainer.max_steps=30"]
    outputs = f"outputs_dir={trained.folder.parent}"
    run = eblvm_lit.train([*longer, "ckpt=last", outputs, f"run_dir={tmp_path / 'on'}"], data=torch.from_numpy(X))
    assert run.iteration == 30
    folder = tmp_path / "other"
    with pytest.raises(ConfigError, match=r"was trained with data\.train=given_\w+\.npz, not given_\w+\.npz"):
        eblvm_lit.train([*longer, f"ckpt={trained.folder}", f"run_dir={folder}"], data=X + 1)
    assert [*folder.glob("given_*")] == []  # data that are refused leave no file
    before = {path.name for path in trained.folder.iterdir()}
    with pytest.raises(ConfigError, match="already contains a run"):
        eblvm_lit.train([*SHORT, f"run_dir={trained.folder}"], data=X + 1)
    assert {path.name for path in trained.folder.iterdir()} == before


def test_labels_names_and_given_splits_arrive(tmp_path):
    frame = pd.DataFrame(X, columns=["height", "weight"])
    labels = np.where(X[:, 0] > 5, "tall", "small")
    given = arrays_to_store(
        frame, labels=labels, test=(X[:40] + 0.5, labels[:40]), validation=(X[:30] - 0.5, labels[:30])
    )
    with given.stored_in(tmp_path):
        data = stored_arrays.StoredArrays(run_folder=tmp_path, **given.names)
        data.setup()
    assert [len(split) for split in data.splits] == [500, 30, 40]
    assert data.class_names == ("small", "tall")
    assert data.labels.train.tolist() == (labels == "tall").astype(int).tolist()
    torch.testing.assert_close(data.in_units(data.splits.train), torch.from_numpy(X).float())
    line = data.find_options()[1]
    assert "height, weight" in line
    assert "500 for training, 30 for validation, 40 for testing" in line


def test_columns_of_a_frame_are_chosen_by_name(tmp_path):
    given = arrays_to_store(pd.DataFrame(X, columns=["height", "weight"]))
    with given.stored_in(tmp_path):
        data = stored_arrays.StoredArrays(run_folder=tmp_path, columns=["weight"], standardise=False, **given.names)
        data.setup()
        with pytest.raises(DataError, match="has no column 'size'; its columns are height, weight"):
            stored_arrays.StoredArrays(run_folder=tmp_path, columns=["size"], **given.names)
    assert sorted(torch.cat(list(data.splits))[:, 0].tolist()) == sorted(X[:, 1].astype(np.float32).tolist())
    assert data.column_names == ("weight",)


def test_missing_labels_are_refused():
    with pytest.raises(ConfigError, match="data has a row without a label"):
        arrays_to_store(np.zeros((2, 2)), labels=["a", None])


def test_images_are_given_in_any_layout(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, size=(60, 8, 9, 3), dtype=np.uint8)
    shapes = set()
    for i, given in enumerate((images, images.transpose(0, 3, 1, 2), images / 255)):
        folder = tmp_path / str(i)
        with (stored := arrays_to_store(given, validation=given[:5], test=given[:5])).stored_in(folder):
            data = stored_arrays.StoredArrays(run_folder=folder, **stored.names)
            data.setup()
        shapes |= {(data.image_shape, data.splits.train.dtype)}
        np.testing.assert_array_equal(data.splits.train.numpy(), images.transpose(0, 3, 1, 2))
    assert shapes == {((3, 8, 9), torch.uint8)}


def test_overrides_that_change_the_shape_choose_the_kind():
    rows = arrays_to_store(np.zeros((5, 64), dtype=np.uint8))
    assert rows.overrides(["data.image_size=[8,8]"])[1:3] == ["kind=small_images", "data.shape=[1,8,8]"]
    assert rows.overrides(["data.columns=[0,2]"])[1:3] == ["kind=points", "data.shape=[2]"]
    images = arrays_to_store(np.zeros((5, 8, 8)))
    assert images.overrides(["data.flatten=True"])[1:3] == ["kind=vectors", "data.shape=[1,8,8]"]


def test_wrong_arguments_get_a_sentence(tmp_path):
    words = [*SHORT, f"run_dir={tmp_path / 'none'}"]
    for arguments, sentence in (
        ({"labels": [1]}, "belong to data: give data, too"),
        ({"data": "points.npy"}, r"data=array data\.path=FILE reads a file"),
        ({"data": X, "labels": [1, 2]}, "500 examples and 2 labels"),
        ({"data": X, "validation": "a"}, "^validation is a NumPy array"),
    ):
        with pytest.raises((ConfigError, DataError), match=sentence):
            eblvm_lit.train(words, **arguments)
    with pytest.raises(ConfigError, match="given twice, by data and by data=moons"):
        eblvm_lit.train([*words, "data=moons"], data=X)
    with pytest.raises(DataError, match=r"row 3, column 1 is nan"):
        eblvm_lit.train(words, data=np.where(np.arange(1000).reshape(500, 2) == 7, np.nan, X))
    assert [*(tmp_path / "none").rglob("*.npz")] == []
