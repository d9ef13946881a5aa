"""Tests of folders of runs: only one process uses a folder at a time, and a full disk ends in one sentence."""

import errno
import os
from multiprocessing import get_context

import pytest

from eblvm_lit.errors import ConfigError
from eblvm_lit.utils import folders
from eblvm_lit.utils.folders import claimed, prepare_folder


def hold(folder, pipe):
    with claimed(folder):
        pipe.send("held")
        pipe.recv()


def test_a_folder_belongs_to_one_process_until_it_ends_even_by_sigkill(tmp_path):
    pipe, end = get_context("fork").Pipe()
    process = get_context("fork").Process(target=hold, args=(tmp_path, end))
    process.start()
    assert pipe.recv() == "held"
    with pytest.raises(ConfigError, match="is in use by another process"), claimed(tmp_path):
        pass
    process.kill()
    process.join()
    with claimed(tmp_path):
        pass
    # the folder is free again after the context above
    with claimed(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_without_locks_a_folder_is_used_all_the_same(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(folders.fcntl, "flock", refuse)
    with claimed(tmp_path), claimed(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_full_disk_gives_one_sentence_and_leaves_no_file(tmp_path, monkeypatch):
    class Full:
        def __init__(self, dir):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def write(self, content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folders, "TemporaryFile", Full)
    with pytest.raises(ConfigError, match=r"run cannot be written to \(No space left on device\): choose a folder"):
        prepare_folder(tmp_path / "run")
    monkeypatch.undo()
    assert list(prepare_folder(tmp_path / "run").iterdir()) == []
