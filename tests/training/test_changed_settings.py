"""Folders of runs of one second, and settings that must not change when a run resumes."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from eblvm_lit.cli import run
from eblvm_lit.cli.console import CheckOutputFolder
from eblvm_lit.errors import ConfigError
from eblvm_lit.training.changed_settings import changed_settings
from helpers.shell import checkpoint, configured, tiny, train

SHORT = ("method=dsm", "trainer.max_steps=4", "n_validations=2", "summary=false")


def test_runs_of_one_second_take_folders_of_their_own(tmp_path):
    found = []
    for _ in range(3):
        after_time = {"hydra": {"run": {"dir": str(tmp_path / "2026-01-01" / "12-00-00")}}, "sweep": {"resume": False}}
        config = OmegaConf.create(after_time)
        OmegaConf.set_readonly(config, True)  # as Hydra's is
        CheckOutputFolder().on_run_start(config)
        found.append(Path(config.hydra.run.dir).name)
    assert found == ["12-00-00", "12-00-00_1", "12-00-00_2"]


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The last checkpoint of a run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(folder, *SHORT)
    return folder / "checkpoints" / "last.ckpt"


LONGER = ("trainer.max_steps=6", "n_validations=3")


@pytest.mark.parametrize(
    ("change", "listed", "keys"),
    [
        (["seed=7"], "seed=1234, not 7", "seed"),
        (["optimizer.lr=0.5"], "optimizer.lr=0.001, not 0.5", "optimizer.lr"),
        (["data.batch_size=32"], "data.batch_size=64, not 32", "data.batch_size"),
        (["optimizer=sgd"], "optimizer=Adam, not SGD", "optimizer"),
        (["seed=7", "noise.std=0.3"], "seed=1234, not 7; noise.std=0.2, not 0.3", "seed,noise.std"),
    ],
    ids=str,
)
def test_a_changed_setting_is_refused_by_its_name_unless_it_is_allowed(change, listed, keys, finished, tmp_path):
    with pytest.raises(ConfigError) as refusal:
        train(tmp_path / "run", *SHORT, *LONGER, *change, f"ckpt={finished}")
    assert str(refusal.value) == (
        f"{finished} was trained with {listed}: resume with its settings, or allow the change by resume.allow=[{keys}]."
    )
    if keys != "optimizer":  # Adam's state is not that of gradient descent
        train(tmp_path / "told", *SHORT, *LONGER, *change, f"ckpt={finished}", f"resume.allow=[{keys}]")
        assert checkpoint(tmp_path / "told")["global_step"] == 6


def test_what_is_incidental_may_differ(finished, tmp_path):
    free = ("threads=1", "iterations_per_batch=2", "callbacks.checkpoints.every=2", "method.compile=false", "tf32=true")
    train(tmp_path / "run", *SHORT, *LONGER, *free, "callbacks=ema", f"ckpt={finished}", f"cache_dir={tmp_path}")
    assert checkpoint(tmp_path / "run")["global_step"] == 6


def test_last_finds_a_run_whose_differences_are_allowed(finished, tmp_path):
    change = ("optimizer.lr=0.5", f"outputs_dir={finished.parents[2]}", "ckpt=last")
    train(tmp_path / "run", *SHORT, *LONGER, *change, "resume.allow=[optimizer]")
    assert checkpoint(tmp_path / "run")["global_step"] == 6


@pytest.mark.parametrize("name", ["optimzer", "optimizer.rl", "3"])
def test_an_allowed_key_that_does_not_exist_is_refused(name, finished, tmp_path):
    with pytest.raises(ConfigError, match=rf"resume.allow names '?{name}'?, and there is no such key"):
        train(tmp_path / "run", *SHORT, f"ckpt={finished}", f"resume.allow=[{name}]")


@pytest.mark.parametrize("value", ["-1", ".nan", "true", "{}", "{a: 1}"])
def test_what_is_no_list_of_keys_is_refused_in_any_run(value, tmp_path):
    cfg = tiny(tmp_path, *SHORT)
    cfg.resume.allow = yaml.safe_load(value)
    with pytest.raises(ConfigError, match=r"^resume.allow is a list of keys, such as \[optimizer.lr\], not"):
        run.train(cfg)


def test_a_value_is_told_where_it_was_set():
    """A level's own rate differs from the common one in the checkpoint: neither hides the other."""
    cfg = OmegaConf.create({"lr": 0.1, "method": {"lower": {"lr": "${lr}"}, "sizes": ["${n}", 1]}, "n": 2, "a": None})
    before = {"lr": 0.1, "method": {"lower": {"lr": 0.3}, "sizes": [3, 1]}, "n": 3, "a": {}}
    assert changed_settings(before, cfg) == {"method.lower.lr": "0.3, not 0.1", "n": "3, not 2"}
    assert changed_settings(before, cfg, ["method", "n"]) == {}
    assert changed_settings({**before, "a": [1]}, cfg, ["method", "n"]) == {"a": "[1], not None"}


def test_no_configuration_differs_from_itself():
    cfg = configured("method=bidsm", "data=checkerboard", "run_dir=x", "outputs_dir=y")
    assert changed_settings(OmegaConf.to_container(cfg, resolve=True), cfg) == {}
