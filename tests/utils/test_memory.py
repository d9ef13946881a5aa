"""Freed memory that is kept while training, and the sentence for running out of memory."""

import multiprocessing
import platform
import resource

import pytest
import torch

from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.memory import explain_lack_of_memory, keep_freed_memory


def faults():
    """Of a page, for each page of four tensors of 64 MiB that are each freed before the next."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(2**24)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (2**26 / resource.getpagesize())


def measure(found):
    with keep_freed_memory():
        faults()  # until there is a piece that is large enough for one of them and its alignment
        found.value = faults()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_freed_memory_is_used_again():
    """In a process of its own: what it does to the allocator lasts."""
    context = multiprocessing.get_context("fork")
    found = context.Value("d", -1.0)
    process = context.Process(target=measure, args=(found,))
    process.start(), process.join()
    assert 0 <= found.value < 0.25


def test_running_out_of_memory_on_a_cpu_is_one_sentence():
    words = r"^Out of memory \(\d+ bytes more were asked for\): lower data.batch_size.$"
    with pytest.raises(ConfigError, match=words), explain_lack_of_memory(["lower data.batch_size"]):
        torch.empty(2**52)
