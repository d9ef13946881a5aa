"""Tests of the reuse of freed memory in training, and of the error message when memory runs out."""

import platform
import subprocess
import sys

import pytest
import torch

from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.memory import explain_lack_of_memory

PROBE = """
import resource, torch
from eblvm_lit.utils.memory import keep_freed_memory

def faults():  # of a page, for each page of ten tensors of 64 MiB that are each freed before the next
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2**24)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (2**26 / resource.getpagesize())

with keep_freed_memory():
    faults()  # until there is a piece that is large enough for one of them and its alignment
    print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_freed_memory_is_used_again():
    """Count page faults in a new process, because the memory of this process depends on earlier tests."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.25


def test_running_out_of_memory_on_a_cpu_is_one_sentence():
    words = r"^Out of memory \(\d+ bytes more were asked for\): lower data.batch_size.$"
    with pytest.raises(ConfigError, match=words), explain_lack_of_memory(["lower data.batch_size"]):
        torch.empty(2**52)
