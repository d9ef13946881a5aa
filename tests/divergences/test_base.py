"""Tests of divergences: exact expectations, bounds, and identities at the true posterior."""

import pytest
import torch

import eblvm_lit as eb
from cases import DIVERGENCES, ENERGIES, H_DIM, INFERRED, PAIRS, POSTERIORS, V_DIM, binary
from eblvm_lit.core.seeding import keyed_generator

pytestmark = pytest.mark.usefixtures("float64")
B = 4
EXPECTATIONS = [
    pytest.param(d, e, q, id=f"{d}-{e}-{q}")
    for d in DIVERGENCES
    for e, q in PAIRS
    if d.expected and q.nodes and e.conditional and not (d.continuous and q.name.startswith("bernoulli"))
]
AT_POSTERIOR = [
    pytest.param(d, e, id=f"{d}-{e}") for d in DIVERGENCES for e in INFERRED if not (d.continuous and e.binary)
]


def draws(divergence, energy, posterior, v, noise):
    """Compute the loss (S, B) at S nodes of the noise, shape (S, B, H).

    All particles of a loss use the same node.
    """
    rows = noise.reshape(1, -1, noise.shape[-1]).expand(divergence.n_particles, -1, -1)
    return divergence.loss(energy, posterior, v.repeat(len(noise), 1), rows).view(len(noise), len(v))


def gradient(value, module):
    return torch.autograd.grad(value.sum(), list(module.parameters()), retain_graph=True)


@pytest.mark.parametrize(("case", "energy_case", "posterior_case"), EXPECTATIONS)
def test_expectation_is_the_divergence(case, energy_case, posterior_case):
    energy = energy_case.make()
    q = posterior_case.make()
    v = torch.randn(B, V_DIM)
    noise, weights = posterior_case.nodes(q, v)
    mean = (weights * draws(case.make(), energy, q, v, noise)).sum(0)
    p = energy_case.conditional(energy, v)
    distribution = posterior_case.distribution(q, v)
    exact = case.expected(p, distribution, energy.free_energy(v))
    torch.testing.assert_close(mean, exact, rtol=1e-10, atol=1e-10)
    if q.continuous:  # binary samples have no derivative with respect to the parameters
        torch.testing.assert_close(gradient(mean, q), gradient(exact, q), rtol=1e-10, atol=1e-10)
        assert all(g.abs().max() > 1e-3 for g in gradient(exact, q))


@pytest.mark.parametrize(("case", "energy_case"), AT_POSTERIOR)
def test_at_the_true_posterior_no_noise_is_left(case, energy_case):
    energy = energy_case.make()
    v = torch.randn(B, V_DIM)
    divergence = case.make()
    q = energy_case.exact_posterior(energy)
    loss = divergence.loss(energy, q, v, divergence.noise(q, v, (), keyed_generator(0)))
    torch.testing.assert_close(loss, case.at_posterior(energy.free_energy(v)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", DIVERGENCES, ids=str)
def test_shapes_and_noise(case):
    divergence = case.make()
    energy = ENERGIES[-1].make()
    q = POSTERIORS[2].make()
    v = torch.randn(B, V_DIM)
    one, same, other = (divergence.noise(q, v, (2, 3), keyed_generator(seed)) for seed in (1, 1, 2))
    assert one.shape == (2, 3, divergence.n_particles, B, H_DIM)
    assert torch.equal(one, same)
    assert (one != other).all()
    loss = divergence.loss(energy, q, v, one[1, 2])
    assert loss.shape == (B,)
    # the loss of an example does not depend on the other examples
    torch.testing.assert_close(loss[1:3], divergence.loss(energy, q, v[1:3], one[1, 2, :, 1:3]))


@pytest.mark.parametrize("energy_case", [ENERGIES[0], ENERGIES[-1]], ids=str)
def test_particles_are_averaged(energy_case):
    q = POSTERIORS[0 if energy_case.binary else 2].make()
    energy = energy_case.make()
    v = torch.randn(B, V_DIM)
    noise = q.noise((5,), v, keyed_generator(0))
    single = torch.stack([eb.KL().loss(energy, q, v, noise[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(eb.KL(n_particles=5).loss(energy, q, v, noise), single.mean(0))
    torch.testing.assert_close(eb.IWAE(n_particles=5).loss(energy, q, v, noise), -(-single).exp().mean(0).log())
    if q.continuous:
        single = torch.stack([eb.Fisher().loss(energy, q, v, noise[i : i + 1]) for i in range(5)])
        torch.testing.assert_close(eb.Fisher(n_particles=5).loss(energy, q, v, noise), single.mean(0))


def test_kl_of_a_relaxed_sample_by_hand():
    energy = ENERGIES[0].make()
    q = POSTERIORS[0].make()
    v = torch.randn(B, V_DIM)
    u = q.noise((2,), v, keyed_generator(0))
    logits = v @ q.linear.weight.T + q.linear.bias
    h = 1 / (1 + (-(logits + (u / (1 - u)).log()) / 0.1).exp())
    log_q = (h * logits.sigmoid().log() + (1 - h) * (-logits).sigmoid().log()).sum(-1)
    expected = (log_q + energy.energy(v, h)).mean(0)
    loss = eb.KL(n_particles=2).loss(energy, q, v, u)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(loss, q), gradient(expected, q))


def test_importance_weighted_bounds_are_ordered():
    # Compute each bound exactly, as a sum over all L-tuples of latent states with their probabilities.
    energy = ENERGIES[0].make()
    v = torch.randn(B, V_DIM)
    q = POSTERIORS[1].make()
    nodes, weights = POSTERIORS[1].nodes(q, v)
    bounds = []
    for n in (1, 2, 3):
        index = torch.cartesian_prod(*[torch.arange(2**H_DIM)] * n).view(-1, n)
        noise = nodes[index].movedim(1, 0).reshape(n, -1, H_DIM)
        loss = eb.IWAE(n_particles=n).loss(energy, q, v.repeat(len(index), 1), noise).view(-1, B)
        bounds.append((weights[index].prod(1) * loss).sum(0))
    for looser, tighter in zip(bounds, [*bounds[1:], energy.free_energy(v)], strict=True):
        assert (looser > tighter + 1e-4).all()


def test_importance_weights_sum_the_latents_out():
    # With one particle in each latent state and a uniform proposal distribution, the bound equals the free energy.
    energy = ENERGIES[0].make()
    v = torch.randn(B, V_DIM)
    q = eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM, temperature=0.0)
    for p in q.parameters():
        torch.nn.init.zeros_(p)
    noise = (0.25 + 0.5 * binary(H_DIM)).unsqueeze(1).expand(-1, B, -1)
    torch.testing.assert_close(eb.IWAE(n_particles=8).loss(energy, q, v, noise), energy.free_energy(v))


def test_latents_without_a_gradient_are_refused():
    q = eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM, temperature=0.0)
    for divergence in (eb.KL(), eb.IWAE()):
        divergence.check(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
        with pytest.raises(eb.ConfigError, match=r"With posterior\.temperature=0 .* q would not be fitted"):
            divergence.check(q)


def test_fisher_refuses_binary_latents():
    with pytest.raises(eb.ConfigError, match="BernoulliPosterior is binary: use divergence=kl"):
        eb.Fisher().check(POSTERIORS[0].make())
