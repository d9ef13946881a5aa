"""Tests of full disks and killed processes: the error is one sentence, and earlier files remain unchanged."""

import json
import os
import resource

import pytest
import torch

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.training.checkpoint_io import AtomicCheckpointIO, load_checkpoint
from eblvm_lit.utils.io import copy_whole, write_json
from helpers.shell import checkpoint, same_state, train


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    seen = []
    write_json(path, {"a": 1})

    def sync(descriptor):
        size = os.fstat(descriptor).st_size
        seen.append((json.loads(path.read_text()), size == next(tmp_path.glob(".a.json.*.tmp")).stat().st_size > 8))

    monkeypatch.setattr(os, "fsync", sync)
    write_json(path, {"a": 22})
    assert seen == [({"a": 1}, True)]
    assert json.loads(path.read_text()) == {"a": 22}


def write_checkpoint(folder, size):
    AtomicCheckpointIO().save_checkpoint({"w": torch.rand(size)}, folder / "last.ckpt")
    return folder / "last.ckpt"


def write_copy(folder, size):
    copy_whole(folder.parent / f"source_{size}", folder / "best.ckpt")
    return folder / "best.ckpt"


@pytest.fixture
def limit():
    """Return a function that limits the size of this process's files, which is like a full disk for all of them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("write", [write_checkpoint, write_copy])
def test_a_file_too_large_for_the_disk_leaves_the_old_file_unchanged(write, limit, tmp_path):
    for size in (10, 10_000):
        (tmp_path / f"source_{size}").write_bytes(bytes(100 * size))
    path = write(tmp_path / "run", 10)
    before = path.read_bytes()
    limit(5000)
    with pytest.raises(DataError, match=r"could not be written") as refusal:
        write(tmp_path / "run", 10_000)
    limit(resource.RLIM_INFINITY)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(("keep", "kept"), [("0", []), ("2", [8, 10])])
def test_intermediate_checkpoints_are_kept_and_a_run_resumes_from_any(keep, kept, tmp_path):
    options = ("method=dsm", "callbacks.checkpoints.every=2", f"callbacks.checkpoints.keep={keep}", "n_validations=1")
    folder = tmp_path / "run" / "checkpoints"
    train(tmp_path / "run", *options, "trainer.max_steps=4")
    (folder / "iteration_2_mine.ckpt").touch()  # a file that the user has put there
    train(tmp_path / "run", *options, "ckpt=last")
    # The run has not removed this file, because otherwise unlink would fail.
    (folder / "iteration_2_mine.ckpt").unlink()
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.ckpt" for name in ("last", "best", *(f"iteration_{i}" for i in kept))
    }
    for i in kept:
        assert checkpoint(tmp_path / "run", f"iteration_{i}")["global_step"] == i
    if kept:
        train(tmp_path / "again", *options, f"ckpt={folder / f'iteration_{kept[0]}.ckpt'}")
        assert same_state(tmp_path / "again", tmp_path / "run")


def test_a_checkpoint_that_is_cut_off_of_another_version_or_foreign_is_refused(content, tmp_path):
    path = tmp_path / "odd.ckpt"
    torch.save(content, path)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"odd\.ckpt.*cut off"):
        load_checkpoint(path)
    del content["eblvm_lit"]["version"]
    for odd, named in ((content, r"0\.2 .*0\.3"), ({"w": torch.ones(1)}, r"odd\.ckpt")):
        torch.save(odd, path)
        with pytest.raises(DataError, match=named):
            load_checkpoint(path)


def test_no_run_takes_the_folder_of_another(tmp_path):
    train(tmp_path, "method=dsm")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="ckpt=last"):
        train(tmp_path, "method=dsm", "seed=7")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
