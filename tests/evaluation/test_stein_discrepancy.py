"""Tests of the metric of the kernelised Stein discrepancy."""

from types import SimpleNamespace

import pytest
import torch

import eblvm_lit as eb
from cases import ENERGIES, V_DIM
from eblvm_lit.core.tensors import median_distance
from eblvm_lit.evaluation.stein_discrepancy import SteinDiscrepancy
from eblvm_lit.objectives.ksd import KSD
from helpers.stand_in import StandIn

pytestmark = pytest.mark.usefixtures("float64")
BINARY = [case for case in ENERGIES if case.binary]


def test_metric_is_the_u_statistic_in_blocks():
    method = StandIn()
    method.energy = BINARY[0].make()
    v = torch.randn(450, V_DIM)

    def expected(v, b=0.7):
        return KSD(bandwidth=b, pairs="all").loss(method.energy.score, v, {}).mean().item()

    found = SteinDiscrepancy(bandwidth=0.7).compute(method, v, None)["ksd"]
    assert found == pytest.approx(expected(v), rel=1e-10)
    few = SteinDiscrepancy(bandwidth=0.7, max_points=100).compute(method, v, None)["ksd"]
    assert few == pytest.approx(expected(v[:100]))
    median = SteinDiscrepancy().compute(method, v, None)["ksd"]
    assert median == pytest.approx(expected(v, float(median_distance(v))))
    data = SimpleNamespace(splits=[v, v, v[:2]])
    assert SteinDiscrepancy().applies(method, data)
    assert not SteinDiscrepancy().applies(StandIn(), data)
    assert not SteinDiscrepancy().applies(method, SimpleNamespace(splits=[v, v[:1], v]))
    assert not SteinDiscrepancy().applies(StandIn(energy=eb.BernoulliRBM(v_dim=V_DIM, h_dim=2)), data)


def test_equal_examples_have_no_median_bandwidth(caplog):
    method = StandIn(energy=BINARY[0].make())
    assert SteinDiscrepancy().compute(method, torch.ones(5, V_DIM), None) == {}
    assert "ksd is left out: more than half of the examples are equal" in caplog.text
