"""Tests of maximum likelihood by annealed chains: the gradient, the temperatures, and the posterior, which stays
unchanged."""

import pytest
import torch

import eblvm_lit as eb
from cases import V_DIM, make_gaussian_latent, randomise
from eblvm_lit.core.seeding import keyed_generator
from helpers import iterating
from helpers.models import LatentOnly

pytestmark = pytest.mark.usefixtures("float64")
CHAINS = {"n_chains": 12, "n_leapfrog": 3, "step_size": 0.4, "temperature": 4.0, "n_falling": 4, "n_held": 2}


class Joint(LatentOnly):
    """The linear-Gaussian model without its closed forms."""

    continuous = True


def make(energy=None, posterior=None, **options):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=3), 0.7) if energy is None else energy
    rules = {"objective": eb.DSM(noise_std=0.3), "optimizer": eb.SGD(lr=1.0), "posterior": posterior}
    return eb.AnnealedLikelihood(energy=energy, **rules, **CHAINS | options)


def test_the_gradient_is_that_of_the_likelihood_of_noised_data_within_its_standard_error():
    method = make(n_chains=6000, n_held=20)
    rows = []
    v = torch.randn(500, V_DIM)
    energy = method.energy
    method.start(torch.randn(method.n_chains, V_DIM), keyed_generator(0))
    for seed in range(50):
        noise = method.draw_noise(v, keyed_generator(seed))
        state = iterating.start(method, lr=0.0)
        if seed >= 30:  # after 30 iterations the chains no longer depend on their start
            (found,) = iterating.found(method, state, v, noise)["model"]
            points = method.objective.perturb(v, noise["data"])
            exact = iterating.gradient_of(energy.free_energy(points).mean() + energy.log_partition(), energy)
            rows.append(torch.cat([(found.grads[name] - exact[name]).flatten() for name in exact]))
        method.run_iteration(state, v, noise)  # lr is 0, so that only the chains move
    # The chains continue from one iteration to the next, so that the errors of iterations are correlated. The mean
    # error is therefore compared with the standard deviation of one iteration, and not with a standard error.
    errors = torch.stack(rows)
    assert (errors.mean(0).abs() < 4 * errors.std(0)).all()
    assert (errors.std(0) < 0.05).all()


def test_the_loss_of_an_iteration_by_hand():
    energy = Joint(make_gaussian_latent())
    q = eb.LinearGaussianPosterior(v_dim=V_DIM, h_dim=3)
    method = make(energy, q, n_moves=2)
    v = torch.randn(5, V_DIM)
    method.start(torch.randn(method.n_chains, V_DIM), keyed_generator(0))
    assert method.chain_age.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    noise = method.draw_noise(v, keyed_generator(1))
    state = iterating.start(method)
    (found,) = iterating.found(method, state, v, noise)["model"]
    end, _ = iterating.run(method, state, v, noise)
    x = end.buffers["chain_v"]
    age = end.buffers["chain_age"]
    # A chain that reached age 6 with the first move began anew before the second move, and now has age 1.
    assert set(age.tolist()) == {2, 3, 4, 5, 6, 1}
    points = method.objective.perturb(v, noise["data"])
    at_one = x[age > 4]
    loss = energy.energy(points, q.mean(points)).mean() - energy.energy(at_one, q.mean(at_one)).mean()
    iterating.assert_descends(found, loss, energy)


def test_a_move_is_at_the_temperature_of_the_age_of_its_chain(monkeypatch):
    method = make(n_chains=7, n_falling=4, n_held=3)
    seen = {}

    def move(energy, x, noise, size):
        seen.update(U=energy(x), size=size.squeeze(1), x=x)
        return eb.samplers.hmc.Move(x, torch.ones(len(x)), energy(x), x)

    monkeypatch.setattr(method.hmc, "move", move)
    age = torch.tensor([-2.0, 0.0, 1.0, 3.0, 4.0, 6.0, 7.0])
    noise = method._move_noise(method.chain_v, 1, keyed_generator(0))
    x, after, _ = method.moved(method.free_energy(method.live_state()), torch.randn(7, V_DIM), age, noise)
    T = torch.tensor([4.0, 4.0, 4**0.75, 4**0.25, 1.0, 1.0, 4.0])
    torch.testing.assert_close(seen["U"], method.energy.free_energy(x) / T)
    torch.testing.assert_close(seen["size"], 0.4 * T.sqrt())
    assert after.tolist() == [-1, 1, 2, 4, 5, 7, 1]
    torch.testing.assert_close(x[-1], noise["start"][0, -1])
    method.n_falling = 0
    method.moved(method.free_energy(method.live_state()), x, torch.zeros(7), noise)
    # With n_falling = 0 all moves are at T = 1, where the step size is 0.4.
    torch.testing.assert_close(seen["size"], torch.full((7,), 0.4))


@pytest.mark.parametrize("n_moves", [1, 2, 4, 5, 7])
def test_equally_many_chains_are_at_temperature_one_in_all_iterations(n_moves):
    method = make(n_chains=12, n_falling=4, n_held=2, n_moves=n_moves)  # two chains of each age
    F = method.free_energy(method.live_state())
    method.start(torch.randn(12, V_DIM), keyed_generator(0))
    x = method.chain_v
    age = method.chain_age
    for i in range(8):
        x, age, _ = method.moved(F, x, age, method._move_noise(x, n_moves, keyed_generator(i)))
        assert age.sort().values.tolist() == [a for a in range(1, 7) for _ in range(2)]


def test_the_posterior_stays_and_the_validation_loss_is_that_of_denoising():
    energy = Joint(make_gaussian_latent())
    q = eb.LinearGaussianPosterior(v_dim=V_DIM, h_dim=3)
    method = make(energy, q)
    v = torch.randn(5, V_DIM)
    method.start(torch.randn(method.n_chains, V_DIM), keyed_generator(0))
    end, _ = iterating.run(method, iterating.start(method), v, method.draw_noise(v, keyed_generator(1)))
    torch.testing.assert_close(end.phi, dict(q.named_parameters()), rtol=0, atol=0)
    noise = method.objective.noise(v, (), keyed_generator(2))
    points = method.objective.perturb(v, noise).requires_grad_()
    (slope,) = torch.autograd.grad(energy.energy(points, q.mean(points)).sum(), points)
    expected = 0.5 * (noise["eps"] / 0.3 - slope).square().sum(1)
    torch.testing.assert_close(method.validation_loss(v, keyed_generator(2)), expected)


def test_too_few_chains_are_refused():
    with pytest.raises(eb.ConfigError, match="at least 3"):
        make(n_chains=2)
