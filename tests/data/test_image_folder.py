"""A folder of images, and images as vectors: one command trains, evaluates and resumes."""

import logging

import pytest
from omegaconf import OmegaConf

from eblvm_lit.cli import run
from eblvm_lit.cli.settings import adapt
from helpers.image_files import write_images, write_mnist
from helpers.shell import configure, evaluate, of_checkpoint

SMALL = ("model.network.channels=2", "model.h_dim=3", "model.head_dim=4", "posterior.network.widths=[2,2,2]")
FAST = ("debug=fast", "data.batch_size=64", "trainer.max_steps=2", "callbacks.figures=null")


@pytest.fixture
def own(tmp_path):
    """A folder of 30 grey images, and what a run of it needs to be tiny."""
    write_images(tmp_path / "mine", 30, size=(20, 28), mode="L")
    folders = [f"data.root={tmp_path}", f"outputs_dir={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    return ["data=image_folder", f"data.path={tmp_path / 'mine'}", *folders, *SMALL, *FAST]


def test_a_folder_of_images_needs_no_other_key(own, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "eblvm_lit"):
        metrics = run.train(configure(*own))
    (line,) = [record.message for record in caplog.records if "images of" in record.message]
    assert line == (
        f"30 grey images of 20 x 28 pixels in {tmp_path}/mine, 24 for training, 3 for validation and 3 for testing: "
        "data.size=16; data.channels=1; data.batch_size=24."
    )
    assert metrics["test/posterior_fisher"] > 0
    stored = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert (stored.data.size, stored.data.channels, stored.data.batch_size) == (16, 1, 24)
    assert stored.sizes.v_shape == stored.method.energy.network.v_shape == [1, 16, 16]
    again = evaluate(tmp_path / "again", tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert again == of_checkpoint(metrics)


def test_a_run_of_a_folder_is_resumed_and_a_finished_job_of_a_sweep_is_skipped(own, tmp_path, caplog):
    metrics = run.train(configure(*own))
    with caplog.at_level(logging.INFO, "eblvm_lit"):
        assert run.train(configure(*own, "sweep.resume=true")) == metrics
        assert "has finished before" in caplog.text
        longer = ["trainer.max_steps=3", "ckpt=last", f"run_dir={tmp_path / 'longer'}"]
        assert run.train(configure(*own, *longer))["iteration"] == 3
    assert "Resuming from iteration 2" in caplog.text


def test_a_folder_brings_the_small_model_and_a_method_its_own(own):
    deep, doubly, vae = (configure(*own[:2], f"method={name}") for name in ("bimdsm", "bidvl", "vae"))
    assert (deep.model.network.channels, deep.trainer.max_steps, deep.method.compile) == (16, 1000, False)
    assert doubly.model._target_.endswith(".SpectralEnergy")
    assert "model" not in vae
    assert {cfg.trainer.max_steps for cfg in (doubly, vae)} == {1000}


def test_the_small_model_brings_its_short_run_to_published_data():
    published, small = (configure("method=bimdsm", "data=mnist", *words) for words in ([], ["model=deep_small"]))
    assert (published.model.network.channels, published.trainer.max_steps) == (64, 100_000)
    assert (small.model.network.channels, small.trainer.max_steps) == (16, 1000)
    assert (small.noise, small.data) == (published.noise, published.data)


def test_a_short_run_has_as_many_validations_as_iterations_at_most(own):
    cfg = configure(*own, "n_validations=60", "method=bimdsm")
    adapt(cfg)
    assert cfg.n_validations == 2


def test_flattened_images_train_a_model_of_vectors(tmp_path):
    write_mnist(tmp_path, n_train=30, n_test=8)
    data = ["data=mnist", f"data.root={tmp_path}", "data.flatten=true", "data.size=8", "data.val_size=0.1"]
    short = ["debug=fast", "trainer.max_steps=2", "model.h_dim=3", f"run_dir={tmp_path / 'run'}"]
    metrics = run.train(configure("method=dsm", "model=grbm", *data, *short))
    assert metrics["iteration"] == 2
    assert OmegaConf.load(tmp_path / "run" / "config.yaml").method.energy.v_dim == 64
    assert {path.name for path in (tmp_path / "run" / "figures").iterdir()} >= {"samples.png", "filters.png"}
    again = evaluate(tmp_path / "again", tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert again == of_checkpoint(metrics)
