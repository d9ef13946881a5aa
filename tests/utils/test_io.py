"""Disks that are full, processes that are killed: one sentence, and what was there before stays."""

import itertools
import json
import multiprocessing
import os
import resource
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from eblvm_lit.cli import run
from eblvm_lit.data.prepared_files import decode_once
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.figures.base import Picture
from eblvm_lit.training.callbacks.figures import Figures
from eblvm_lit.training.checkpoint_io import AtomicCheckpointIO, load_checkpoint
from eblvm_lit.training.loggers.csv import CSVCurves
from eblvm_lit.utils.io import copy_whole, write_json
from helpers.shell import checkpoint, same_state, tiny, train

# --- lost power -------------------------------------------------------------------------------------------


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, seen = tmp_path / "a.json", []
    write_json(path, {"a": 1})

    def sync(descriptor):
        size = os.fstat(descriptor).st_size
        seen.append((json.loads(path.read_text()), size == next(tmp_path.glob(".a.json.*.tmp")).stat().st_size > 8))

    monkeypatch.setattr(os, "fsync", sync)
    write_json(path, {"a": 22})
    assert seen == [({"a": 1}, True)]
    assert json.loads(path.read_text()) == {"a": 22}


# --- full disks -------------------------------------------------------------------------------------------


class Noise(Picture):
    """A figure that needs some room."""

    def draw(self, method, data, generator):
        figure, axes = plt.subplots()
        axes.imshow(np.random.default_rng(0).random((200, 200)))
        return figure


def write_checkpoint(folder, size):
    AtomicCheckpointIO().save_checkpoint({"w": torch.rand(size)}, folder / "last.ckpt")
    return folder / "last.ckpt"


def write_curves(folder, size):
    logger = CSVCurves(save_dir=str(folder))
    logger.rows = {i: {"val/loss": i / 7} for i in range(size)}
    logger.save()
    return folder / "metrics.csv"


def write_figures(folder, size):
    method = SimpleNamespace(seed=0, device="cpu")
    return Figures(figures={"noise": Noise()}, save_dir=str(folder)).draw(method, None)[0]


def write_metrics(folder, size):
    write_json(folder / "metrics.json", {f"test/{i}": i / 7 for i in range(size)})
    return folder / "metrics.json"


def write_copy(folder, size):
    copy_whole(folder.parent / f"source_{size}", folder / "best.ckpt")
    return folder / "best.ckpt"


@pytest.fixture
def limit():
    """Sets how large a file of this process can be: a disk that is full for every file at once."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("write", [write_checkpoint, write_curves, write_figures, write_metrics, write_copy])
def test_a_file_that_does_not_fit_leaves_the_one_before(write, limit, tmp_path):
    for size in (10, 10_000):
        (tmp_path / f"source_{size}").write_bytes(bytes(100 * size))
    path = write(tmp_path / "run", 10)
    before = path.read_bytes()
    limit(5000)
    with pytest.raises(DataError, match=r"could not be written .*: choose .*; earlier files are intact") as refusal:
        write(tmp_path / "run", 10_000)
    limit(resource.RLIM_INFINITY)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


# --- checkpoints that are kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep", "kept"), [("0", []), ("2", [8, 10]), ("null", [2, 4, 6, 8, 10])])
def test_checkpoints_on_the_way_are_kept(keep, kept, tmp_path):
    every = ("method=dsm", "callbacks.checkpoints.every=2", f"callbacks.checkpoints.keep={keep}")
    train(tmp_path, *every, "n_validations=1")
    names = {f"iteration_{i}.ckpt" for i in kept} | {"last.ckpt", "best.ckpt"}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == names
    for i in kept:
        assert checkpoint(tmp_path, f"iteration_{i}")["global_step"] == i


def test_those_of_validations_are_kept_and_a_run_goes_on_from_any(tmp_path):
    train(tmp_path / "run", "method=dsm", "n_validations=5", "callbacks.checkpoints.keep=3")
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("iteration_*"))
    assert names == ["iteration_10.ckpt", "iteration_6.ckpt", "iteration_8.ckpt"]
    middle = tmp_path / "run" / "checkpoints" / "iteration_6.ckpt"
    train(tmp_path / "again", "method=dsm", "n_validations=5", f"ckpt={middle}")
    assert same_state(tmp_path / "again", tmp_path / "run")


def test_what_a_killed_process_has_left_half_written_is_swept_up(tmp_path):
    train(tmp_path, "method=dsm")
    leftover = tmp_path / "checkpoints" / ".last.ckpt.4711.tmp"
    leftover.write_bytes(b"half of it")
    train(tmp_path, "method=dsm", "ckpt=last", "trainer.max_steps=20", "n_validations=2")
    assert not leftover.exists()
    assert checkpoint(tmp_path)["global_step"] == 20


# --- damaged files ----------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_cut_off_is_refused(tmp_path):
    train(tmp_path, "method=dsm")
    whole = (tmp_path / "checkpoints" / "last.ckpt").read_bytes()
    for part in (0, 1, 5, 9):
        (tmp_path / "cut.ckpt").write_bytes(whole[: len(whole) * part // 10])
        with pytest.raises(DataError, match=r"cut.ckpt is not a readable checkpoint \(cut off, or another kind"):
            load_checkpoint(tmp_path / "cut.ckpt")


def test_checkpoints_of_other_versions_methods_and_sizes_are_refused(tmp_path):
    train(tmp_path, "method=dsm")
    file = tmp_path / "checkpoints" / "last.ckpt"
    with pytest.raises(
        ConfigError, match=r"was written by eblvm_lit.methods.score_matching.ScoreMatching, but this run"
    ):
        train(tmp_path / "other", "method=pcd", f"ckpt={file}")
    with pytest.raises(ConfigError, match=r"holds a model of other sizes than this run's \(size mismatch for energy"):
        train(tmp_path / "other", "method=dsm", "model.h_dim=4", f"ckpt={file}")
    old = load_checkpoint(file)
    del old["eblvm_lit"]["version"]
    torch.save(old, tmp_path / "old.ckpt")
    with pytest.raises(DataError, match=r"checkpoints of version 0\.2 cannot be read by 0\.3"):
        load_checkpoint(tmp_path / "old.ckpt")
    torch.save({"w": torch.ones(1)}, tmp_path / "foreign.ckpt")
    with pytest.raises(DataError, match="is not a checkpoint of eblvm_lit"):
        load_checkpoint(tmp_path / "foreign.ckpt")


def prepare(target, kill_at=None):
    """Prepare twelve images, and die in the middle if told to."""
    done = itertools.count()

    def decode(path):
        if next(done) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((1, 64, 64), int(path.name), np.uint8)

    return decode_once(target, [Path(str(i)) for i in range(12)], decode, (1, 64, 64))


@pytest.mark.parametrize("kill_at", [0, 7, 11])
def test_a_preparation_that_was_killed_is_done_again(kill_at, tmp_path):
    target = tmp_path / "prepared" / "set.npy"
    process = multiprocessing.get_context("fork").Process(target=prepare, args=(target, kill_at))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not target.exists()
    assert list(target.parent.iterdir())  # what it has left is not taken for the whole
    assert prepare(target)[:, 0, 0, 0].tolist() == list(range(12))


# --- another run's folder --------------------------------------------------------------------------------------------


def test_no_run_takes_the_folder_of_another(tmp_path):
    train(tmp_path, "method=dsm")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="holds a run already: resume it with ckpt=last, or choose another folder"):
        run.train(tiny(tmp_path, "method=dsm", "seed=7"))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
