"""Tests of data sets of the Hugging Face Hub, which are read from local folders without a connection."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import eblvm_lit
from eblvm_lit.data.hub import HubData
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.runs import run as runtime
from helpers.shell import configure

RNG = np.random.default_rng(0)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Let the package datasets work offline with a temporary cache; skip the test if it is not installed."""
    datasets = pytest.importorskip("datasets", reason="needs the package datasets: pip install 'eblvm_lit[hub]'")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def pictures(tmp_path):
    """Write grey images of 8 x 9 pixels in two classes and two splits; return their folder and their pixels."""
    arrays = {}
    for split, n in (("train", 40), ("test", 6)):
        for name in ("cat", "dog"):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            arrays[split, name] = RNG.integers(0, 256, size=(n // 2, 8, 9), dtype=np.uint8)
            for i, pixels in enumerate(arrays[split, name]):
                Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return tmp_path / "pictures", arrays


@pytest.mark.usefixtures("offline")
def test_images_and_classes_of_a_folder(pictures, caplog):
    folder, arrays = pictures
    data = HubData(repo=str(folder), val_size=0.2)
    data.setup()
    assert data.image_shape == (1, 8, 9)
    assert len(data.splits.train) + len(data.splits.val) == 40  # validation images are taken from training
    test = np.concatenate([arrays["test", name] for name in ("cat", "dog")])[:, None]
    np.testing.assert_array_equal(data.splits.test.numpy(), test)
    assert data.class_names == ("cat", "dog")
    assert data.labels.test.tolist() == [0] * 3 + [1] * 3
    data.find_options()
    assert "also for training" not in caplog.text
    Image.fromarray(arrays["train", "dog"][3]).save(folder / "test" / "dog" / "again.png")
    repeated = HubData(repo=str(folder), val_size=0.25)
    repeated.find_options()
    assert "1 examples for testing are also for training" in caplog.text
    (folder / "test" / "dog" / "again.png").unlink()
    small = HubData(repo=str(folder), size=4, channels=3)
    small.setup()
    assert tuple(small.splits.test.shape) == (6, 3, 4, 4)


@pytest.mark.usefixtures("offline")
def test_columns_of_numbers_and_of_vectors(tmp_path):
    table = pd.DataFrame({"x": RNG.normal(size=200), "y": RNG.normal(size=200), "label": ["a", "b"] * 100})
    (tmp_path / "table").mkdir()
    table.to_csv(tmp_path / "table" / "train.csv", index=False)
    data = HubData(repo=str(tmp_path / "table"))
    data.setup()
    assert "2 columns x, y" in data.find_options()[1]
    both = torch.cat([data.in_units(part) for part in data.splits])
    ordered = both[both[:, 0].argsort()]
    np.testing.assert_allclose(ordered.numpy(), table.sort_values("x")[["x", "y"]].to_numpy(), rtol=1e-5, atol=1e-6)
    assert data.class_names == ("a", "b")
    one = HubData(repo=str(tmp_path / "table"), columns=["y"])
    assert one.event_shape == (1,)
    vectors = RNG.normal(size=(100, 5))
    (tmp_path / "vectors" / "data").mkdir(parents=True)
    frame = pd.DataFrame({"embedding": [row.tolist() for row in vectors]})
    frame.to_json(tmp_path / "vectors" / "data" / "train.jsonl", orient="records", lines=True)
    assert HubData(repo=str(tmp_path / "vectors")).event_shape == (5,)


@pytest.mark.usefixtures("offline")
def test_a_run_trains_and_is_evaluated(tmp_path):
    (tmp_path / "table").mkdir()
    pd.DataFrame(RNG.normal(size=(300, 2)), columns=["x", "y"]).to_csv(tmp_path / "table" / "train.csv", index=False)
    short = ["kind=vectors", "sizes.h_dim=4", "trainer.max_steps=10", "method.compile=false", "callbacks.figures=null"]
    words = ["data=hub", f"data.repo={tmp_path / 'table'}", f"run_dir={tmp_path / 'run'}"]
    run = eblvm_lit.train([*short, "callbacks.progress=null", *words])
    evaluation = configure(f"ckpt={run.folder}", f"run_dir={tmp_path / 'again'}", name="evaluate")
    assert runtime.evaluate(evaluation)["test/fisher"] == run.metrics["test/fisher"]


@pytest.mark.usefixtures("offline")
def test_what_is_not_there_gets_a_sentence(pictures, tmp_path):
    folder, _ = pictures
    for options, sentence in (
        ({"repo": "nobody/nothing"}, r"^nobody/nothing cannot be loaded by the package datasets: .*\w"),
        ({"repo": str(tmp_path / "nowhere")}, "cannot be loaded by the package datasets"),
        ({"repo": str(folder), "columns": ["pixels"]}, "has no column 'pixels'; its columns are image, label"),
        ({"repo": str(folder), "columns": ["image", "label"]}, "has several columns of examples"),
    ):
        with pytest.raises(DataError, match=sentence):
            HubData(**options)
    Image.fromarray(np.zeros((5, 5), dtype=np.uint8)).save(folder / "train" / "cat" / "odd.png")
    with pytest.raises(DataError, match=r"shapes \(5, 5\) and \(8, 9\): set data\.size"):
        HubData(repo=str(folder))


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'eblvm_lit\[hub\]'"):
        HubData(repo="me/data")
