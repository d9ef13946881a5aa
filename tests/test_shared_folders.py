"""Folders that several runs use: one run at a time, leftovers of killed ones, and settings that must not change."""

import errno
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from eblvm_lit.cli import run
from eblvm_lit.cli import status as status_module
from eblvm_lit.cli.changed_settings import changed_settings
from eblvm_lit.cli.console import CheckOutputFolder
from eblvm_lit.cli.sweeps.callback import Sweep
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.status import read_status, recorded
from eblvm_lit.utils import locks
from eblvm_lit.utils.io import remove_leftovers, write_whole
from eblvm_lit.utils.locks import LOCK, FolderLock
from shell import checkpoint, configured, tiny, train
from test_sweeps import sweep_config

SHORT = ("method=dsm", "trainer.max_steps=4", "n_validations=2", "summary=false")


def test_a_second_run_in_a_folder_is_refused_and_changes_nothing(tmp_path, monkeypatch):
    step, found = Method.training_step, []

    def step_beside_another(self, v, i):
        if not found:
            before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            with pytest.raises(
                ConfigError, match=rf"Another run \(process {os.getpid()} on .*\) is in .*: wait until"
            ) as no:
                train(tmp_path, *SHORT, "seed=7")
            found.append(str(no.value))
            assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return step(self, v, i)

    monkeypatch.setattr(Method, "training_step", step_beside_another)
    train(tmp_path, *SHORT)
    assert "\n" not in found[0]
    assert read_status(tmp_path)["state"] == "finished"
    assert not (tmp_path / LOCK).exists()


def test_a_second_command_is_refused_before_hydra_writes_anything(tmp_path):
    config = OmegaConf.create({"hydra": {"run": {"dir": str(tmp_path)}}, "sweep": {"resume": False}})
    CheckOutputFolder().on_run_start(config)
    with FolderLock(tmp_path), pytest.raises(SystemExit) as leave:
        CheckOutputFolder().on_run_start(config)
    assert leave.value.code.startswith("ERROR: Another run (process")
    assert list(tmp_path.iterdir()) == []


def test_runs_of_one_second_take_folders_of_their_own(tmp_path):
    found = []
    for _ in range(3):
        after_time = {"hydra": {"run": {"dir": str(tmp_path / "2026-01-01" / "12-00-00")}}, "sweep": {"resume": False}}
        config = OmegaConf.create(after_time)
        OmegaConf.set_readonly(config, True)  # as Hydra's is
        CheckOutputFolder().on_run_start(config)
        found.append(Path(config.hydra.run.dir).name)
    assert found == ["12-00-00", "12-00-00_1", "12-00-00_2"]


HELD = """
import sys, time
from pathlib import Path
from eblvm_lit.utils.locks import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_leaves_no_lock(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HELD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"process {process.pid} on"):
        FolderLock(tmp_path).__enter__()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / LOCK).exists()
    with FolderLock(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_again(tmp_path, monkeypatch):
    """The run before removes its file between the opening and the locking of it."""
    real, opened = locks._open, []

    def open_and_lose(path):
        descriptor = real(path)
        if not opened:
            path.unlink()
        opened.append(descriptor)
        return descriptor

    monkeypatch.setattr(locks, "_open", open_and_lose)
    with FolderLock(tmp_path), pytest.raises(ConfigError, match="Another run"):
        FolderLock(tmp_path).__enter__()
    assert len(opened) == 3


def test_a_file_system_without_locks_is_warned_of_and_the_run_runs(tmp_path, monkeypatch, caplog):
    def no_locks(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", no_locks)
    with caplog.at_level(logging.WARNING):
        train(tmp_path, *SHORT)
    assert f"{tmp_path} cannot be locked (No locks available): nothing keeps a second run out of it." in caplog.text
    assert not (tmp_path / LOCK).exists()


def test_a_second_sweep_in_a_folder_is_refused(tmp_path):
    first, second = Sweep(), Sweep()
    first.on_multirun_start(sweep_config(tmp_path, "seed=0,1"))
    with pytest.raises(SystemExit) as leave:
        second.on_multirun_start(sweep_config(tmp_path, "seed=0,1"))
    assert leave.value.code.startswith("ERROR: Another run (process")
    del first  # as at the end of its process
    second.on_multirun_start(sweep_config(tmp_path, "seed=0,1"))


# --- leftovers ------------------------------------------------------------------------------------------------------


def test_leftovers_are_removed_and_what_is_being_written_is_not(tmp_path):
    (tmp_path / ".status.json.1.tmp").write_text("{")
    (tmp_path / ".notes.tmp").write_text("of somebody else")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / ".a.json.1.tmp").write_text("{")
    os.symlink(tmp_path / "nowhere", tmp_path / ".b.json.1.tmp")

    def write(file):
        remove_leftovers(tmp_path)
        file.write(b"whole")

    write_whole(tmp_path / "a.json", write)
    assert (tmp_path / "a.json").read_bytes() == b"whole"
    assert {path.name for path in tmp_path.iterdir()} == {".notes.tmp", "below", "a.json", ".b.json.1.tmp"}
    assert (tmp_path / "below" / ".a.json.1.tmp").exists()


def test_a_run_that_is_resumed_elsewhere_cleans_the_folder_of_the_killed_one(tmp_path):
    train(tmp_path / "killed", *SHORT)
    places = [tmp_path / "killed", tmp_path / "killed" / "checkpoints"]
    for place in places:
        (place / ".x.json.1.tmp").write_text("half")
    train(tmp_path / "again", *SHORT, "ckpt=last")
    assert not list(tmp_path.rglob("*.tmp"))


# --- a status on a full disk ----------------------------------------------------------------------------------------


def fill_disk(monkeypatch):
    """From here on, no file can be replaced."""

    def full(path, content):
        raise status_module.DataError(f"{path} could not be written (No space left on device): choose a folder.")

    monkeypatch.setattr(status_module, "write_json", full)


@pytest.mark.parametrize("n_notes", [1, 10_000])
def test_a_status_that_cannot_be_replaced_is_overwritten(n_notes, tmp_path, monkeypatch):
    def work():
        with recorded(tmp_path) as notes:
            notes["device"] = "x" * n_notes
            fill_disk(monkeypatch)
            raise RuntimeError("what the run has met")

    with pytest.raises(RuntimeError, match="what the run has met"):
        work()
    status = read_status(tmp_path)
    assert status["state"] == "failed"
    assert ("reason" in status) == (n_notes == 1)  # what has no room is left out


def test_a_status_that_stays_wrong_is_said_to(tmp_path, monkeypatch, caplog):
    with recorded(tmp_path):
        fill_disk(monkeypatch)
        (tmp_path / "status.json").unlink()
    assert "could not be written (No space left on device)" in caplog.text
    assert "status.json still says 'running'." in caplog.text


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
    assert changed_settings({**before, "a": [1]}, cfg, ["method", "n"]) == {"a": "[1], not null"}


def test_no_configuration_differs_from_itself():
    cfg = configured("method=bidsm", "data=checkerboard", "run_dir=x", "outputs_dir=y")
    assert changed_settings(OmegaConf.to_container(cfg, resolve=True), cfg) == {}
