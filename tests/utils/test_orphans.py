"""Tests of processes whose parent process has ended."""

import importlib
import os
from types import SimpleNamespace

import eblvm_lit
from eblvm_lit.utils import orphans


def test_a_process_whose_parent_ended_before_it_began_ends(monkeypatch):
    ended = []
    monkeypatch.setattr(orphans.sys, "platform", "none")
    monkeypatch.setattr(os, "_exit", ended.append)
    for pid, codes in ((os.getppid(), []), (0, [1])):
        monkeypatch.setattr(orphans.multiprocessing, "parent_process", lambda pid=pid: SimpleNamespace(pid=pid))
        orphans.end_with_parent()
        assert ended == codes


def test_the_processes_of_a_run_watch_their_parent_before_they_import_anything_else(monkeypatch):
    called = []
    monkeypatch.setattr(orphans, "end_with_parent", lambda: called.append(True))
    importlib.reload(eblvm_lit)
    assert not called
    monkeypatch.setenv(orphans.STARTING, "1")
    importlib.reload(eblvm_lit)
    assert called
