"""Tests of the latent-space energy-based prior: closed forms of the Gaussian case, an iteration, encodings, and
samples."""

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import eblvm_lit as eb
from cases import binary, hermite
from eblvm_lit.draws.coding import encode, reconstruct
from eblvm_lit.draws.generator import GeneratedImages
from eblvm_lit.methods import lebm
from eblvm_lit.networks.smooth_mlp import SmoothMLP
from eblvm_lit.samplers.sample_noise import SampleNoise
from helpers import iterating

V = 2
H = 3
STD = 0.7
pytestmark = pytest.mark.usefixtures("float64")


class Quadratic(nn.Module):
    """The function f(h) = h' A h / 2 + b' h."""

    def __init__(self, A, b):
        super().__init__()
        self.A = nn.Parameter(A)
        self.b = nn.Parameter(b)

    def forward(self, h):
        return (0.5 * ((h @ self.A) * h).sum(-1) + h @ self.b).unsqueeze(-1)


class Linear(nn.Linear):
    """The generator g(h) = W h + c."""

    h_dim = H
    event_shape = (V,)


def gaussian(precision=None):
    """Build a linear-Gaussian model whose posterior has a given precision.

    If the precision is diagonal, a factorised q can equal the posterior.
    """
    g = Linear(H, V)
    nn.init.normal_(g.weight, std=0.3)
    nn.init.normal_(g.bias)
    of_g = g.weight.T @ g.weight / STD**2
    precision = torch.diag(torch.tensor([1.1, 1.6, 2.3])) if precision is None else precision
    A = (precision - torch.eye(H) - of_g).detach()
    return eb.LatentPriorEnergy(h_dim=H, generator=g, prior=Quadratic(A, torch.randn(H)), std=STD)


def closed(theta):
    """Return closed forms of the Gaussian model with parameters theta.

    They are the mean and the precision of h, the mean (as a function of v) and the precision of h given v, and the
    distribution of v.
    """
    A, b, W, c = (theta[name] for name in ("prior.A", "prior.b", "generator.weight", "generator.bias"))
    prior = torch.eye(H) + 0.5 * (A + A.T)
    mean = -torch.linalg.solve(prior, b)
    posterior = prior + W.T @ W / STD**2
    truth = MultivariateNormal(W @ mean + c, STD**2 * torch.eye(V) + W @ torch.linalg.solve(prior, W.T))

    def posterior_mean(v):
        return torch.linalg.solve(posterior, (W.T @ (v - c).T / STD**2 - b[:, None])).T

    return mean, prior, posterior_mean, posterior, truth


def corners(mean, precision):
    """Return eight points h of equal weight that have the moments of N(mean, 1 / precision) up to order three.

    Their shape is (8, *mean.shape).
    """
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    return mean + ((2 * binary(H) - 1) @ root.T).view(-1, *[1] * (mean.dim() - 1), H)


def by_closed_form(energy, fn):
    """Return the gradient with respect to theta of a function that uses closed forms."""
    theta = {name: p.detach().requires_grad_() for name, p in energy.named_parameters()}
    grads = torch.autograd.grad(fn(theta), list(theta.values()), materialize_grads=True)
    return dict(zip(theta, grads, strict=True))


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10)
        assert value.abs().max() > 1e-3, name


def test_the_marginal_is_the_closed_one():
    energy = gaussian()
    v = torch.randn(6, V)
    x, w = hermite(24, H)  # nodes of an integral over h, which are centred at the origin
    log_w = w.log() + 0.5 * x.square().sum(-1) + 0.5 * H * torch.log(torch.tensor(2 * torch.pi))
    free_energy = -(log_w[:, None] - energy.energy(v, x[:, None].expand(-1, 6, -1))).logsumexp(0)
    mean, prior, *_, truth = closed(eb.params_of(energy))
    # log Z is the sum of the logarithms of two integrals: that of exp(-|v - g|^2 / (2 sigma^2)) over v, and that of the
    # unnormalised prior over h.
    log_z = V * torch.log(torch.tensor(STD)) + 0.5 * (V + H) * torch.log(torch.tensor(2 * torch.pi))
    log_z = log_z - 0.5 * prior.logdet() - 0.5 * energy.prior.b @ mean
    torch.testing.assert_close(-free_energy - log_z, truth.log_prob(v), rtol=1e-9, atol=1e-9)


def small(energy):
    prior = eb.Langevin(n_steps=3, step_size=0.1)
    posterior = eb.Langevin(n_steps=2, step_size=0.01)
    return eb.LEBM(energy=energy, optimizer=eb.SGD(lr=1.0), prior_langevin=prior, posterior_langevin=posterior)


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_gradient_of_lebm_is_that_of_the_likelihood_at_draws_of_its_posterior_and_prior(full, monkeypatch):
    root = torch.randn(H, H)
    energy = gaussian(0.2 * root @ root.T + 1.5 * torch.eye(H) if full else None)
    prior_mean, prior, mean, posterior, _ = closed(eb.params_of(energy))
    data = torch.randn(5, V)
    v = data.repeat(8, 1)  # each example occurs with eight latents
    drawn = [corners(prior_mean.expand(5, H), prior).flatten(0, 1), corners(mean(data), posterior).flatten(0, 1)]
    monkeypatch.setattr(lebm, "run_chain", lambda *_: drawn.pop(0).detach())
    method = small(energy)
    steps = iterating.found(method, iterating.start(method), v, method.draw_noise(v, torch.Generator()))
    found = {name: g for (step,) in steps.values() for name, g in step.grads.items()}
    assert_equal(found, by_closed_form(energy, lambda theta: -closed(theta)[-1].log_prob(data).mean()))


def by_hand(energy, h, noise, step_size):
    """Make Langevin steps of latents, with gradients by autograd."""
    for xi in noise:
        h = h.detach().requires_grad_()
        (slope,) = torch.autograd.grad(energy(h).sum(), h)
        h = h - step_size / 2 * slope + step_size**0.5 * xi
    return h.detach()


def test_an_iteration_of_lebm_by_hand():
    prior = SmoothMLP(sizes=[H, 5, 1])
    generator = SmoothMLP(sizes=[H, 5, V])
    energy = eb.LatentPriorEnergy(h_dim=H, generator=generator, prior=prior, std=STD)
    chains = eb.Langevin(n_steps=4, step_size=0.3), eb.Langevin(n_steps=3, step_size=0.1)
    method = eb.LEBM(energy=energy, optimizer=eb.SGD(lr=0.1), prior_langevin=chains[0], posterior_langevin=chains[1])
    v = torch.randn(6, V)
    noise = method.draw_noise(v, torch.Generator().manual_seed(1))
    state = iterating.start(method)
    steps = iterating.found(method, state, v, noise)
    drawn = noise["prior"], noise["posterior"]
    tilted = lambda h: prior(h).squeeze(-1) + 0.5 * h.square().sum(-1)  # noqa: E731
    error = lambda h: (v - generator(h)).square().sum(-1) / (2 * STD**2)  # noqa: E731
    negative = by_hand(tilted, drawn[0]["start"], drawn[0]["steps"], 0.3)
    positive = by_hand(lambda h: tilted(h) + error(h), drawn[1]["start"], drawn[1]["steps"], 0.1)
    losses = {"prior": (prior(positive) - prior(negative)).mean(), "generator": error(positive).mean()}
    for name, network in (("prior", prior), ("generator", generator)):
        (found,) = steps[name]
        torch.testing.assert_close(found.loss, losses[name])
        for key, expected in iterating.gradient_of(losses[name], network).items():
            torch.testing.assert_close(found.grads[f"{name}.{key}"], expected)


def test_an_encoder_by_chains_is_a_function_of_v_only():
    energy = eb.LatentPriorEnergy(h_dim=H, generator=SmoothMLP(sizes=[H, 8, 64]), prior=SmoothMLP(sizes=[H, 8, 1]))
    method = small(energy)
    v = torch.randn(130, 64)  # more examples than the encoder computes in one chunk
    h = encode(method.parts, v)
    torch.testing.assert_close(h[101:104], encode(method.parts, v[101:104]))
    assert not torch.equal(h[0], h[1])
    torch.testing.assert_close(reconstruct(method.parts, v), method.energy.decode(h))


def test_drawn_latents_follow_a_learnt_prior():
    # With f(h) = h' h / 2 the prior has half the variance of N(0, I), which Langevin steps of size 0.1 increase a
    # little.
    f = Quadratic(torch.eye(H), torch.zeros(H))
    energy = eb.LatentPriorEnergy(h_dim=H, generator=SmoothMLP(sizes=[H, 8, 64]), prior=f)
    source = GeneratedImages(langevin=eb.Langevin(n_steps=30, step_size=0.1), batch_size=400)
    h = source.draw_latents(small(energy), SampleNoise(0, range(400)))
    variance = 1 / (2 * (1 - 0.1 * 2 / 4))
    n = 400 * H
    assert abs(h.square().mean() - variance) < 4 * variance * (2 / n) ** 0.5
