"""Tests of BiDVL's losses: terms against closed forms, identities of the paper, and the networks that each term
trains."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

import eblvm_lit as eb
from cases import hermite, randomise
from eblvm_lit.energies.spectral import JointSpectralEnergy
from eblvm_lit.methods.bidvl.base import Networks
from eblvm_lit.methods.bidvl.joint_losses import CanonicalJoint, SymmetricJoint
from eblvm_lit.methods.bidvl.losses import NoLatentTerm, OffsetLatentTerm, check_fit, reconstruction_error
from eblvm_lit.methods.bidvl.ratios import ClampedExponentialRatio, ConstantRatio, SigmoidRatio
from helpers import bidvl_networks

every_loss = pytest.mark.parametrize("name", bidvl_networks.LOSSES)
ENCODER = {"encoder"}
GENERATOR = {"generator"}
BOTH = {"encoder", "generator"}
# the networks that each term of the lower level trains; the energy, which the lower level never trains, is left out
MOVES = {"reconstruction": BOTH, "prior": ENCODER, "energy": GENERATOR, "latent": GENERATOR, "posterior": ENCODER}


def moved(term, networks):
    """Return the networks for whose parameters a term has a gradient that is not exactly zero."""
    found = set()
    for name in ("energy", "encoder", "frozen_encoder", "generator"):
        leaves = [p for p in getattr(networks, name).parameters() if p.requires_grad]
        grads = torch.autograd.grad(term.sum(), leaves, allow_unused=True, retain_graph=True) if leaves else []
        if any(g is not None and bool(g.any()) for g in grads):
            found.add(name)
    return found


@every_loss
def test_each_term_has_gradients_of_the_right_networks(name, float64):
    loss = bidvl_networks.LOSSES[name]
    networks = bidvl_networks.networks(loss)
    v = torch.randn(7, bidvl_networks.V_DIM)
    noise = bidvl_networks.noise(7)
    wanted = {**MOVES, "latent": BOTH} if name == "complete" else MOVES
    for term, value in loss.lower(networks, v, noise).items():
        assert moved(value, networks) - {"energy"} == wanted[term], term
    (gap,) = loss.upper(networks, v, noise)[0].values()
    assert moved(gap, networks) == {"energy"}
    if loss.regularises_encoder:
        (prior,) = loss.upper_encoder(networks, noise).values()
        assert moved(prior, networks) == ENCODER


def test_term_a_is_the_divergence_of_encoder_from_generator(float64):
    """Compare term A with r' KL(q(h|v) || p(v, h)) minus its constant, where p(v|h) = N(G(h), I/2).

    The expectation over h is computed exactly.
    """
    v = torch.randn(3, bidvl_networks.V_DIM)
    d = bidvl_networks.V_DIM
    q = randomise(eb.LinearGaussianPosterior(v_dim=d, h_dim=bidvl_networks.H_DIM))
    g = randomise(nn.Linear(bidvl_networks.H_DIM, d))
    eps, w = hermite(4, bidvl_networks.H_DIM)
    loss = NoLatentTerm(ratio=ConstantRatio(scale=0.3))
    energy = bidvl_networks.energy().eval()
    total = 0.0
    for e, weight in zip(eps, w, strict=True):
        noise = {"h_hat": torch.zeros(3, bidvl_networks.H_DIM), "eps": e.expand(3, -1)}
        terms = loss.lower(Networks(energy, q, q, g), v, noise)
        total = total + weight * (terms["reconstruction"] + terms["prior"])

    mean, log_std = q.moments(v)
    gaussian = Independent(Normal(mean, log_std.exp()), 1)
    prior = Independent(Normal(torch.zeros(bidvl_networks.H_DIM), torch.ones(bidvl_networks.H_DIM)), 1)
    # the expectation over q(h|v) of log N(v; A h + a, I/2) in closed form
    centre = v - g(mean)
    spread = (g.weight**2 @ (2 * log_std).exp().T).sum(0)
    log_likelihood = -(centre.square().sum(-1) + spread) - 0.5 * d * torch.log(torch.tensor(torch.pi))
    constant = -0.5 * d * torch.log(torch.tensor(torch.pi))
    exact = 0.3 * (kl_divergence(gaussian, prior) - log_likelihood + constant)
    torch.testing.assert_close(total, exact)


def test_terms_b_c_and_d_have_their_values(float64):
    loss = OffsetLatentTerm(ratio=ConstantRatio(scale=0.3))
    networks = bidvl_networks.networks(loss)
    v = torch.randn(5, bidvl_networks.V_DIM)
    noise = bidvl_networks.noise(5)
    v_hat = networks.generator(noise["h_hat"])
    lower = loss.lower(networks, v, noise)
    upper = loss.upper(networks, v, noise)[0]
    torch.testing.assert_close(lower["energy"], networks.energy(v_hat))
    error = (networks.encoder.moments(v_hat)[0] - noise["h_hat"]) ** 2
    torch.testing.assert_close(lower["latent"], error.mean(-1))
    torch.testing.assert_close(upper["critic_loss"], networks.energy(v) - networks.energy(v_hat))
    fixed = OffsetLatentTerm(ratio=ConstantRatio(scale=0.3), latent_weight=1e-4, critic_loss="hinge")
    torch.testing.assert_close(fixed.lower(networks, v, noise)["latent"], 1e-4 * error.sum(-1))
    margins = (1 + networks.energy(v)).clamp(min=0) + (1 - networks.energy(v_hat)).clamp(min=0)
    torch.testing.assert_close(fixed.upper(networks, v, noise)[0]["critic_loss"], margins)


@pytest.mark.parametrize("name", ["joint", "canonical"])
def test_terms_of_a_joint_energy_have_their_values(name, float64):
    loss = bidvl_networks.LOSSES[name]
    networks = bidvl_networks.networks(loss)
    v = torch.randn(5, bidvl_networks.V_DIM)
    noise = bidvl_networks.noise(5)
    terms = loss.lower(networks, v, noise)
    (mean, log_std) = networks.encoder.moments(v)
    h = mean + log_std.exp() * noise["eps"]
    log_q = Independent(Normal(mean, log_std.exp()), 1).log_prob(h)
    torch.testing.assert_close(terms["posterior"], log_q + networks.energy(v, h))
    h_hat = noise["h_hat"]
    torch.testing.assert_close(terms["energy"], networks.energy(networks.generator(h_hat), h_hat))


def test_ratios_of_the_energy_of_v_refuse_a_joint_energy():
    energy = JointSpectralEnergy(network=eb.MLP(sizes=[2, 5]), h_dim=2, h_widths=[4])
    words = "SigmoidRatio needs an energy of v only, which JointSpectralEnergy is not"
    with pytest.raises(eb.ConfigError, match=words):
        check_fit(energy, SymmetricJoint(ratio=SigmoidRatio()))


def test_ratios_weigh_low_energies_up_and_have_no_gradient(float64):
    energy = bidvl_networks.energy().eval()
    v = torch.randn(6, bidvl_networks.V_DIM, requires_grad=True)
    e = energy(v).detach()
    excess = e.mean() - e
    sigmoid = SigmoidRatio(scale=0.1)(energy, v)
    exponential = ClampedExponentialRatio(scale=0.1)(energy, v)
    torch.testing.assert_close(sigmoid, 0.1 / (1 + torch.exp(-excess)))
    torch.testing.assert_close(exponential, 0.1 * torch.exp(excess).clamp(0.8, 1.2))
    torch.testing.assert_close(ConstantRatio(scale=0.1)(energy, v), torch.full((6,), 0.1))
    assert not sigmoid.requires_grad
    assert not exponential.requires_grad
    assert sigmoid[e.argmin()] == sigmoid.max() > sigmoid.min()


N_V = 4
N_H = 3
STATES = list(itertools.product(range(N_V), range(N_H)))


class TableEnergy(eb.Energy):
    """The energy E(v, h) as a table of numbers, for v and h that are indicator vectors."""

    event_shape = (N_V,)
    h_dim = N_H
    continuous = False

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(N_V, N_H))

    def energy(self, v, h):
        return torch.einsum("...v,vh,...h->...", v, self.table, h)


class Told(nn.Module):
    """A stand-in for the encoder, which returns the noise as h, and for the generator, which returns a given v_hat."""

    def __init__(self, made=None):
        super().__init__()
        self.made = made

    def rsample(self, v, noise):
        return noise

    def forward(self, h):
        return self.made


def indicators(counts):
    """Return indicator vectors v and h in which each state occurs as often as its count.

    Means over the rows are then exact expectations.
    """
    rows = [state for state, n in zip(STATES, counts.flatten().int().tolist(), strict=True) for _ in range(n)]
    v, h = torch.tensor(rows).T
    return nn.functional.one_hot(v, N_V).double(), nn.functional.one_hot(h, N_H).double()


def kl(p, q):
    return (p * (p.log() - q.log())).sum()


def entropy(p):
    return -(p * p.log()).sum()


def test_upper_objective_of_a_joint_energy_is_the_likelihoods_up_to_two_divergences(float64):
    """Check the identity J - KL(q(v)||p(v)) = KL(q(v) q(h|v) || q(v) p(h|v)) - KL(generator || p).

    The objective J is a difference of two divergences from the model, in which log Z cancels.
    """
    data = torch.tensor([[3, 2, 10], [7, 5, 3], [1, 8, 6], [4, 2, 9]], dtype=torch.float64)
    made = torch.tensor([[9, 1, 2], [6, 7, 4], [3, 3, 8], [5, 2, 10]], dtype=torch.float64)
    (v, h) = indicators(data)
    (v_hat, h_hat) = indicators(made)
    q = data / data.sum()
    g = made / made.sum()
    generator = Told(v_hat)
    noise = {"eps": h, "h_hat": h_hat}
    energy = TableEnergy()
    p = torch.softmax(-energy.table.flatten(), 0).view(N_V, N_H)
    objective = kl(q, p) - kl(g, p)
    aligned = q.sum(1, keepdim=True) * p / p.sum(1, keepdim=True)
    torch.testing.assert_close(objective - kl(q.sum(1), p.sum(1)), kl(q, aligned) - kl(g, p))
    gap = CanonicalJoint().upper(Networks(energy, generator, generator, generator), v, noise)[0]["critic_loss"]
    exact = objective + entropy(q) - entropy(g)
    torch.testing.assert_close(gap.mean(), exact)
    slopes = (torch.autograd.grad(value, energy.table)[0] for value in (gap.mean(), exact))
    torch.testing.assert_close(*slopes)


def test_a_reconstruction_of_another_shape_is_an_error_and_not_broadcast():
    with pytest.raises(RuntimeError, match="invalid for input"):
        reconstruction_error(torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 4, 4))
