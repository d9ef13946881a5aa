"""Tests of the metrics of images that any program has made, against the metrics of a run for the same images."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import eblvm_lit as eb
from eblvm_lit.cli.compose import composed
from eblvm_lit.cli.image_evaluation import main
from eblvm_lit.runs.instantiate import instantiate
from helpers.every_metric import CLASSIFIER, PLACE, settings
from helpers.fake_images import Noise
from helpers.stand_in import StandIn, loaded

N = 9
OWN = (f"evaluation@{PLACE}=classifier", f"+criteria@{PLACE}.fd_classifier.criteria=coverage")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Return overrides that choose the digits and, for few samples, a classifier that is hardly trained."""
    folder = tmp_path_factory.mktemp("cache")
    return ["data=digits", f"cache_dir={folder}", *settings("fd_classifier", *CLASSIFIER)]


@pytest.fixture(scope="module")
def images():
    return Noise().images(None, loaded(eb.Digits()), N)


@pytest.fixture(scope="module")
def of_a_run(words):
    """Return the numbers that a run's own metric has for the images, as its sampler would have drawn them."""
    cfg = composed([*words, *OWN])
    metric = instantiate(cfg.callbacks.evaluation.metrics.fd_classifier, "metric")
    metric.images = Noise()
    found = metric.evaluate(StandIn(), loaded(eb.Digits()), "test", torch.Generator())
    return {f"test/{name}": value for name, value in found.items()}


def test_images_of_every_form_have_the_numbers_of_a_run(words, images, of_a_run, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image[0].numpy()).convert("RGB").save(folder / f"{i}.png")
    np.savez(tmp_path / "samples.npz", v=images.float().flatten(1) / 255)
    np.savez(tmp_path / "two.npz", labels=np.zeros(N), mine=images)
    torch.save(images.float() / 127.5 - 1, tmp_path / "samples.pt")
    forms = folder, tmp_path / "samples.npz", tmp_path / "samples.pt", images[:, 0].numpy(), images.double() / 255
    for form in forms:
        assert eb.evaluate_images(form, [*words, *OWN]) == pytest.approx(of_a_run, rel=1e-6, abs=1e-9)
    assert eb.evaluate_images(tmp_path / "two.npz", [*words, *OWN], key="mine") == pytest.approx(of_a_run, rel=1e-6)
    assert of_a_run["test/fd_classifier"] > 0


def test_the_default_metrics_include_the_shares_of_classes_and_leave_out_what_is_lacking(
    words, images, of_a_run, caplog, monkeypatch, tmp_path
):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # where the weights of Inception might be
    caplog.set_level("INFO")
    found = eb.evaluate_images(images, words)
    shares = found.pop("test/rarest_class_classifier"), found.pop("test/commonest_class_classifier")
    assert shares[0] <= 0.1 <= shares[1]  # of ten classes
    assert found == pytest.approx({name: of_a_run[name] for name in found})
    assert {"test/fd_classifier", "test/precision_classifier", "test/coverage_classifier"} <= {*found}
    assert "fid is left out: the weights of FID are not at" in caplog.text


def test_a_folder_of_images_is_compared_with_another_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for name, n in (("data", 60), ("mine", N)):
        (tmp_path / name).mkdir()
        for i in range(n):
            values = np.random.default_rng([i, n]).integers(256, size=(8, 8), dtype=np.uint8)
            Image.fromarray(values).save(tmp_path / name / f"{i}.png")
    words = [
        *("data=image_folder", f"data.path={tmp_path}/data", f"data.root={tmp_path}/root", f"cache_dir={tmp_path}"),
        *("data.test_size=0.2", "data.val_size=0.2", f"evaluation@{PLACE}=points"),
    ]
    found = eb.evaluate_images(tmp_path / "mine", words)
    assert {"test/fd_raw", "test/precision_raw", "test/recall_raw"} <= {*found}
    with pytest.raises(eb.ConfigError, match="No metric is left"):
        eb.evaluate_images(tmp_path / "mine", words[:-1])


def test_the_command_writes_the_metrics_and_tells_an_error_in_one_sentence(words, images, of_a_run, tmp_path, capsys):
    np.save(tmp_path / "images.npy", images.float() / 255)
    own = [f"images={tmp_path}/images.npy", "images.range=unit"]
    main([*own, *words, *OWN, f"run_dir={tmp_path}/results"])
    assert json.loads((tmp_path / "results" / "evaluation.json").read_text()) == pytest.approx(of_a_run)
    assert "fd_classifier" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="ERROR: The range of images is unit or symmetric, not bytes"):
        main([own[0], "images.range=bytes", *words, *OWN])
    with pytest.raises(SystemExit, match="Images are evaluated without a checkpoint: leave ckpt= out"):
        main([own[0], "ckpt=outputs/run", *words, *OWN])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match=r"empty is not a folder .*set data\.path, or images of evaluate"):
        main([f"images={tmp_path / 'empty'}", *words, *OWN])
    with pytest.raises(SystemExit, match="has no images: choose a data set of images"):
        main([own[0], "data=checkerboard"])


def test_evaluate_hands_images_to_the_command(monkeypatch):
    from eblvm_lit.cli import commands

    monkeypatch.setattr("eblvm_lit.cli.image_evaluation.main", lambda words: words)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "images=samples", "data=mnist"])
    assert commands.evaluate() == ["images=samples", "data=mnist"]
