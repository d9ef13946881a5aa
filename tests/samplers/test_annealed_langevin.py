"""Tests of annealed Langevin dynamics: the published schedule, a step by its equation, kinds of chains, and their
noise."""

import math

import pytest
import torch

import eblvm_lit as eb
from eblvm_lit.samplers.sample_noise import SampleNoise

SHORT = {"n_hot": 3, "n_falling": 60, "n_cold": 7}


def gaussian(x):
    return (x - 1).square().sum() / 2


def test_the_published_schedule():
    t = eb.AnnealedLangevin().temperatures
    assert len(t) == eb.AnnealedLangevin().n_steps == 2700
    expected = [100.0] * 500 + [100 * math.exp(-i * math.log(100) / 2000) for i in range(2000)]
    expected += [1 - i / 199 for i in range(200)]
    torch.testing.assert_close(t, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-15)
    assert t[2499].item() == pytest.approx(1.0023, abs=1e-4)
    assert eb.AnnealedLangevin(n_hot=0, n_falling=0, n_cold=1).temperatures.tolist() == [1.0]
    held = eb.AnnealedLangevin(temperature=4.0, n_hot=0, n_falling=1, n_held=2, n_cold=2)
    assert held.temperatures.tolist() == [4, 1, 1, 1, 0]
    assert held.stationary == range(2, 4)


def test_a_step_is_the_equation():
    langevin = eb.AnnealedLangevin(step_size=0.3, temperature=4.0, n_hot=1, n_falling=0, n_cold=0, denoise_std=0.2)
    start = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    xi = SampleNoise(5, [7])((1, 2), dtype=torch.float64)[0]
    (after,), (end,) = langevin.trajectory(eb.Chains(gaussian, (start,)), SampleNoise(5, [7]))
    expected = start - 0.5 * 0.09 * (start - 1) + 2.0 * 0.3 * xi
    torch.testing.assert_close(after, expected)
    torch.testing.assert_close(end, expected - 0.04 * (expected - 1))


def test_one_index_given_twice_shares_its_noise_and_others_do_not():
    noise = SampleNoise(0, [4, 4, 5])((1000,))
    assert torch.equal(noise[0], noise[1])
    assert abs(torch.corrcoef(noise[1:])[0, 1]) < 0.15
    assert not torch.equal(SampleNoise(1, [4])((3,)), SampleNoise(0, [4])((3,)))


def short(kind="auto", batch_size=3, **options):
    langevin = eb.AnnealedLangevin(**{"step_size": 0.3, "n_hot": 2, "n_falling": 40, "n_cold": 5, **options})
    return eb.Sampler(dynamics=langevin, kind=kind, batch_size=batch_size)


def deep_model():
    torch.manual_seed(0)
    return eb.DeepVectorEnergy(v_dim=2, h_dim=3).double(), eb.LinearGaussianPosterior(v_dim=2, h_dim=3).double()


@pytest.mark.parametrize("kind", ["posterior", "joint", "score"])
def test_samples_do_not_depend_on_the_batch(kind):
    energy, q = deep_model()
    examples = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = short(kind, 64).draw(energy, range(10), seed=4, posterior=q, examples=examples)
    part = short(kind).draw(energy, range(5, 9), seed=4, posterior=q, examples=examples)
    torch.testing.assert_close(part, whole[5:9], rtol=0, atol=1e-10)


def test_the_kind_is_the_first_that_the_model_allows():
    energy, q = deep_model()
    examples = torch.zeros(1, 2, dtype=torch.float64)
    assert short().kind_for(eb.GaussianLatentModel(v_dim=2, h_dim=3), q, examples) == "marginal"
    assert short().kind_for(energy, q, examples) == "posterior"
    assert short().kind_for(energy, None, None) == "joint"
    assert short().kind_for(None, q, examples) is None
    with pytest.raises(eb.ConfigError, match="kind posterior"):
        short("posterior").draw(energy, range(2), seed=0)


def test_with_the_true_posterior_chains_along_the_estimated_score_are_those_of_the_marginal():
    torch.manual_seed(0)
    energy = eb.GaussianLatentModel(v_dim=2, h_dim=3, weight_scale=1.5).double()
    q = eb.LinearGaussianPosterior(v_dim=2, h_dim=3).double()
    # q has the true mean of the latents. As grad_v E is linear in h, its value at this mean is the gradient of F(v).
    q.mean = energy.latent_mean
    draws = [short(kind).draw(energy, range(6), seed=4, posterior=q) for kind in ("score", "marginal")]
    torch.testing.assert_close(*draws, rtol=1e-12, atol=1e-12)


def test_the_kind_mean_differentiates_through_the_posterior():
    energy, q = deep_model()
    noise = SampleNoise(4, range(5))
    start = (langevin := short().dynamics).start((2,), noise, dtype=torch.float64)
    (expected,) = langevin.end(eb.Chains(lambda v: energy.energy(v, q.mean(v)), (start,)), noise)
    torch.testing.assert_close(short("mean").draw(energy, range(5), seed=4, posterior=q), expected)


def test_latents_are_posterior_means_at_the_samples_own_examples():
    energy, q = deep_model()
    examples = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = SampleNoise(4, range(5))
    langevin = short().dynamics
    start = langevin.start((2,), noise, dtype=torch.float64)
    h = q.mean(examples[noise.integers(50)])
    (expected,) = langevin.end(eb.Chains(lambda v: energy.energy(v, h).sum(), (start,)), noise)
    found = short("posterior").draw(energy, range(5), seed=4, posterior=q, examples=examples)
    torch.testing.assert_close(found, expected)


def test_divergence_is_refused():
    with pytest.raises(eb.ConfigError, match="step_size"):
        short("marginal", step_size=50.0).draw(eb.GaussianLatentModel(v_dim=2, h_dim=3), range(2), seed=0)


def test_adjusted_steps_fall_with_the_temperature():
    start = torch.full((200, 1), 3.0, dtype=torch.float64)
    langevin = eb.AnnealedLangevin(
        step_size=0.5, temperature=16.0, n_hot=1, n_falling=0, n_cold=0, denoise_std=0.0, n_leapfrog=1
    )
    (x,) = langevin.end(eb.Chains(lambda x: 0 * x.sum(1), (start,)), SampleNoise(0, range(200)))
    normal = torch.cat([row for row, _ in SampleNoise(0, range(200)).steps(1, 1, 1, dtype=torch.float64)])
    # The energy is constant, so that each step is accepted. Its size at temperature 16 is 0.5 * sqrt(16) = 2.
    torch.testing.assert_close(x, start + 2.0 * normal)
