"""The Bernoulli noise distribution against torch's, by enumeration of all bits."""

import torch

from cases import NOISE_DISTRIBUTIONS, V_DIM, binary
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.noise_distributions.independent_bits import FittedBernoulli


def test_probabilities_and_samples_are_torchs(float64):
    (case,) = [case for case in NOISE_DISTRIBUTIONS if case.name == "fitted-bernoulli"]
    p_n = case.make()
    y = binary(V_DIM)
    torch.testing.assert_close(p_n.log_prob(y), case.truth(p_n).log_prob(y))
    # the middles of n equal ranges of u, of which a bit is 1 in as many as its mean says
    u = (torch.arange(1000) + 0.5).unsqueeze(1).expand(-1, V_DIM) / 1000
    torch.testing.assert_close(p_n.sample(u).mean(0), p_n.mean, atol=1e-3, rtol=0)
    noise = p_n.noise((3,), y, keyed_generator(0))
    assert noise.shape == (3, 4, V_DIM)
    assert 0 <= noise.min() < 0.3 < 0.7 < noise.max() < 1


def test_the_means_count_one_more_of_each_value_and_are_fitted_once(float64):
    v = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    p_n = FittedBernoulli()
    p_n.prepare((3,))
    p_n.fit(v.split(2))
    torch.testing.assert_close(p_n.mean, torch.tensor([3 / 5, 4 / 5, 1 / 5]))
    p_n.fit([1 - v])  # as after a checkpoint
    torch.testing.assert_close(p_n.mean, torch.tensor([3 / 5, 4 / 5, 1 / 5]))
    assert p_n.log_prob(binary(3)).isfinite().all()
