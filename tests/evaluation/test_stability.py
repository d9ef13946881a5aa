"""Diagnostics of methods with a generator: norms of gradients, weights and layers."""

import math

import pytest
import torch

from eblvm_lit.data.digits import Digits
from eblvm_lit.evaluation.stability import Stability, spectral_norms
from eblvm_lit.methods.bidvl.base import Networks
from helpers.bidvl_images import SHAPE, bidvl, energy


def test_gradient_norms_are_those_of_each_term_and_nothing_moves(float64):
    torch.manual_seed(0)
    method, data = bidvl("complete"), Digits()
    data.setup()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    v = data.as_float(data.splits.val[:6]).double().view(-1, *SHAPE)

    class Images:
        splits, as_float = data.splits, staticmethod(lambda rows: data.as_float(rows).view(-1, *SHAPE))

    method.eval()
    found = Stability(n=6).evaluate(method, Images, "val", torch.Generator().manual_seed(1))
    assert not method.training
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    terms = {"upper_critic_loss", "upper_encoder_prior"}
    terms |= {f"lower_{name}" for name in ("reconstruction", "prior", "energy", "latent")}
    assert set(found) == {*(f"{term}_grad_norm" for term in terms), "weight_norm", "spectral_norm"}
    noise = method.draw_noise(v, torch.Generator().manual_seed(1))["lower"][0]
    method.train()
    lower = method.loss.lower(Networks(method.energy, method.posterior, method.posterior, method.generator), v, noise)
    leaves = [*method.omega.parameters()]
    for name, term in lower.items():
        grads = torch.autograd.grad(term.mean(), leaves, retain_graph=True, allow_unused=True)
        exact = math.sqrt(sum(float(g.square().sum()) for g in grads if g is not None))
        assert found[f"lower_{name}_grad_norm"] == pytest.approx(exact, rel=1e-5)


def test_spectral_norms_are_the_singular_values_before_and_after_normalisation(float64):
    network = energy().train()
    found = spectral_norms(network)
    raw = [p.flatten(1) for name, p in network.named_parameters() if name.endswith("original")]
    assert found["weight_norm"] == pytest.approx(max(torch.linalg.svdvals(w)[0].item() for w in raw), rel=1e-5)
    assert found["spectral_norm"] >= 1 - 1e-6
