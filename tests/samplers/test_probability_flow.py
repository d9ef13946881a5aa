"""Tests of the probability flow: closed form for normal data, order of the solvers, and invariant corrections."""

import math

import pytest
import torch

import eblvm_lit as eb
from cases import at_every_level, randomise
from eblvm_lit.core.noise_levels import NoiseRange, join_level
from eblvm_lit.draws.choice import FittingSampler
from eblvm_lit.energies.composed import ProductEnergy, TiltedEnergy
from eblvm_lit.energies.mlp_energy import MLPEnergy
from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
from eblvm_lit.posteriors.at_every_level import NoiseConditionalPosterior
from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
from eblvm_lit.samplers.dynamics import Chains
from eblvm_lit.samplers.probability_flow import Denoised, ProbabilityFlow, multistep, slope_at
from eblvm_lit.samplers.sample_noise import SampleNoise
from eblvm_lit.samplers.sampler import Sampler
from eblvm_lit.utils.digest import digest
from helpers.known_mixture import Zero

pytestmark = pytest.mark.usefixtures("float64")
RANGE = NoiseRange(mean=0.3, std=1.4)


def normal_model():
    return NoiseConditionalFreeEnergy(energy=Zero(), v_shape=[2], noise_range=RANGE).of_data()


@pytest.mark.parametrize("solver", ["heun", "multistep"])
def test_normal_data_are_reached_with_an_error_of_second_order(solver):
    noise = SampleNoise(0, range(5))
    z = noise((2,), dtype=torch.float64)
    # The exact solution is the mean plus z times the standard deviation of the noised data.
    exact = 0.3 + math.sqrt(1.4**2 + RANGE.t_min) * z
    errors = []
    for n in (40, 80):
        sampler = Sampler(dynamics=ProbabilityFlow(n_steps=n, solver=solver))
        samples = sampler.run(normal_model(), sampler._chains(normal_model(), None, None), range(5), seed=0)
        errors.append(float((samples - exact).abs().max()))
    assert errors[1] < 4e-3
    # With twice as many steps, the error of a second-order method becomes four times smaller.
    assert 3.2 < errors[0] / errors[1] < 5


@pytest.mark.parametrize("solver", ["heun", "multistep"])
def test_a_guided_flow_of_normal_data_ends_at_the_closed_form(solver):
    guide_range = NoiseRange(mean=0.3, std=2.3)
    guide = NoiseConditionalFreeEnergy(energy=Zero(), v_shape=[2], noise_range=guide_range).of_data()
    z = SampleNoise(0, range(5))((2,), dtype=torch.float64)
    # The flow is dv/dsigma = sigma ((1 + g) (v - m) / (s^2 + sigma^2) - g (v - m) / (s'^2 + sigma^2)), because both
    # densities have the mean m = 0.3.
    g = 0.7
    first = RANGE.t_max
    last = RANGE.t_min
    own = ((1.4**2 + last) / (1.4**2 + first)) ** ((1 + g) / 2)
    of_guide = ((2.3**2 + last) / (2.3**2 + first)) ** (-g / 2)
    exact = 0.3 + own * of_guide * math.sqrt(1.4**2 + first) * z
    errors = []
    for n in (80, 160):
        sampler = Sampler(dynamics=ProbabilityFlow(n_steps=n, guide=guide, guidance=g, solver=solver))
        errors.append(float((sampler.draw(normal_model(), range(5), seed=0) - exact).abs().max()))
    assert errors[1] < 2e-3
    assert 3.2 < errors[0] / errors[1] < 5


def test_a_guide_that_is_the_model_or_has_no_weight_changes_nothing_and_a_guide_needs_every_level():
    plain = Sampler(dynamics=ProbabilityFlow(n_steps=5, n_corrections=1)).draw(normal_model(), range(3), seed=0)
    wide = NoiseConditionalFreeEnergy(energy=Zero(), v_shape=[2], noise_range=NoiseRange(std=3.0)).of_data().float()
    for guide, guidance in ((normal_model(), 2.0), (wide, 0.0)):
        flow = ProbabilityFlow(n_steps=5, n_corrections=1, guide=guide, guidance=guidance)
        torch.testing.assert_close(Sampler(dynamics=flow).draw(normal_model(), range(3), seed=0), plain)
    assert next(wide.parameters()).dtype == torch.float32  # the chains have converted a copy of the guide
    assert digest(*ProbabilityFlow(guide=wide).settings) != digest(*ProbabilityFlow(guide=normal_model()).settings)
    # A run asks for the kind of chains before it trains.
    other = NoiseConditionalFreeEnergy(energy=MLPEnergy(v_dim=4, widths=[5]), v_shape=[3], noise_range=RANGE)
    with pytest.raises(eb.ConfigError, match=r"shape \(3,\), and not \(2,\)"):
        Sampler(dynamics=ProbabilityFlow(guide=other)).kind_for(normal_model(), None, None)
    with pytest.raises(eb.ConfigError, match="method=dual"):
        ProbabilityFlow(guide=eb.GRBM(v_dim=2, h_dim=3))


def test_the_multistep_method_evaluates_each_gradient_once_in_a_step_and_takes_no_corrections():
    sampler = Sampler(dynamics=ProbabilityFlow())
    chains = sampler._chains(normal_model(), None, None)(slice(0, 2), SampleNoise(0, range(2)))
    levels = []

    def energy(v, log_level):
        levels.append(math.exp(float(log_level[0]) / 2))
        return chains.energy(v, log_level)

    counted = chains._replace(energy=energy)
    flow = ProbabilityFlow(n_steps=6, solver="multistep")
    assert len(list(flow.steps(counted, SampleNoise(0, range(2))))) == 6
    assert levels == pytest.approx(flow.levels(RANGE)[:-1])
    assert digest(*flow.settings) != digest(*ProbabilityFlow(n_steps=6).settings)
    with pytest.raises(eb.ConfigError, match="solver=heun"):
        ProbabilityFlow(n_corrections=1, solver="multistep")


def test_a_multistep_step_has_an_error_of_third_order_if_the_step_before_was_wider():
    # With x = -log sigma and D = 0.7 + 2 x, the flow dv/dx = D - v has the solution 0.7 + 2 (x - 1) + exp(-x).
    def exact(x):
        return torch.tensor([0.7 + 2 * (x - 1) + math.exp(-x)])

    def denoised(x):
        return Denoised(torch.tensor([0.7 + 2 * x]), math.exp(-x))

    errors = []
    for width in (0.02, 0.01):
        moved = multistep(exact(0.3), math.exp(-0.3 - width), denoised(0.3), denoised(0.3 - 3 * width))
        errors.append(float((moved - exact(0.3 + width)).abs()))
    assert 7.5 < errors[0] / errors[1] < 8.5


def test_a_gradient_longer_than_noise_is_replaced_only_if_it_is_the_score_of_noised_data():
    sampler = Sampler(dynamics=ProbabilityFlow())
    chains = sampler._chains(normal_model(), None, None)(slice(0, 2), SampleNoise(0, range(2)))
    sigma = 2.0
    # The second example lies twice as far from the mean as the first, so that only its gradient is longer than noise.
    v = 0.3 + torch.tensor([[3.0, 4.0], [-8.0, 6.0]])
    of_normal = (v - 0.3) / (1.4**2 + sigma**2)
    longest = (math.sqrt(2) + 5) / (sigma * of_normal.norm(dim=1))
    for factor, expected in ((0.99 * longest[1], 0.99 * longest[1]), (1.01 * longest[1], torch.tensor(1.0))):
        steep = chains._replace(energy=lambda *w, factor=factor: factor * chains.energy(*w))
        slope = slope_at(steep, v, sigma)
        torch.testing.assert_close(slope[0], factor * of_normal[0])
        torch.testing.assert_close(slope[1], expected * of_normal[1])
        torch.testing.assert_close(slope_at(steep._replace(is_score=False), v, sigma), factor * of_normal)
    tilted = TiltedEnergy(energy=normal_model(), log_factor=lambda v, _: v[:, 0]).of_data()
    for energy in (ProductEnergy(energies=[normal_model(), normal_model()]).of_data(), tilted):
        assert not sampler._chains(energy, None, None)(slice(0, 2), SampleNoise(0, range(2))).is_score


def test_levels_go_from_the_largest_to_the_smallest():
    flow = ProbabilityFlow(n_steps=9)
    levels = flow.levels(RANGE)
    assert len(levels) == 10
    assert levels == sorted(levels, reverse=True)
    assert (levels[0], levels[-1]) == pytest.approx((14.0, 0.014))
    roots = [x ** (1 / 7) for x in levels]
    assert max(abs(a - 2 * b + c) for a, b, c in zip(roots, roots[1:], roots[2:], strict=False)) < 1e-12


def test_corrections_leave_the_density_of_the_level_invariant_and_mend_a_wrong_start():
    flow = ProbabilityFlow(n_corrections=60, correction_size=1.0)
    n = 4000
    noise = SampleNoise(1, range(n))
    sampler = Sampler(dynamics=flow)
    chains = sampler._chains(normal_model(), None, None)(slice(0, n), noise)
    sigma = 0.8
    std = math.sqrt(1.4**2 + sigma**2)
    for scale in (std, 0.5 * std):
        start = 0.3 + scale * noise((2,), dtype=torch.float64)
        end = flow.corrected(chains, start, sigma, noise.steps(60, 2, 1, dtype=torch.float64))
        assert (end - 0.3).square().mean().sqrt() == pytest.approx(std, rel=5 / math.sqrt(4 * n))
        assert not torch.equal(end, start)


def test_the_flow_of_a_joint_energy_follows_the_energy_at_the_posterior_mean():
    energy = randomise(at_every_level(3))
    linear = LinearGaussianPosterior(v_dim=3, h_dim=energy.h_dim)
    q = NoiseConditionalPosterior(posterior=randomise(linear), noise_range=RANGE)
    sampler = Sampler(dynamics=ProbabilityFlow(n_steps=4))
    chains = sampler._chains(energy.of_data(), q.of_data(), None)(slice(0, 3), SampleNoise(0, range(3)))
    v = torch.randn(3, 2)
    w = join_level(v, torch.full((3,), math.log(0.5)))
    torch.testing.assert_close(chains.energy(v, w[:, 2]), energy.energy(w, q.mean(w)))
    x = v.clone().requires_grad_()
    (slope,) = torch.autograd.grad(chains.energy(x, w[:, 2]).sum(), x)
    y = w.clone().requires_grad_()
    (expected,) = torch.autograd.grad(energy.energy(y, q.mean(w).detach()).sum(), y)
    torch.testing.assert_close(slope, expected[:, :2])
    assert sampler.draw(energy.of_data(), range(3), seed=0, posterior=q.of_data()).shape == (3, 2)


def test_models_of_every_level_are_drawn_by_the_flow_unless_told_otherwise():
    fitting = FittingSampler(dynamics=AnnealedLangevin())
    chosen = fitting.fitting(normal_model(), images=True)
    assert isinstance(chosen.dynamics, ProbabilityFlow)
    assert chosen.kind_for(normal_model(), None, None) == "levels"
    assert Sampler(dynamics=AnnealedLangevin()).kind_for(normal_model(), None, None) == "marginal"


def test_a_model_of_one_level_is_refused():
    chains = Chains(lambda v: v.sum(1), (torch.zeros(1, 2),))
    with pytest.raises(eb.ConfigError, match="objective=dual"):
        next(ProbabilityFlow().steps(chains, SampleNoise(0, [0])))
    with pytest.raises(eb.ConfigError, match="every noise level"):
        Sampler(dynamics=ProbabilityFlow()).draw(eb.GRBM(v_dim=2, h_dim=3), [0], seed=0)
