"""Tests of energies: free energy, conditionals, score and log Z against sums, quadrature and autograd."""

import math

import pytest
import torch
from torch.func import hessian, jacrev, vmap

import eblvm_lit as eb
from cases import ENERGIES, H_DIM, V_DIM, binary, enumerated_free_energy, randomise
from eblvm_lit.runs.instantiate import instantiate

pytestmark = pytest.mark.usefixtures("float64")


def every(condition):
    """Run a test for each energy that fulfils a condition.

    The test keeps the condition as an attribute, for :func:`batteries`.
    """

    def over_rows(test):
        test.condition = condition
        return pytest.mark.parametrize("case", [case for case in ENERGIES if condition(case)], ids=str)(test)

    return over_rows


every_energy = every(lambda case: True)
every_written_out = every(lambda case: case.formula is not None)
every_summed = every(lambda case: case.nodes is not None)
every_inferred = every(lambda case: case.nodes is not None and case.conditional is not None)


def batteries(case):
    """Return the tests of this file that apply to a user's own energy."""
    return [test for test in globals().values() if hasattr(test, "condition") and test.condition(case)]


def enumerated(case, energy, v):
    """Compute F(v) (B,), and the nodes (S, H) and probabilities (S, B) of p(h|v), from values of E only."""
    (h, log_weight) = case.nodes(energy)
    free_energy = enumerated_free_energy(case, energy, v)
    log_p = log_weight.unsqueeze(-1) - energy.energy(v, h.unsqueeze(1).expand(-1, len(v), -1))
    return free_energy, h, (log_p + free_energy).exp()


@every_energy
def test_energies_of_examples_and_particles_are_independent(case):
    energy = case.make()
    v = torch.randn(4, *case.event_shape)
    h = torch.randn(2, 5, 4, H_DIM)
    whole = energy(v, h)
    assert whole.shape == (2, 5, 4)
    torch.testing.assert_close(energy(v, h.flip(1)), whole.flip(1))
    torch.testing.assert_close(energy(v.flip(0), h.flip(2)), whole.flip(2))
    torch.testing.assert_close(energy(v, h[1, 3]), whole[1, 3])
    torch.testing.assert_close(energy(v[2:3], h[0, :, 2:3]), whole[0, :, 2:3])
    assert ((whole[:, 1:] - whole[:, :1]).abs() > 1e-6).all()


@every_written_out
def test_energy_has_its_formula(case):
    energy = case.make()
    v = torch.randn(4, V_DIM)
    h = torch.randn(5, 4, H_DIM)
    for particle in range(5):
        for row in range(4):
            torch.testing.assert_close(energy(v, h)[particle, row], case.formula(energy, v[row], h[particle, row]))


@every_summed
def test_free_energy_sums_the_latents_out(case):
    energy = case.make()
    v = 2 * torch.randn(6, V_DIM)
    exact = enumerated_free_energy(case, energy, v)
    torch.testing.assert_close(energy.free_energy(v), exact, rtol=1e-11, atol=1e-11)


@every_inferred
def test_conditional_of_the_latents(case):
    energy = case.make()
    v = torch.randn(6, V_DIM)
    free_energy, h, p = enumerated(case, energy, v)
    if isinstance(energy, eb.ConditionalEnergy):
        torch.testing.assert_close(energy.latent_mean(v), p.T @ h, rtol=1e-10, atol=1e-10)
    h = torch.randint(0, 2, (5, 6, 3)).to(v)
    closed = case.conditional(energy, v).log_prob(h)
    torch.testing.assert_close(closed, free_energy - energy.energy(v, h), rtol=1e-10, atol=1e-10)
    if case.exact_posterior:
        torch.testing.assert_close(case.exact_posterior(energy).log_prob(h, v), closed, rtol=1e-10, atol=1e-10)


@every_summed
def test_conditional_of_the_visibles_is_the_gaussian_the_energy_says(case):
    energy = case.make()
    if not isinstance(energy, eb.ConditionalEnergy) or energy.binary_visible:
        pytest.skip(f"p(v|h) of {type(energy).__name__} is not normal, or cannot be sampled")
    h = torch.randn(5, 3)
    mean = energy.visible_mean(h)
    precision = energy.visible_std() ** -2
    assert energy.visible_std().shape == (V_DIM,)
    slope = vmap(jacrev(lambda v, h: energy.energy(v, h)))(mean, h)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-12, rtol=0)
    curvature = vmap(hessian(lambda v, h: energy.energy(v, h)))(torch.randn(5, V_DIM), h)
    torch.testing.assert_close(curvature, torch.diag(precision).expand(5, -1, -1))


@every_summed
def test_score_and_its_divergence_are_derivatives_of_the_free_energy(case):
    energy = case.make()
    v = torch.randn(6, V_DIM)
    x = v.clone().requires_grad_()
    score = torch.autograd.grad(-enumerated(case, energy, x)[0].sum(), x, create_graph=True)[0]
    for closed in (energy.score(v), eb.MarginalEnergy.score(energy, v)):
        torch.testing.assert_close(closed, score.detach(), rtol=1e-9, atol=1e-9)
    trace = sum(torch.autograd.grad(score[:, i].sum(), x, retain_graph=True)[0][:, i] for i in range(V_DIM))
    for closed in (energy.score_divergence(v), eb.MarginalEnergy.score_divergence(energy, v)):
        torch.testing.assert_close(closed, trace.detach(), rtol=1e-9, atol=1e-9)


def grid(half_width=18.0, n=450):
    x = torch.linspace(-half_width, half_width, n)
    return torch.cartesian_prod(x, x), 2 * math.log(2 * half_width / (n - 1))


@every_summed
def test_partition_function_is_the_integral_of_the_marginal(case):
    energy = case.make()
    if not hasattr(energy, "log_partition"):
        pytest.skip(f"{type(energy).__name__} has no log_partition()")
    (v, log_cell) = (binary(V_DIM), 0.0) if energy.binary_visible else grid()
    log_p = -energy.free_energy(v)
    torch.testing.assert_close(energy.log_partition(), log_p.logsumexp(0) + log_cell, rtol=1e-10, atol=1e-10)


def test_marginal_of_the_gaussian_model():
    energy = ENERGIES[-1].make()
    (v, log_cell) = grid()
    marginal = energy.marginal()
    torch.testing.assert_close(marginal.log_prob(v), -energy.free_energy(v) - energy.log_partition())
    p = (marginal.log_prob(v) + log_cell).exp()
    torch.testing.assert_close(p @ v, marginal.mean)
    torch.testing.assert_close((p.unsqueeze(-1) * (v - p @ v)).T @ (v - p @ v), marginal.covariance_matrix)
    with torch.no_grad():
        energy.W.mul_(10)
    with pytest.raises(ValueError, match="PositiveDefinite"):
        energy.marginal()


def test_parametrisations_of_the_grbm_are_one_family():
    paper = randomise(eb.GRBM(v_dim=4, h_dim=3, parametrisation="paper"))
    code = eb.GRBM(v_dim=4, h_dim=3)
    sigma = paper.log_std.exp()
    with torch.no_grad():
        code.W.copy_(torch.diag(1 / sigma.expand(4)) @ paper.W)
        code.b.copy_(paper.b), code.c.copy_(paper.c), code.log_std.copy_(paper.log_std.expand(4))
    v = torch.randn(5, 4)
    h = torch.randint(0, 2, (7, 5, 3)).double()
    torch.testing.assert_close(paper.energy(v, h), code.energy(v, h))
    torch.testing.assert_close(paper.free_energy(v), code.free_energy(v))
    torch.testing.assert_close(paper.log_partition(), code.log_partition())
    assert paper.log_std.shape == (1,)


def test_partition_function_over_several_blocks():
    # A latent without any coupling multiplies Z by 2. The sum over the states of 17 latents is computed in two blocks.
    small = randomise(eb.GRBM(v_dim=2, h_dim=3))
    large = eb.GRBM(v_dim=2, h_dim=17)
    with torch.no_grad():
        large.b.copy_(small.b), large.log_std.copy_(small.log_std)
        # Only the last three latents have an effect, and their states differ between the two blocks.
        large.W.zero_()[:, -3:], large.c.zero_()[-3:]
        large.W[:, -3:] = small.W
        large.c[-3:] = small.c
    torch.testing.assert_close(large.log_partition(), small.log_partition() + 14 * math.log(2))


def test_grbm_starts_as_published():
    energy = eb.GRBM(v_dim=300, h_dim=16)
    for p in (energy.W, energy.b, energy.c):
        assert 0.6 * 0.25 < p.abs().max() <= 0.25  # the bound is 1 / sqrt(h_dim) = 0.25, whatever v_dim is
    torch.testing.assert_close(energy.W.var(), torch.tensor(0.25**2 / 3), rtol=0.05, atol=0)
    assert torch.equal(energy.log_std, torch.zeros(300))
    assert "log_std" in eb.params_of(energy)
    assert "log_std" not in eb.params_of(eb.GRBM(v_dim=3, h_dim=16, learn_std=False))


def test_gaussian_model_starts_with_a_proper_joint():
    energy = eb.GaussianLatentModel(v_dim=3, h_dim=40, weight_scale=0.99)
    assert torch.linalg.matrix_norm(energy.W, 2) < 1
    assert torch.isfinite(energy.log_partition())


def test_unfit_energies_are_refused():
    options = {"v_dim": 2, "h_dim": 3, "parametrisation": "other"}
    with pytest.raises(eb.ConfigError, match="'code' or 'paper', not 'other'"):
        instantiate({"_target_": "eblvm_lit.energies.grbm.GRBM", **options}, "model")
    with pytest.raises(eb.ConfigError, match="annealed importance sampling"):
        eb.GRBM(v_dim=2, h_dim=25).log_partition()


@every_energy
def test_the_energy_at_one_v_is_the_energy(case):
    energy = case.make()
    v = torch.randn(4, *case.event_shape).requires_grad_()
    h = torch.randn(5, 4, H_DIM)
    torch.testing.assert_close(energy.at(v)(h), energy(v, h))
    # Compare gradients in v, too, because they also pass through the part of E that depends on v only.
    slopes = (torch.autograd.grad(e.sum(), v)[0] for e in (energy.at(v)(h), energy(v, h)))
    torch.testing.assert_close(*slopes)
