"""Tests of the metric of the reconstruction error per pixel."""

import copy

import pytest
import torch

from eblvm_lit.evaluation.reconstruction_error import ReconstructionError
from helpers.bidvl_images import SHAPE, bidvl


def test_reconstruction_error_is_per_pixel_and_in_evaluation_mode(float64):
    method = bidvl("offset")
    v = torch.randn(250, *SHAPE)
    for n in (101, 201):  # batch normalisation refuses a last chunk of one row
        assert ReconstructionError(batch_statistics=True).compute(method, v[:n], torch.Generator())["rmse"] > 0
    metrics = ReconstructionError().compute(method, v, torch.Generator())
    assert method.generator.training
    before = {name: b.clone() for name, b in method.persistent_buffers().items()}
    released = ReconstructionError(batch_statistics=True).compute(method, v, torch.Generator())
    assert all(torch.equal(b, before[name]) for name, b in method.persistent_buffers().items())
    encoder, generator = (copy.deepcopy(part).train() for part in (method.posterior, method.generator))
    squares = torch.cat([(generator(encoder.mean(x)) - x).square() for x in v.split(100)])
    assert released == {"rmse": pytest.approx(squares.mean().sqrt().item(), rel=1e-12)}
    method.eval()
    error = method.generator(method.posterior.mean(v)) - v
    assert metrics == {"rmse": pytest.approx(error.square().mean().sqrt().item(), rel=1e-12)}
