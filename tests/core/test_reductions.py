"""Tests of weighted means over processes, for tensors of several dtypes and layouts."""

import pytest
import torch
import torch.multiprocessing as mp

from eblvm_lit.core.reductions import weighted_means
from helpers.processes import in_processes


@pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")
def test_tensors_of_several_dtypes_and_layouts_are_averaged_with_weights(tmp_path):
    weights = (0.375, 0.625)

    def row(rank):
        x = torch.arange(40, dtype=torch.float64).add(rank).sin()
        return [torch.tensor(2.5 + rank), x[:14].view(2, 7).T, x[5:], x[:0], x[-8:].view(2, 2, 2).transpose(0, 2)]

    found = in_processes(2, tmp_path, lambda rank: weighted_means(row(rank), weights[rank]))
    for first, second, a, b in zip(*found, row(0), row(1), strict=True):
        assert first.dtype == a.dtype
        assert torch.equal(first, second)
        torch.testing.assert_close(first, weights[0] * a + weights[1] * b, rtol=1e-14, atol=1e-15)
