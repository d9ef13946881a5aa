"""Tests of scores: exactness at the true posterior, dependence on v, and gradients with respect to theta.

The gradients are compared with autograd of the enumerated marginal.
"""

from contextlib import nullcontext

import pytest
import torch

import eblvm_lit as eb
from cases import ENERGIES, INFERRED, OBJECTIVES, POSTERIORS, SCORES, SUMMED, V_DIM, enumerated_free_energy, randomise
from eblvm_lit.core.functional import bind, params_of, plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from helpers import iterating

pytestmark = pytest.mark.usefixtures("float64")


def enumerated_score(energy_case, energy, v):
    x = v if v.requires_grad else v.clone().requires_grad_()
    return torch.autograd.grad(-enumerated_free_energy(energy_case, energy, x).sum(), x, create_graph=True)[0]


def posterior_noise(energy_case, energy, v):
    return energy_case.exact_posterior(energy).noise((), v, keyed_generator(0))


@pytest.mark.parametrize(
    ("case", "energy_case"),
    [(case, e) for e in INFERRED for case in SCORES if case.of_real_latents or not e.make().continuous],
    ids=str,
)
def test_score_with_a_perfect_posterior_is_the_marginal_score(case, energy_case):
    # The sample h is relaxed or reparametrised. It is drawn at v, and the score is compared at v and at other points x.
    energy = energy_case.make()
    v = torch.randn(6, V_DIM)
    x = torch.randn(6, V_DIM)
    score = case.make(energy_case, energy, v, posterior_noise(energy_case, energy, v))
    for points in (v, x):
        expected = enumerated_score(energy_case, energy, points).detach()
        torch.testing.assert_close(score(points), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", [nullcontext, plain_autograd])
def test_bilevel_score_by_hand(backend):
    energy = ENERGIES[0].make()
    v = torch.randn(6, V_DIM)
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=3))
    x = torch.randn(6, V_DIM)
    u = q.noise((), v, keyed_generator(0))
    h = ((q.logits(v) + torch.logit(u)) / 0.1).sigmoid().detach()
    A = q.linear.weight.detach()
    var = (2 * energy.log_std).exp().detach()

    def by_hand(x):
        p = (x @ A.T + q.linear.bias).sigmoid()
        return -(x - energy.b) / var + h @ energy.W.T - (h - p) @ A, p

    with backend():
        score = eb.BilevelScore(energy, q, v, u)
        # the score is differentiated at the tensor v, at which h was drawn
        sliced = eb.SSM().loss(score, v, {"u": x})
        s = score(v)
        elsewhere = score(x)
    torch.testing.assert_close(s, by_hand(v)[0])
    torch.testing.assert_close(elsewhere, by_hand(x)[0])  # at x, the score still uses the h that was drawn at v
    # Second derivatives are also taken at fixed h, so that only the density of q depends on v.
    p = by_hand(v)[1]
    jacobian = torch.einsum("bj,ji,jk->bik", p * (1 - p), A, A) - torch.diag(1 / var)
    expected = 0.5 * s.square().sum(-1) + torch.einsum("bi,bik,bk->b", x, jacobian, x)
    torch.testing.assert_close(sliced, expected)


def test_posterior_is_reached_through_h_and_through_its_density():
    energy = ENERGIES[-1].make()
    q = POSTERIORS[2].make()
    v = torch.randn(6, V_DIM)
    eps = q.noise((), v, keyed_generator(0))
    z = torch.randn(6, V_DIM)
    phi = params_of(q)

    def through(h_phi, density_phi):
        h = bind(q, h_phi).rsample(v, eps)
        log_weight = lambda x: (-energy.energy(x, h) - bind(q, density_phi).log_prob(h, x)).sum()  # noqa: E731
        return (z * torch.func.grad(log_weight)(v)).sum()

    whole = torch.func.grad(lambda phi: (z * eb.BilevelScore(energy, bind(q, phi), v, eps)(v)).sum())(phi)
    parts = [torch.func.grad(through, argnums=i)(phi, phi) for i in (0, 1)]
    for name in phi:
        torch.testing.assert_close(whole[name], parts[0][name] + parts[1][name])
        assert all(part[name].abs().max() > 1e-3 for part in parts)


@pytest.mark.parametrize("energy_case", [SUMMED[0], SUMMED[4], SUMMED[-1]], ids=str)
@pytest.mark.parametrize("case", OBJECTIVES, ids=str)
def test_theta_gradient_of_the_exact_score(case, energy_case):
    energy = energy_case.make()
    v = torch.randn(6, V_DIM)
    objective = case.make()
    noise = objective.noise(v, (), keyed_generator(0))
    points = objective.perturb(v, noise)
    theta = params_of(energy)
    grads = torch.func.grad(lambda t: objective.loss(eb.ExactScore(bind(energy, t)), points, noise).mean())(theta)

    x = points.clone().requires_grad_()
    s = enumerated_score(energy_case, energy, x)
    rows = [torch.autograd.grad(s[:, i].sum(), x, create_graph=True)[0] for i in range(V_DIM)]
    jacobian = torch.stack(rows, 1)
    if case.name == "sm":
        loss = 0.5 * s.square().sum(-1) + jacobian.diagonal(dim1=1, dim2=2).sum(-1)
    elif case.name.startswith("ssm"):
        square = (s * noise["u"]).sum(-1).square() if objective.norm == "projected" else s.square().sum(-1)
        loss = 0.5 * square + torch.einsum("bi,bij,bj->b", noise["u"], jacobian, noise["u"])
    elif case.name == "dsm":
        loss = 0.5 * (s + noise["eps"] / 0.3).square().sum(-1)
    else:
        loss = 0.5 * (s / noise["sigma"].unsqueeze(-1) + noise["eps"] / 0.09).square().sum(-1)
    expected = iterating.gradient_of(loss.mean(), energy)
    torch.testing.assert_close(grads, expected, rtol=1e-8, atol=1e-8)
    assert all(value.abs().max() > 1e-3 for value in expected.values())
