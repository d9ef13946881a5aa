"""Tests of data from the standard normal distribution N(0, I)."""

import math

import torch

from eblvm_lit.data.standard_normal import StandardNormalData


def test_data_are_standard_normal_and_have_the_score_of_that_density():
    data = StandardNormalData(v_dim=5, seed=1)
    equal = StandardNormalData(v_dim=5, seed=2)
    splits = data.load()
    other = StandardNormalData(v_dim=5, sample_seed=1).load()
    assert [tuple(v.shape) for v in splits] == [(16_000, 5), (2_000, 5), (2_000, 5)]
    assert all(torch.equal(v, same) and (v != x).all() for v, same, x in zip(splits, equal.load(), other, strict=True))
    assert (splits.val != splits.test).all()
    assert (splits.train[:2000] != splits.val).all()
    torch.testing.assert_close(splits.train.mean(0), torch.zeros(5), atol=5 / math.sqrt(16_000), rtol=0)
    torch.testing.assert_close(splits.train.T.cov(), torch.eye(5), atol=0.06, rtol=0)
    v = splits.test[:3].clone().requires_grad_()
    log_p = torch.distributions.Normal(0.0, 1.0).log_prob(v).sum()
    torch.testing.assert_close(torch.autograd.grad(log_p, v)[0], data.score(v).detach())
