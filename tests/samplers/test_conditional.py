"""Tests of conditional samples and completions: their moments for every kind of chain, and the eval mode of the
model."""

import math
from collections import Counter
from contextlib import suppress

import pytest
import torch
from torch import nn

import eblvm_lit as eb
from cases import ENERGIES, VISIBLE_ENERGIES, at_every_level, harmonium_at_every_level
from eblvm_lit.core.eval_mode import eval_mode
from eblvm_lit.core.noise_levels import NoiseRange, join_level
from eblvm_lit.energies.noise_conditional import AtLevel, MarginalAtLevel, NoiseConditionalFreeEnergy
from eblvm_lit.samplers.conditional import draw_between, draw_visible, inpaint, interpolate
from eblvm_lit.samplers.dynamics import Chains, Dynamics
from eblvm_lit.samplers.probability_flow import ProbabilityFlow
from eblvm_lit.samplers.sample_noise import SampleNoise
from eblvm_lit.samplers.sampler import of_every_level
from helpers.annealing import Hidden, few, gaussian, sampler
from helpers.known_mixture import KnownMixture, Zero
from helpers.models import check_moments, generator

N = 2000  # the number of chains of a sampler, unless a test gives another one
STEP = 0.5  # the step size of these samplers
DOUBLE = torch.float64


def stationary(precision):
    """Return the stationary covariance of the chain x <- x - e^2 / 2 P (x - m) + e N, for a precision P and e =
    STEP."""
    return torch.linalg.inv(precision - STEP**2 / 4 * precision @ precision)


def test_visible_units_given_latents_have_the_moments_of_the_conditional():
    model = gaussian()
    h = torch.tensor([[1.0, -1.0], [-2.0, 0.5]], dtype=DOUBLE)
    v = draw_visible(sampler(), model, h.repeat_interleave(N, dim=0), seed=0)
    precision = torch.diag(model.visible_std().detach() ** -2)
    for part, mean in zip(v.split(N), model.visible_mean(h).detach(), strict=True):
        check_moments(part, mean, stationary(precision))


def test_the_last_step_takes_the_data_noise_away_from_visible_units():
    model = gaussian()
    h = torch.ones(5, 2, dtype=DOUBLE)
    noisy, clean = (draw_visible(sampler(9, denoise_std=s), model, h, seed=0) for s in (0.0, 0.2))
    mean = model.visible_mean(h)
    std = model.visible_std()
    torch.testing.assert_close(clean - mean, (1 - 0.04 / std**2) * (noisy - mean))


def test_conditional_samples_begin_where_they_are_told():
    model = gaussian()
    h = torch.ones(5, 2)
    start = torch.randn(5, 4, dtype=DOUBLE, generator=generator())
    still = sampler(3, batch_size=2, step_size=1e-12)
    torch.testing.assert_close(draw_visible(still, model, h, seed=3, start=start), start, rtol=0, atol=1e-10)
    own = 0.5 + SampleNoise(3, range(5))((4,), dtype=DOUBLE)
    torch.testing.assert_close(draw_visible(still, model, h, seed=3), own, rtol=0, atol=1e-10)


def test_no_chain_depends_on_the_batch_it_is_in():
    model = gaussian()
    whole = few(64)
    part = few(3)
    h = torch.randn(7, 2, generator=generator())
    v = torch.randn(7, 4, generator=generator(1))
    keep = torch.randint(2, (7, 4), generator=generator(2))
    for draw in (lambda s: draw_visible(s, model, h, seed=5), lambda s: inpaint(s, model, v, keep, seed=5)):
        torch.testing.assert_close(draw(part), draw(whole), rtol=0, atol=1e-10)
        assert not torch.allclose(draw(whole)[0], draw(whole)[1])


def test_interpolation_is_linear_and_row_by_row():
    a, b, c = torch.randn(3, 2, 3, dtype=DOUBLE, generator=generator()).unbind()
    line = interpolate(torch.stack([a, b]), 10)
    square = interpolate(torch.stack([a, b, c]), 10)
    for i in range(10):
        torch.testing.assert_close(line[i], a + i / 9 * (b - a))
        for j in range(10):
            torch.testing.assert_close(square[10 * i + j], a + i / 9 * (b - a) + j / 9 * (c - a))


def test_with_shared_noise_only_latents_make_a_difference():
    """Compare chains at interpolated latents with the interpolation of chains at the corners.

    They are equal, because the dynamics of a Gaussian model are linear and the chains share their noise.
    """
    model = gaussian()
    corners = torch.randn(3, 2, dtype=DOUBLE, generator=generator())
    square, line = draw_between(few(7), model, [corners, corners[:2]], 4, seed=1)
    ends = draw_visible(few(), model, corners, seed=1, samples=[0, 0, 0])
    torch.testing.assert_close(square, interpolate(ends, 4))
    torch.testing.assert_close(line, interpolate(ends[:2], 4))
    assert (square[0] - square[-1]).abs().max() > 1e-3


def test_without_shared_noise_chains_begin_between_the_images():
    model = gaussian()
    corners = torch.randn(3, 2, dtype=DOUBLE, generator=generator())
    images = torch.randn(3, 4, dtype=DOUBLE, generator=generator(1))
    (square,) = draw_between(sampler(3, step_size=1e-12), model, [corners], 4, seed=0, images=[images])
    torch.testing.assert_close(square, interpolate(images, 4), rtol=0, atol=1e-10)
    equal = torch.zeros(2, 2, dtype=DOUBLE), torch.zeros(2, 4, dtype=DOUBLE)
    (line,) = draw_between(few(), model, [equal[0]], 4, seed=0, images=[equal[1]])
    # These chains have equal latents and equal starts. If they also shared their noise, they would be equal.
    assert (line[1:] - line[0]).abs().amax(1).min() > 1e-3


KEEP = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=DOUBLE)


@pytest.mark.parametrize("kind", ["free energy", "joint energy", "fixed latents"])
def test_completions_have_the_moments_of_the_conditional(kind):
    model = gaussian()
    v = torch.tensor([7.0, 7.0, 1.5, -1.0], dtype=DOUBLE)
    h = None
    with torch.no_grad():
        truth = model.marginal()
        W = model.W[:2]
        own = torch.diag(model.visible_std()[:2] ** -2)
        precision = truth.precision_matrix[:2, :2]
        pull = truth.precision_matrix[:2, 2:] @ (v - truth.mean)[2:]
        assert pull.abs().min() > 0.05  # the kept pixels have an effect on the others
        mean = truth.mean[:2] - torch.linalg.solve(precision, pull)
        covariance = stationary(precision)
        if kind == "joint energy":
            together = torch.cat([torch.cat([own, -W], 1), torch.cat([-W.T, torch.eye(2, dtype=DOUBLE)], 1)])
            covariance = stationary(together)[:2, :2]
        if kind == "fixed latents":
            h = torch.tensor([0.8, -1.2], dtype=DOUBLE).expand(N, 2)
            mean = model.b[:2] + torch.linalg.solve(own, W @ h[0])
            covariance = stationary(own)
    energy = Hidden(model) if kind == "joint energy" else model
    full = inpaint(sampler(200), energy, v.expand(N, 4), KEEP.expand(N, 4), seed=0, h=h)
    check_moments(full[:, :2], mean, covariance)
    assert torch.equal(full[:, 2:], v[2:].expand(N, 2))


def exact_moves(n_steps, **options):
    """Build a sampler that accepts or rejects its moves, so that the step size causes no bias."""
    return eb.Sampler(dynamics=eb.GibbsLangevin(n_steps=n_steps, n_moves=3, step_size=0.9, **options))


def test_gibbs_and_langevin_sampling_reaches_the_conditionals():
    model = gaussian()
    h = torch.tensor([0.8, -1.2], dtype=DOUBLE)
    n = 500
    v = draw_visible(exact_moves(30), model, h.expand(n, 2), seed=0)
    check_moments(v, model.visible_mean(h).detach(), torch.diag(model.visible_std().detach() ** 2))
    given = torch.tensor([7.0, 7.0, 1.5, -1.0], dtype=DOUBLE)
    full = inpaint(exact_moves(20), model, given.expand(n, 4), KEEP.expand(n, 4), seed=0)
    with torch.no_grad():
        truth = model.marginal()
        precision = truth.precision_matrix[:2, :2]
        pull = truth.precision_matrix[:2, 2:] @ (given - truth.mean)[2:]
        mean = truth.mean[:2] - torch.linalg.solve(precision, pull)
    check_moments(full[:, :2], mean, torch.linalg.inv(precision))
    assert torch.equal(full[:, 2:], given[2:].expand(n, 2))


@pytest.mark.parametrize("denoise_latents", [False, True])
def test_the_last_step_of_joint_chains_moves_latents_on_request(denoise_latents, monkeypatch):
    chains = few(kind="joint")
    seen = []
    trajectory = eb.AnnealedLangevin.trajectory
    chains.denoise_latents = denoise_latents
    monkeypatch.setattr(eb.AnnealedLangevin, "trajectory", lambda *args: seen.extend(trajectory(*args)) or seen)
    chains.draw(Hidden(gaussian()), range(3), seed=0)
    assert torch.equal(seen[-2][1], seen[-1][1]) != denoise_latents


@pytest.mark.parametrize("model", [gaussian(), Hidden(gaussian())], ids=["free", "joint"])
def test_kept_pixels_stay_bit_by_bit_and_missing_ones_are_not_looked_at(model):
    v = torch.randn(6, 4, generator=generator())
    keep = torch.randint(2, (6, 4), generator=generator(1)).bool()
    full = inpaint(few(), model.float(), v, keep, seed=0)
    assert torch.equal(full[keep], v[keep])
    assert (full[~keep] != v[~keep]).all()
    other = torch.where(keep, v, torch.full_like(v, math.nan))
    assert torch.equal(inpaint(few(), model, other, keep, seed=0), full)
    model.double()


def test_missing_pixels_begin_at_noise_and_are_denoised_in_the_end():
    model = gaussian()
    v = torch.randn(5, 4, dtype=DOUBLE, generator=generator())
    keep = KEEP.expand(5, 4)
    still = inpaint(sampler(3, step_size=1e-12), model, v, keep, seed=2)
    noise = SampleNoise(2, range(5))((4,), dtype=DOUBLE)
    torch.testing.assert_close(still, v * KEEP + (0.5 + noise) * (1 - KEEP), rtol=0, atol=1e-10)
    noisy, clean = (inpaint(sampler(9, denoise_std=s), model, v, keep, seed=2) for s in (0, 0.2))
    torch.testing.assert_close(clean, noisy + 0.04 * model.score(noisy) * (1 - KEEP))


class Watched(eb.VisibleEnergy):
    event_shape = (4,)

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4).eval().requires_grad_(False)
        self.seen = set()

    def free_energy(self, v):
        parts = (self, self.a, self.b)
        self.seen.add((*(part.training for part in parts), any(p.requires_grad for p in self.parameters())))
        return v.square().sum(-1) + (self.a(v) - self.b(v)).square().sum(-1)

    def state(self):
        return [m.training for m in self.modules()], [p.requires_grad for p in self.parameters()]


def test_models_are_in_eval_mode_while_chains_move_and_as_before_after_them():
    model = Watched()
    before = model.state()
    assert before == ([True, True, False], [True, True, False, False])
    few(2).draw(model, range(6), seed=0)
    assert model.state() == before
    assert model.seen == {(False, False, False, False)}
    assert all(p.grad is None for p in model.parameters())
    with suppress(RuntimeError), eval_mode(model):
        raise RuntimeError
    assert model.state() == before


def test_chains_run_where_gradients_are_switched_off_and_leave_no_graph():
    with torch.no_grad():
        assert not few().draw(gaussian(), range(3), seed=0).requires_grad
    assert not draw_visible(few(), gaussian(), torch.zeros(2, 2), seed=0).requires_grad


def short_samplers():
    """Return samplers with every class of dynamics, each with one step or two."""
    dynamics = [
        eb.AnnealedLangevin(n_hot=1, n_falling=0, n_cold=0, step_size=0.01, denoise_std=0.1),
        eb.GibbsLangevin(n_steps=1, step_size=0.01, denoise_std=0.1),
        eb.ParallelTempering(n_steps=1, step_size=0.01, n_temperatures=2, denoise_std=0.1),
        eb.DiffusiveGibbs(n_sweeps=1, n_levels=1, n_moves=1, step_size=0.01),
        eb.Gibbs(n_steps=1),
        eb.Langevin(n_steps=1, step_size=0.01),
        ProbabilityFlow(n_steps=2),
    ]
    assert {type(part) for part in dynamics} == {*Dynamics.__subclasses__()}
    chains = [eb.Sampler(dynamics=part) for part in dynamics]
    chains += [eb.Sampler(dynamics=dynamics[0], kind=kind) for kind in ("joint", "gibbs")]
    return chains


@pytest.mark.parametrize(
    "case", [case for case in (*ENERGIES, *VISIBLE_ENERGIES) if len(case.event_shape) == 1], ids=str
)
def test_every_sampler_does_what_it_is_asked_or_says_why_not(case):
    energy = case.make()
    done = Counter()
    v = torch.rand(2, *energy.event_shape)
    h = torch.ones(2, energy.h_dim)
    keep = torch.arange(v.numel()).view_as(v) % 2
    for draw in short_samplers():
        calls = {
            "sample": lambda draw=draw: draw.sample(energy, 2, generator()),
            "visible": lambda draw=draw: draw_visible(draw, energy, h, seed=0),
            "inpaint": lambda draw=draw: inpaint(draw, energy, v, keep, seed=0),
            "inpaint at h": lambda draw=draw: inpaint(draw, energy, v, keep, seed=0, h=h),
        }
        for name, call in calls.items():
            with suppress(eb.ConfigError):
                found = call()
                assert found.shape == v.shape
                assert found.isfinite().all()
                assert "inpaint" not in name or torch.equal(found == v, keep == 1)
                done[name] += 1
    if energy.binary_visible:  # only Gibbs sweeps move bits
        assert sorted(done.values()) == [1] * 4
        return
    # Gibbs chains cannot be conditioned on latents. Only Gibbs chains and GibbsLangevin need p(h|v).
    known = isinstance(energy, eb.ConditionalEnergy)
    # The probability flow needs a model of every level, and without given latents also a free energy.
    levels = isinstance(energy, AtLevel | MarginalAtLevel)
    assert done["visible"] == 7 + known + levels
    assert done["inpaint at h"] == 7 + known + levels
    assert done["inpaint"] == (8 if known else 6) + isinstance(energy, MarginalAtLevel)
    assert done["sample"] >= (6 if known else 4)


def test_the_flow_of_independent_coordinates_is_the_same_with_and_without_kept_ones():
    energy = NoiseConditionalFreeEnergy(energy=Zero(), v_shape=[2], noise_range=NoiseRange(std=1.4)).double().of_data()
    draw = eb.Sampler(dynamics=ProbabilityFlow(n_steps=5))
    free = draw.draw(energy, range(4), seed=3)
    v = torch.tensor([0.0, 0.2], dtype=DOUBLE).expand(4, 2)
    completed = inpaint(draw, energy, v, torch.tensor([0.0, 1.0]).expand(4, 2), seed=3)
    torch.testing.assert_close(completed[:, 0], free[:, 0])
    assert torch.equal(completed[:, 1], v[:, 1])


def test_kept_pixels_have_the_noise_of_the_level():
    """Record the points at which the flow evaluates the energy: kept coordinates lie on the line v + sigma eps."""
    seen = []

    def energy(v, log_level):
        seen.append((v.detach().clone(), (log_level / 2).exp()))
        return 0.5 * v.square().sum(1)

    v = torch.full((3, 2), 0.2, dtype=DOUBLE)
    moving = torch.tensor([1.0, 0.0], dtype=DOUBLE).expand(3, 2)
    chains = Chains(energy, (v,), moving=(moving,), noise_range=NoiseRange(std=1.4))
    ProbabilityFlow(n_steps=4).end(chains, SampleNoise(0, range(3)))
    eps = torch.stack([(x[:, 1] - 0.2) / sigma for x, sigma in seen])
    torch.testing.assert_close(eps, eps[:1].expand_as(eps))
    assert eps[0].abs().min() > 1e-3
    assert len(seen) == 8


def test_corrections_leave_the_distribution_given_kept_coordinates_invariant():
    """Start at p(v_1 | v_2) of a noised mixture of two overlapping normal distributions."""
    centres = torch.tensor([[-0.6, -0.3], [0.6, 0.3]], dtype=DOUBLE)
    energy = KnownMixture(centres, [0.5, 0.5]).double()
    sigma = 0.4
    kept = 0.2
    variance = 0.3**2 + sigma**2
    shares = (-(kept - centres[:, 1]).square() / (2 * variance)).softmax(0)
    g = generator()
    which = torch.multinomial(shares, N, replacement=True, generator=g)
    first = centres[which, 0] + math.sqrt(variance) * torch.randn(N, generator=g, dtype=DOUBLE)
    v = torch.stack([first, torch.full_like(first, kept)], 1)
    moving = torch.tensor([1.0, 0.0], dtype=DOUBLE).expand(N, 2)
    chains = of_every_level(energy.of_data(), None, v)._replace(moving=(moving,))
    flow = ProbabilityFlow(n_corrections=40, correction_size=1.5)
    numbers = SampleNoise(0, range(N)).steps(flow.n_corrections, 2, 1, dtype=DOUBLE)
    moved = flow.corrected(chains, v, sigma, numbers)
    assert torch.equal(moved[:, 1], v[:, 1])
    assert (moved[:, 0] != first).double().mean() > 0.99
    mean = shares @ centres[:, 0]
    total = variance + shares @ centres[:, 0].square() - mean**2
    assert mean > 0.1
    assert moved[:, 0].mean() == pytest.approx(float(mean), abs=5 * math.sqrt(total / N))
    assert moved[:, 0].var() == pytest.approx(float(total), rel=5 * math.sqrt(2 / N))


@pytest.mark.parametrize("make", [at_every_level, harmonium_at_every_level])
def test_the_flow_given_latents_follows_the_energy_at_these_latents_and_every_level(make):
    torch.manual_seed(0)
    model = make().double()
    h = torch.randn(4, model.h_dim, dtype=DOUBLE)
    flow = ProbabilityFlow(n_steps=8)
    noise = SampleNoise(3, range(4))
    start = flow.start(tuple(model.v_shape), noise, dtype=DOUBLE)
    chains = Chains(lambda v, log_level: model.energy(join_level(v, log_level), h), (start,))
    (expected,) = flow.end(chains._replace(noise_range=model.noise_range), noise)
    draw = eb.Sampler(dynamics=flow)
    torch.testing.assert_close(draw_visible(draw, model.of_data(), h, seed=3), expected)
    # A chain starts at the largest level, so that the starts that other dynamics would take are not used.
    torch.testing.assert_close(draw_visible(draw, model.of_data(), h, seed=3, start=0 * expected), expected)


def test_dynamics_that_follow_gradients_refuse_bits_in_a_sentence():
    rbm = eb.BernoulliRBM(v_dim=2, h_dim=3)
    for call in (
        lambda: eb.Sampler(dynamics=eb.Langevin(n_steps=2, step_size=0.01)).sample(rbm, 2, generator()),
        lambda: draw_visible(eb.Sampler(dynamics=eb.GibbsLangevin(n_steps=2)), rbm, torch.ones(2, 3), seed=0),
    ):
        with pytest.raises(eb.ConfigError, match=r"needs gradients with respect to v.*BernoulliRBM are bits.*Gibbs"):
            call()
    assert not eb.HamiltonianAIS.supports(rbm)
    assert not eb.VisibleQuadrature.supports(rbm)
