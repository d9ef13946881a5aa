"""Tests of energy discrepancy, exact and with latents, against closed forms and enumeration."""

import math

import pytest
import torch

import eblvm_lit as eb
from cases import H_DIM, V_DIM, binary, hermite, make_binary, randomise
from eblvm_lit.core.seeding import keyed_generator
from helpers import iterating
from tolerances import evaluations

RATE = eb.SGD(lr=0.1)


class Precision(eb.VisibleEnergy):
    """The energy F(v) = exp(a) |v|^2 / 2, for any shape of v."""

    def __init__(self, precision, event_shape=(1,)):
        super().__init__()
        self.event_shape = event_shape
        self.log_precision = torch.nn.Parameter(torch.tensor(float(precision)).log())

    def free_energy(self, v):
        return 0.5 * self.log_precision.exp() * v.flatten(1).square().sum(-1)


def ed(energy, **options):
    return eb.EnergyDiscrepancy(energy=energy, optimizer=RATE, **options)


@pytest.mark.parametrize(("m", "w"), [(1, 0.0), (4, 0.3)])
def test_the_loss_by_hand(m, w, float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    v = torch.randn(6, V_DIM)
    method = ed(energy, noise_std=0.7, n_negatives=m, w=w)
    noise = method.noise(v, keyed_generator(3))
    xi = noise["perturbation"]
    assert xi.shape == (1 + m, 6, V_DIM)
    total = torch.full((6,), float(w))
    for i in range(m):
        total = total + (energy.free_energy(v) - energy.free_energy(v + 0.7 * xi[0] + 0.7 * xi[1 + i])).exp()
    expected = (total / m).log()
    torch.testing.assert_close(method.loss(iterating.live(method), v, noise), expected)
    torch.testing.assert_close(method.validation_loss(v, keyed_generator(3)), expected)
    (found,) = iterating.found(method, iterating.start(method), v, {"model": noise})["model"]
    torch.testing.assert_close(found.loss, expected.mean().detach())


def expected_loss(precision, s, t, n=60):
    """Compute the expected loss for data N(0, s), infinitely many negatives and w = 0.

    Each expectation is a weighted sum over quadrature nodes.
    """
    (x, weight) = hermite(n, 1)
    method = ed(Precision(precision), noise_std=math.sqrt(t), n_negatives=n, w=0.0)
    v, xi = (part.flatten(0, 1) for part in (s**0.5 * x.expand(n, n, 1), x.unsqueeze(1).expand(n, n, 1)))
    noise = {"perturbation": torch.cat([xi.unsqueeze(0), x.unsqueeze(1).expand(n, n * n, 1)])}
    state = iterating.live(method)
    differences = method.energy_differences(state, v, method.negatives(v, noise), noise)
    at_v = (differences + weight.log().unsqueeze(1)).logsumexp(0)
    outer = (weight.unsqueeze(1) * weight).flatten()
    loss = (outer * at_v).sum()
    return loss, torch.autograd.grad(loss, method.energy.log_precision)[0]


# For F(u) = lambda u^2 / 2 and y = v + sqrt(t) xi, the loss is the mean of F(v) + log E exp(-F(y + sqrt(t) xi')). The
# expectation over xi' has the closed form log E exp(-lambda (y + sqrt(t) xi')^2 / 2) = -log(1 + lambda t) / 2 - lambda
# y^2 / (2 (1 + lambda t)). The means of v^2 and y^2 are s and s + t.
@pytest.mark.parametrize(("s", "t"), [(0.5, 0.25), (1.5, 1.0)])
def test_the_loss_of_a_normal_distribution_has_its_closed_form_and_its_minimum_at_the_variance(s, t, float64):
    for factor in (0.5, 1.0, 2.0):
        precision = factor / s
        loss, slope = expected_loss(precision, s, t)
        inner = 1 + precision * t
        closed = precision * s / 2 - math.log(inner) / 2 - precision * (s + t) / (2 * inner)
        assert loss.item() == pytest.approx(closed, abs=1e-9)
        by_lambda = s / 2 - t / (2 * inner) - (s + t) / (2 * inner**2)
        # The parameter is log lambda, so that the derivative by lambda is multiplied by lambda.
        assert slope.item() == pytest.approx(precision * by_lambda, abs=1e-8)
        assert math.copysign(1, round(by_lambda, 12)) * (factor - 1) >= 0
    assert abs(expected_loss(1 / s, s, t)[1].item()) < 1e-9


@pytest.mark.parametrize("shape", [(4,), (1, 2, 2)])
def test_images_are_vectors(shape, float64):
    flat = ed(Precision(0.8, (4,)))
    method = ed(Precision(0.8, shape))
    v = torch.randn(5, 4)
    noise = flat.noise(v, keyed_generator(0))
    shaped = {"perturbation": noise["perturbation"].view(5, 5, *shape)}
    torch.testing.assert_close(
        method.loss(iterating.live(method), v.view(5, *shape), shaped), flat.loss(iterating.live(flat), v, noise)
    )
    assert method.noise(v.view(5, *shape), keyed_generator(0))["perturbation"].shape == (5, 5, *shape)


def test_the_lower_level_fits_q_at_the_data_and_at_negatives(float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    parts = {"posterior": q, "divergence": eb.KL(), "n_lower_steps": 2}
    method = eb.LatentEnergyDiscrepancy(energy=energy, optimizer=RATE, **parts, noise_std=0.5)
    v = torch.randn(6, V_DIM)
    noise = method.draw_noise(v, keyed_generator(3))
    steps = iterating.found(method, iterating.start(method), v, noise)
    assert (len(steps["lower"]), len(steps["upper"]), evaluations(method)) == (2, 1, 3)
    for k, found in enumerate(steps["lower"]):
        xi = noise["lower"]["perturbation"][k]
        u = noise["lower"]["latent"][k]
        points = torch.cat([v, v + 0.5 * (xi[0] + xi[1])])
        torch.testing.assert_close(found.loss, eb.KL().loss(energy, q, points, u).mean().detach())
    assert not torch.equal(noise["lower"]["perturbation"][0], noise["lower"]["perturbation"][1])


P = 0.2


def flipping(v, u):
    """Return the probability that a perturbation turns the bits v into the bits u."""
    return (P ** (v != u).double() * (1 - P) ** (v == u).double()).prod(-1)


def test_the_loss_of_bits_by_hand(float64):
    energy = make_binary(eb.BernoulliRBM(v_dim=V_DIM, h_dim=H_DIM))
    v = binary(V_DIM)
    method = ed(energy, flip_probability=P, n_negatives=3, w=0.5)
    noise = method.noise(v, keyed_generator(3))
    xi = noise["perturbation"] == 1
    total = torch.full((4,), 0.5)
    for i in range(3):
        u = ((v == 1) ^ xi[0] ^ xi[1 + i]).double()
        total = total + (energy.free_energy(v) - energy.free_energy(u)).exp()
    torch.testing.assert_close(method.loss(iterating.live(method), v, noise), (total / 3).log())
    drawn = method.noise(v.repeat(2000, 1), keyed_generator(4))["perturbation"]
    assert abs(drawn.mean() - P) < 5 * math.sqrt(P * (1 - P) / drawn.numel())
    assert "p = 0.2" in method.title


def test_energy_discrepancy_of_bits_is_smallest_at_the_distribution_of_the_data(float64):
    """The limit of many negatives is the sum over y of p(y | v) (F(v) + log sum_u p(y | u) exp(-F(u)))."""
    energy = make_binary(eb.BernoulliRBM(v_dim=V_DIM, h_dim=H_DIM))
    v = binary(V_DIM)
    data = (-energy.free_energy(v) - energy.log_partition()).exp().detach()
    method = ed(energy, flip_probability=P, n_negatives=16, w=0.0)
    first, others = (bits.flatten(0, 1) for bits in (v.unsqueeze(1).expand(4, 4, 2), v.expand(4, 4, 2)))
    # every flip xi of each v, and as the M negatives of each pair every flip xi', weighted by their probabilities
    perturbation = torch.cat([others.unsqueeze(0), v.unsqueeze(1).expand(4, 16, 2)])
    u = method.negatives(first, {"perturbation": perturbation})
    differences = method.energy_differences(iterating.live(method), first, u, {})
    inner = (differences + flipping(v, torch.zeros(2)).log().unsqueeze(1)).logsumexp(0)
    weight = flipping(others, torch.zeros(2))

    def total(p):
        return (p.repeat_interleave(4) * weight) @ inner

    for name, slope in iterating.gradient_of(total(data), energy).items():
        assert slope.abs().max() < 1e-12, name
    assert iterating.gradient_of(total(torch.full((4,), 0.25)), energy)["W"].abs().max() > 1e-3
