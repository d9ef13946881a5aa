"""Sums through shared memory: the numbers of torch's own, the same bits in all processes, and no wait for the lost."""

import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from eblvm_lit.distributed import shared_memory
from eblvm_lit.distributed.shared_memory import sum_
from processes import in_processes

pytestmark = [
    pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is"),
    pytest.mark.skipif(not shared_memory.FOLDER.is_dir(), reason="no folder of shared memory"),
]
N = 3 * shared_memory.SLOT // 8 + 5  # of float64: more than fit at a time


def tensors(rank):
    generator = torch.Generator().manual_seed(rank)
    yield torch.randn(N, dtype=torch.float64, generator=generator)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        yield (8 * torch.randn(3, 5, generator=generator)).to(dtype)
    yield torch.tensor(0.5 + rank)
    yield torch.zeros(0)


@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_those_of_torch(size, tmp_path):
    def work(rank):
        own, other = list(tensors(rank)), list(tensors(rank))
        for _ in range(40):  # one process is late now and then
            x = torch.ones(7)
            sum_(x)
            assert x.eq(size).all()
        for x, y in zip(own, other, strict=True):
            sum_(x)
            dist.all_reduce(y)
            torch.testing.assert_close(x, y)
        return own, shared_memory._of_group[1] is not None

    found = in_processes(size, tmp_path, work)
    assert all(shared for _, shared in found)
    for tensors_of_rank, _ in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(tensors_of_rank, found[0][0], strict=True))
    assert not list(shared_memory.FOLDER.glob("eblvm_lit_*"))


@pytest.mark.parametrize("missing", ["memory", "machine"])
def test_processes_that_share_no_memory_use_torch(missing, tmp_path, monkeypatch):
    def full(*args):
        raise OSError("No space left on device")

    def work(rank):
        if missing == "memory":
            monkeypatch.setattr(os, "posix_fallocate", full)
        else:
            monkeypatch.setattr(shared_memory.socket, "gethostname", lambda: f"machine {rank}")
        x = torch.ones(3)
        sum_(x)
        return x, shared_memory._of_group[1]

    for x, memory in in_processes(2, tmp_path, work):
        assert memory is None
        assert x.tolist() == [2.0] * 3
    assert not list(shared_memory.FOLDER.glob("eblvm_lit_*"))


def test_a_process_that_waits_for_one_that_has_ended_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "ALIVE", 0.01)

    def work(rank):
        sum_(torch.ones(1))
        memory = shared_memory._of_group[1]
        ended = mp.get_context("fork").Process(target=time.time)
        ended.start()
        ended.join()
        memory.pids[1 - rank] = ended.pid
        if rank == 1:
            return None
        with pytest.raises(RuntimeError, match="process 1 has ended"):
            sum_(torch.ones(1))

    in_processes(2, tmp_path, work)
