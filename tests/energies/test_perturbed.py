"""Tests of the perturbed GRBM, whose perturbation has its own seed."""

import math

import pytest
import torch

import eblvm_lit as eb


def test_perturbed_models_of_one_seed_are_multiples_of_one_another_whatever_the_global_seed(float64):
    torch.manual_seed(1)
    one = eb.PerturbedGRBM(v_dim=40, h_dim=50, perturbation=1.0, perturbation_seed=3)
    torch.manual_seed(2)
    half = eb.PerturbedGRBM(v_dim=40, h_dim=50, perturbation=0.5, perturbation_seed=3)
    other = eb.PerturbedGRBM(v_dim=40, h_dim=50, perturbation=1.0, perturbation_seed=4)
    for name in ("W", "b", "c"):
        torch.testing.assert_close(half.get_parameter(name), 0.5 * one.get_parameter(name))
        assert (one.get_parameter(name) != other.get_parameter(name)).all()
    assert one.W.std().item() == pytest.approx(1, abs=5 / math.sqrt(2 * 2000))
    assert one.W.mean().item() == pytest.approx(0, abs=5 / math.sqrt(2000))
    assert len({*one.b.tolist(), *one.c.tolist(), *one.W.flatten().tolist()}) == 40 + 50 + 2000
    assert (one.log_std == 0).all()
    assert "log_std" not in eb.params_of(one)
