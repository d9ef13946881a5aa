"""Tests of every loss with every log-density: with the true posterior, all of them give the exact values."""

import pytest
import torch

import eblvm_lit as eb
from cases import (
    DENSITY_LOSSES,
    H_DIM,
    LOG_DENSITIES,
    V_DIM,
    bernoulli_nodes,
    enumerated_free_energy,
    exact_gaussian_posterior,
    make_gaussian_latent,
    randomise,
)
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.runs.instantiate import resolve_target
from eblvm_lit.utils.moved import with_present_names
from helpers import iterating

pytestmark = pytest.mark.usefixtures("float64")
every_loss = pytest.mark.parametrize("loss_case", DENSITY_LOSSES, ids=str)
CELLS = [(density, energy) for density in LOG_DENSITIES for energy in density.of]


def loss_of(method, v, noise):
    return method.loss(iterating.live(method), v, noise)


@pytest.mark.parametrize(("density_case", "energy_case"), CELLS, ids=str)
def test_a_log_density_of_the_true_posterior_is_minus_the_free_energy(density_case, energy_case):
    energy = energy_case.make()
    v = torch.randn(6, V_DIM)
    y = torch.randn(12, V_DIM)
    density = density_case.make(energy_case, energy)
    noise = density.noise(v, y, keyed_generator(3))
    for x, found in zip((v, y), density.pair(energy, density.lower_level["posterior"], v, y, noise), strict=True):
        torch.testing.assert_close(found, -enumerated_free_energy(energy_case, energy, x), rtol=1e-10, atol=1e-10)


@every_loss
@pytest.mark.parametrize(("density_case", "energy_case"), CELLS[len(LOG_DENSITIES[0].of) :], ids=str)
def test_with_the_true_posterior_a_loss_is_the_exact_one(loss_case, density_case, energy_case):
    energy = energy_case.make()
    v = torch.randn(6, V_DIM)
    kind = loss_case.classes[0]
    exact = loss_case.make(kind, energy)
    method = loss_case.make(kind, energy, log_density=density_case.make(energy_case, energy))
    noise = method.noise(v, keyed_generator(3))
    expected = loss_of(exact, v, noise)
    torch.testing.assert_close(loss_of(method, v, noise), expected, rtol=1e-10, atol=1e-10)
    assert expected.abs().max() > 0.1
    assert (list(exact.groups), list(method.groups)) == (["model"], ["lower", "upper"])


@every_loss
def test_arguments_of_a_posterior_are_a_bound_and_without_one_the_exact_log_density(loss_case):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    v = torch.randn(6, V_DIM)
    parts = {"posterior": q, "divergence": eb.KL(), "n_lower_steps": 2, "n_particles": 3}
    kind, preset = loss_case.classes[:2]
    bound = eb.LogDensityBound(**parts, **loss_case.preset(3), lower_optimizer=eb.SGD(lr=0.3))
    pairs = [
        (loss_case.make(preset, energy), loss_case.make(kind, energy)),
        (
            loss_case.make(preset, energy, **parts, lower_optimizer=eb.SGD(lr=0.3)),
            loss_case.make(kind, energy, log_density=bound),
        ),
    ]
    for method, expected in pairs:
        noise = method.draw_noise(v, keyed_generator(3))
        ends = [iterating.run(m, iterating.start(m), v, noise)[0] for m in (method, expected)]
        torch.testing.assert_close(ends[0].params, ends[1].params, rtol=0, atol=0)
        assert method.title.partition(":")[2] == expected.title.partition(":")[2]


def test_the_mean_of_the_weights_is_that_of_the_free_energy_and_the_bound_rises_with_the_particles():
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM, temperature=0.0))
    v = torch.randn(6, V_DIM)
    u, weights = bernoulli_nodes(q, v)  # each row of u is the noise for which q draws one of the states
    bound = eb.LogDensityBound(posterior=q, divergence=eb.KL())
    ones = torch.stack([bound(energy, q, v, eps.unsqueeze(0)) for eps in u])
    pairs = [[bound(energy, q, v, torch.stack([a, b])) for b in u] for a in u]
    twos = torch.stack([torch.stack(row) for row in pairs])
    exact = -energy.free_energy(v)
    torch.testing.assert_close((weights * ones.exp()).sum(0), exact.exp())
    evidence = (weights * ones).sum(0)
    p_h, q_h = (
        torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
        for logits in (energy.latent_logits(v), q.logits(v))
    )
    torch.testing.assert_close(evidence, exact - torch.distributions.kl_divergence(q_h, p_h))
    # The mean of the ratio q / p over q is 1 + chi^2(q | p).
    ratio = (q_h.log_prob(u.round()) - p_h.log_prob(u.round())).exp()
    torch.testing.assert_close((weights * (-ones).exp()).sum(0), (weights * ratio).sum(0) * (-exact).exp())
    assert ((weights * ratio).sum(0) > 1.05).any()
    rising = (weights.unsqueeze(1) * weights * twos).sum((0, 1))
    assert (evidence + 1e-3 < rising).all()
    assert (rising + 1e-3 < exact).all()


def test_a_state_dict_with_the_former_name_c_for_log_z_is_read():
    method = DENSITY_LOSSES[0].make(eb.NCE, make_gaussian_latent())
    state = {name.replace("log_z", "c"): value + 1 for name, value in method.state_dict().items()}
    method.load_state_dict(state)
    assert method.parts.log_z.item() == pytest.approx(1.4)


FORMER = ("nce.NCE", "vnce.VNCE", "snl.SNL", "vsnl.VSNL", "energy_discrepancy.EnergyDiscrepancy")


@pytest.mark.parametrize("former", [*FORMER, "latent_discrepancy.LatentEnergyDiscrepancy"])
def test_a_former_name_is_read_as_the_present_one(former):
    found = with_present_names({"_target_": f"eblvm_lit.methods.{former}"})["_target_"]
    assert resolve_target(found) is getattr(eb, former.partition(".")[2])


@pytest.mark.parametrize("given", ["posterior", "divergence"])
def test_a_posterior_without_its_divergence_is_refused(given):
    energy = make_gaussian_latent()
    parts = {"posterior": exact_gaussian_posterior(energy), "divergence": eb.KL()}
    with pytest.raises(eb.ConfigError, match="give both, or null for both"):
        DENSITY_LOSSES[0].make(eb.VNCE, energy, **{given: parts[given]})
