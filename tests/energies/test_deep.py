"""Tests of deep energies: their formula by hand, one network pass for all latents, and any shape of v."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import eblvm_lit as eb
from cases import VISIBLE_ENERGIES, randomise, tiny_resnet
from eblvm_lit.core.functional import bind, params_of, plain_autograd
from eblvm_lit.runs.build import build
from eblvm_lit.runs.instantiate import instantiate
from helpers.shell import configure


def elu(x):
    return np.where(x > 0, x, np.expm1(x))


def arrays(linear):
    return linear.weight.detach().numpy(), linear.bias.detach().numpy()


def deep(**options):
    return randomise(eb.DeepVectorEnergy(v_dim=2, h_dim=3, head_dim=6, widths=[5, 4], **options), 0.5)


def test_energy_has_its_formula(float64):
    energy = deep()
    v = torch.randn(4, 2)
    h = torch.randn(5, 4, 3)
    (B, b) = arrays(energy.f2h)
    (A, a) = arrays(energy.head)
    found = energy(v, h).detach().numpy()
    features = energy.network(v).detach().numpy()
    for particle in range(5):
        for row in range(4):
            y = h[particle, row].numpy()
            g = B @ features[row] + b
            expected = sum(elu(A @ np.concatenate([g + y, y]) + a) ** 2)
            np.testing.assert_allclose(found[particle, row], expected, rtol=1e-12)
    assert (found >= 0).all()


def test_terms_of_v_alone_have_their_formulas_and_leave_the_posterior(float64):
    network = randomise(eb.MLP(sizes=[2, 5, 4]), 0.5)
    v = torch.randn(4, 2, requires_grad=True)
    h = torch.randn(5, 4, 3, requires_grad=True)
    tilted = randomise(
        eb.DeepLatentEnergy(network=network, h_dim=3, head_dim=6, visible_head="quadratic", reference_std=0.7), 0.5
    )
    plain = eb.DeepLatentEnergy(network=network, h_dim=3, head_dim=6)
    plain.load_state_dict({name: value for name, value in tilted.state_dict().items() if "visible" not in name})
    alone = tilted.visible_head(network(v)) + v.square().sum(1) / (2 * 0.49)
    torch.testing.assert_close(tilted(v, h), plain(v, h) + alone)
    of_h = [torch.autograd.grad(energy(v, h).sum(), h)[0] for energy in (tilted, plain)]
    torch.testing.assert_close(*of_h)  # the terms of v leave p(h|v) unchanged
    reference = eb.DeepEnergy(network=network, reference_std=0.7)
    score = -torch.autograd.grad(reference(v).sum(), v)[0]
    untilted = eb.DeepEnergy(network=network)
    untilted.load_state_dict(reference.state_dict())
    torch.testing.assert_close(score, -torch.autograd.grad(untilted(v).sum(), v)[0] - v / 0.49)
    image = eb.DeepEnergy(network=tiny_resnet(), reference_std=2.0)  # the reference term sums over all axes of an image
    ones = torch.ones(5, *image.event_shape)
    torch.testing.assert_close(image(ones) - image.head(image.network(ones)), torch.full((5,), ones[0].numel() / 8))
    confined = eb.DeepLatentEnergy(network=network, h_dim=3, head_dim=6, latent_reference_std=0.5)
    confined.load_state_dict(plain.state_dict())
    torch.testing.assert_close(confined(v, h), plain(v, h) + 2 * h.square().sum(-1))


def test_one_pass_through_the_network_serves_all_latents():
    energy = deep()
    calls = []
    energy.network.register_forward_hook(lambda module, args, out: calls.append(args[0].shape))
    assert energy(torch.randn(4, 2), torch.randn(3, 7, 4, 3)).shape == (3, 7, 4)
    assert calls == [(4, 2)]


def test_gradients_are_finite_far_from_the_data_and_right(float64):
    energy = deep()
    v = 100 * torch.randn(4, 2)
    h = 100 * torch.randn(4, 3)
    for g in torch.func.grad(lambda t: bind(energy, t).energy(v, h).sum())(params_of(energy)).values():
        assert g.isfinite().all()
    v = torch.randn(3, 2, requires_grad=True)
    h = torch.randn(3, 3, requires_grad=True)
    assert torch.autograd.gradgradcheck(energy.energy, (v, h))


PUBLISHED = {
    "mnist": ([1, 32, 32], 2, 64, {"h_dim": 50}, 9_859_250),
    "cifar10": ([3, 32, 32], 3, 128, {"h_dim": 50}, 63_936_562),
    "celeba64-vages": ([3, 64, 64], 3, 128, {"h_dim": 50}, 68_876_338),
    "celeba64-bism": ([3, 64, 64], 4, 128, {"h_dim": 20}, 91_096_596),
    "cifar10-quadratic": ([3, 32, 32], 3, 128, {"head": "quadratic"}, 62_339_075),
    "cifar10-squared-norm": ([3, 32, 32], 3, 128, {"head": "squared_norm"}, 196_515_840),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_of_images_have_the_published_size(name):
    v_shape, n_blocks, channels, head, expected = PUBLISHED[name]
    with torch.device("meta"):
        network = eb.ResNet(v_shape=v_shape, n_blocks=n_blocks, channels=channels)
        energy = (eb.DeepLatentEnergy if "h_dim" in head else eb.DeepEnergy)(network=network, **head)
    assert sum(p.numel() for p in energy.parameters()) == expected


every_visible = pytest.mark.parametrize("case", VISIBLE_ENERGIES, ids=str)


@every_visible
def test_visible_energies_have_no_latents(case, float64):
    energy = case.make()
    v = torch.randn(5, *case.event_shape, requires_grad=True)
    whole = energy.free_energy(v)
    assert (energy.h_dim, energy.event_shape, whole.shape) == (0, case.event_shape, (5,))
    torch.testing.assert_close(energy(v), whole)
    torch.testing.assert_close(energy.energy(v, torch.empty(3, 5, 0)), whole.expand(3, 5))
    torch.testing.assert_close(energy.free_energy(v.flip(0)), whole.flip(0))
    expected = -torch.autograd.grad(whole.sum(), v)[0]
    for backend in (nullcontext, plain_autograd):
        with backend():
            torch.testing.assert_close(eb.Exact().function(energy, None, v, None)(v.detach()), expected)
    for name, g in zip(params_of(energy), torch.autograd.grad(energy(v).sum(), energy.parameters()), strict=True):
        assert g.abs().max() > 1e-6, name


def test_the_published_toy_model(tmp_path):
    cfg = configure("experiment=vages_toy_deep", f"run_dir={tmp_path}")
    energy, q = (part for part in build(cfg).method.parts[:2])
    assert [tuple(block.second.weight.shape) for block in energy.network.blocks] == [(100, 2), (100, 100), (100, 100)]
    assert [sum(p.numel() for p in part.parameters()) for part in (energy, q)] == [64_316, 63_226]
    assert q.network.activate_last
    assert not energy.network.activate_last
    assert (energy.event_shape, energy.h_dim, energy.head.out_features) == ((2,), 10, 100)
    assert (cfg.trainer.max_steps, cfg.optimizer.lr, cfg.optimizer.schedule.floor) == (100_000, 1e-4, 1e-6)
    assert (cfg.objective.sigma_min, cfg.objective.sigma_max, cfg.objective.sigma0) == (0.05, 1.0, 0.05)


def test_an_unknown_head_is_refused():
    with pytest.raises(
        eb.ConfigError, match=r"model\.head \(DeepEnergy\) must be 'quadratic' or 'squared_norm', not 'cubic'"
    ):
        instantiate({"_target_": "eblvm_lit.energies.deep.DeepEnergy", "head": "cubic"}, "model")
