"""Sums through shared memory: the numbers of torch's own, the same bits in all processes, and no wait for the lost."""

import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from eblvm_lit.training import shared_memory
from eblvm_lit.training.shared_memory import sum_over_processes
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
            assert sum_over_processes([torch.ones(7)]).eq(size).all()
        own = [sum_over_processes([x]).view(x.shape) for x in own]
        for x, y in zip(own, other, strict=True):
            dist.all_reduce(y)
            torch.testing.assert_close(x, y)
        return own, shared_memory._of_group[1] is not None

    found = in_processes(size, tmp_path, work)
    assert all(shared for _, shared in found)
    for tensors_of_rank, _ in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(tensors_of_rank, found[0][0], strict=True))
    assert not list(shared_memory.FOLDER.glob("eblvm_lit_*"))


@pytest.mark.parametrize("shared", [True, False])
def test_tensors_in_a_row_are_summed_with_weights(shared, tmp_path, monkeypatch):
    """Of two dtypes, one of them transposed, of more numbers than fit at a time: a slot ends inside of a tensor."""

    def row(rank):
        x = torch.arange(N, dtype=torch.float64).add(rank).sin()
        return [torch.tensor(2.5 + rank), x[:14].view(2, 7).T, x[5:], x[:0], x[-8:].view(2, 2, 2).transpose(0, 2)]

    weights = (0.375, 0.625)

    def work(rank):
        if not shared:
            monkeypatch.setattr(shared_memory, "_make", lambda: None)
        return sum_over_processes(row(rank), weights[rank])

    flat = [torch.cat([x.double().flatten() for x in row(rank)]) for rank in (0, 1)]
    expected = weights[0] * flat[0] + weights[1] * flat[1]
    found = in_processes(2, tmp_path, work)
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("missing", ["memory", "machine"])
def test_processes_that_share_no_memory_use_torch(missing, tmp_path, monkeypatch):
    def full(*args):
        raise OSError("No space left on device")

    def work(rank):
        if missing == "memory":
            monkeypatch.setattr(os, "posix_fallocate", full)
        else:
            monkeypatch.setattr(shared_memory.socket, "gethostname", lambda: f"machine {rank}")
        x = sum_over_processes([torch.ones(3)])
        return x, shared_memory._of_group[1]

    for x, memory in in_processes(2, tmp_path, work):
        assert memory is None
        assert x.tolist() == [2.0] * 3
    assert not list(shared_memory.FOLDER.glob("eblvm_lit_*"))


def test_a_process_that_waits_for_one_that_has_ended_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "ALIVE", 0.01)

    def work(rank):
        sum_over_processes([torch.ones(1)])
        memory = shared_memory._of_group[1]
        ended = mp.get_context("fork").Process(target=time.time)
        ended.start()
        ended.join()
        memory.pids[1 - rank] = ended.pid
        if rank == 1:
            return None
        with pytest.raises(RuntimeError, match="process 1 has ended"):
            sum_over_processes([torch.ones(1)])

    in_processes(2, tmp_path, work)
