"""Tests of free energies by quadrature: closed forms, finer grids, and grids that are refused."""

import itertools
import math

import pytest
import torch

import eblvm_lit as eb
from cases import V_DIM, randomise
from eblvm_lit.energies import quadrature

pytestmark = pytest.mark.usefixtures("float64")
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def gaussian(m):
    model = eb.GaussianLatentModel(v_dim=V_DIM, h_dim=m, weight_scale=0.9)
    for p in (model.b, model.c, model.log_std):
        torch.nn.init.normal_(p, std=0.4)
    return model


def deep(m, scale=0.4):
    return randomise(eb.DeepVectorEnergy(v_dim=V_DIM, h_dim=m, head_dim=12, widths=[5, 4]), scale)


@pytest.mark.parametrize(("m", "centre", "n"), [(1, 0.0, 41), (2, (0.5, -1.0), 45), (3, 0.0, 31)])
def test_quadrature_gives_all_closed_forms_of_the_gaussian_model(m, centre, n):
    model = gaussian(m)
    v = torch.randn(5, V_DIM)
    marginal = eb.QuadratureMarginal(energy=model, half_width=9.0, n_nodes=n, centre=centre)
    torch.testing.assert_close(marginal.free_energy(v), model.free_energy(v), **CLOSE)
    torch.testing.assert_close(marginal.score(v), model.score(v), **CLOSE)
    torch.testing.assert_close(marginal.score_divergence(v), model.score_divergence(v), **CLOSE)
    torch.testing.assert_close(marginal.latent_mean(v), model.latent_mean(v), **CLOSE)
    h = marginal.nodes(v)
    assert h.shape == (n**m, m)
    normal = torch.distributions.Normal(model.latent_mean(v), 1.0)
    exact = normal.log_prob(h.unsqueeze(1)).sum(-1)
    weighted = (marginal.log_weights(v).unsqueeze(-1) + exact).exp()
    torch.testing.assert_close(marginal._probabilities(v), weighted.T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(weighted.sum(0), torch.ones(5))


def test_gradients_by_theta_are_those_of_the_gaussian_model():
    model = gaussian(2)
    v = torch.randn(5, V_DIM)
    marginal = eb.QuadratureMarginal(energy=model, half_width=9.0, n_nodes=41)
    theta = eb.params_of(marginal)
    assert set(theta) == {f"joint.{name}" for name in eb.params_of(model)}

    def of_view(theta, part):
        return part(eb.bind(marginal, theta))

    def of_model(theta, part):
        return part(eb.bind(model, {name.removeprefix("joint."): p for name, p in theta.items()}))

    for part in (
        lambda energy: energy.free_energy(v).sum(),
        # this loss has second derivatives with respect to v
        lambda energy: eb.SM().loss(eb.ExactScore(energy), v, {}).sum(),
    ):
        found, expected = (torch.func.grad(fn)(theta, part) for fn in (of_view, of_model))
        torch.testing.assert_close(found, expected, **CLOSE)
        assert all(g.abs().max() > 1e-3 for g in expected.values())


def test_rules_of_deep_energies_converge():
    energy = deep(1)
    v = torch.randn(4, V_DIM)
    grids = [eb.QuadratureMarginal(energy=energy, half_width=8.0, n_nodes=n) for n in (81, 161, 321, 1281)]
    *values, limit = (grid.free_energy(v) for grid in grids)
    errors = [(value - limit).abs().max().item() for value in values]
    assert errors[2] < 1e-5
    assert errors[0] > 5 * errors[1] > 25 * errors[2]
    # The coarse error of a grid is its difference from the grid with only every second node.
    for coarse, fine in itertools.pairwise(grids[:3]):
        gap = (coarse.free_energy(v) - fine.free_energy(v)).abs()
        torch.testing.assert_close(fine.coarse_error(v), gap, rtol=1e-6, atol=1e-12)
        assert gap.max() > 5 * (fine.free_energy(v) - limit).abs().max()


@pytest.mark.parametrize("m", [1, 2])
def test_free_energy_of_a_deep_energy_by_midpoints(m):
    # compare with the midpoint rule on another grid, which evaluates E(v, h) directly
    energy = deep(m)
    v = torch.randn(4, V_DIM)
    n = 500
    width = 7.0
    x = (torch.arange(n) + 0.5) * (2 * width / n) - width
    h = torch.cartesian_prod(*[x] * m).view(-1, m)
    log_p = torch.stack([-energy.energy(row.unsqueeze(0), h.unsqueeze(1)).squeeze(-1) for row in v], 1)
    expected = -log_p.logsumexp(0) - m * math.log(2 * width / n)
    marginal = eb.QuadratureMarginal(energy=energy, half_width=width, n_nodes=401)
    torch.testing.assert_close(marginal.free_energy(v), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(marginal.latent_mean(v), log_p.softmax(0).T @ h, rtol=1e-5, atol=1e-6)


def test_features_of_v_are_computed_once(monkeypatch):
    energy = deep(2)
    v = torch.randn(4, V_DIM)
    calls = []
    features = eb.DeepVectorEnergy.features
    monkeypatch.setattr(eb.DeepVectorEnergy, "features", lambda self, v: calls.append(len(v)) or features(self, v))
    marginal = eb.QuadratureMarginal(energy=energy, half_width=8.0, n_nodes=21)
    parts = marginal.free_energy, marginal.latent_mean, marginal.coarse_error, marginal.boundary_mass
    whole = [part(v) for part in parts]
    monkeypatch.setattr(quadrature, "ELEMENTS", 3 * 21**2)  # compute in blocks of three rows
    torch.testing.assert_close([part(v) for part in parts], whole)
    assert calls == [4] * 4 + [3, 1] * 4


@pytest.mark.parametrize("m", [1, 2])
def test_a_grid_that_does_not_fit_is_refused(m):
    model = gaussian(m)
    v = torch.randn(5, V_DIM)
    eb.QuadratureMarginal(energy=model, half_width=9.0, n_nodes=61).check(v)
    for options in ({"half_width": 2.0}, {"half_width": 9.0, "centre": 40.0}):
        with pytest.raises(eb.ConfigError, match=r"outermost nodes have .* raise half_width"):
            eb.QuadratureMarginal(energy=model, n_nodes=61, **options).check(v)
    with pytest.raises(eb.ConfigError, match="raise n_nodes"):
        eb.QuadratureMarginal(energy=model, half_width=9.0, n_nodes=15).check(v)
    with pytest.raises(eb.ConfigError, match="raise half_width"):
        eb.QuadratureMarginal(energy=model, half_width=9.0, n_nodes=61).check(v * float("nan"))


def test_mass_at_the_boundary_by_hand():
    model = gaussian(2)
    v = torch.randn(5, V_DIM)
    marginal = eb.QuadratureMarginal(energy=model, half_width=1.5, n_nodes=7)
    x = torch.linspace(-1.5, 1.5, 7)
    mass, total = torch.zeros(2, 5)
    for i, j in itertools.product(range(7), repeat=2):
        ends = (i in (0, 6)) + (j in (0, 6))
        p = (-model.energy(v, torch.stack([x[i], x[j]]).expand(5, 2))).exp() / 2**ends
        total = total + p
        mass = mass + (p if ends else 0)
    torch.testing.assert_close(marginal.boundary_mass(v), mass / total)
    torch.testing.assert_close(marginal.free_energy(v), -(total * 0.5**2).log())


def test_binary_or_many_latents_are_refused():
    for energy, words in ((eb.GRBM(v_dim=2, h_dim=2), "2 binary ones"), (gaussian(4), "1 to 3 real latents")):
        with pytest.raises(eb.ConfigError, match=words):
            eb.QuadratureMarginal(energy=energy, half_width=5.0, n_nodes=11)
