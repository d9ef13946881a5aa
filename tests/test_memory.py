"""What is done with freed memory."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from eblvm_lit.utils import memory
from eblvm_lit.utils.memory import keep_freed_cpu_memory
from shell import train

KEEP, RETURN = [(-4, 0), (-1, -1)], [(-4, 65536), (-3, 2**25), (-1, 2**26)]


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch):
    """An environment that leaves glibc as it is."""
    for name in [name for name in os.environ if name == "GLIBC_TUNABLES" or name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def told(monkeypatch):
    """What the C library is told."""
    calls = []
    library = SimpleNamespace(mallopt=lambda *call: calls.append(call), malloc_trim=lambda _: calls.append("trim"))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: library)
    return calls


PROBE = """
import resource, torch
from eblvm_lit.utils.memory import _resident, keep_freed_cpu_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with keep_freed_cpu_memory(True):
    faults()  # until there is a piece that is large enough for one of them and its alignment
    provided, within = faults(), _resident("VmRSS")
print(provided / (2**26 / resource.getpagesize()), within - _resident("VmRSS"))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_freed_memory_is_used_again_within_and_goes_back_after():
    """In a process of its own: what is in the memory of this one is whatever other tests have left."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    provided, gone_back = map(float, done.stdout.split())
    assert provided < 0.25  # tensors of 64 MiB, of ten that were each freed before the next
    assert gone_back > 32


def test_the_c_library_is_told_before_and_after_also_where_training_fails(told):
    def fail():
        with keep_freed_cpu_memory(True):
            assert told == KEEP
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert told == [*KEEP, *RETURN, "trim"]


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_ARENA_MAX"])
def test_what_the_environment_says_goes_first(name, told, monkeypatch):
    monkeypatch.setenv(name, "glibc.malloc.arena_max=1" if name == "GLIBC_TUNABLES" else "1")
    with keep_freed_cpu_memory(True):
        pass
    assert told == []


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: SimpleNamespace())
    with keep_freed_cpu_memory(True):
        pass


@pytest.mark.parametrize("keep", [True, False])
def test_a_run_keeps_memory_unless_told_otherwise(keep, told, tmp_path):
    train(tmp_path, "method=dsm", *([] if keep else ["keep_freed_cpu_memory=false"]))
    assert [call for call in told if call != "trim"] == ([*KEEP, *RETURN] if keep else [])
