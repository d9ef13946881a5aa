"""Deep energies: the formula by hand, one pass through the network for all latents, any shape of v, and a run."""

import numpy as np
import pytest
import torch
from torch import nn

from cases import randomise
from eblvm_lit import run
from eblvm_lit.composition import build
from eblvm_lit.differentiation import plain_autograd
from eblvm_lit.divergences.fisher import Fisher
from eblvm_lit.energies.deep import DeepLatentEnergy, DeepVectorEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.functional import bind, params_of
from eblvm_lit.networks.mlp import MLP
from eblvm_lit.networks.residual_mlp import ResidualMLP
from eblvm_lit.networks.vector_field import VectorField
from eblvm_lit.posteriors.gaussian import NetworkGaussianPosterior
from eblvm_lit.scores.bilevel import BilevelScore
from eblvm_lit.seeding import keyed_generator
from shell import configure, tiny


def elu(x):
    return np.where(x > 0, x, np.expm1(x))


def arrays(linear):
    return linear.weight.detach().numpy(), linear.bias.detach().numpy()


def residual_by_hand(network, x, activation):
    for i, block in enumerate(network.blocks):
        (A1, a1), (A2, a2), (S, s) = (arrays(part) for part in (block.first, block.second, block.shortcut))
        x = activation(x) if i else x
        x = activation(A2 @ activation(A1 @ x + a1) + a2) + S @ x + s
    return x


def deep(**options):
    return randomise(DeepVectorEnergy(v_dim=2, h_dim=3, head_dim=6, widths=[5, 4], **options), 0.5)


def test_energy_has_its_formula(float64):
    energy, v, h = deep(), torch.randn(4, 2), torch.randn(5, 4, 3)
    (B, b), (A, a) = arrays(energy.f2h), arrays(energy.head)
    found = energy(v, h).detach().numpy()
    for particle in range(5):
        for row in range(4):
            y = h[particle, row].numpy()
            g = B @ residual_by_hand(energy.network, v[row].numpy(), elu) + b
            expected = sum(elu(A @ np.concatenate([g + y, y]) + a) ** 2)
            np.testing.assert_allclose(found[particle, row], expected, rtol=1e-12)
    assert (found >= 0).all()


def test_the_coupling_keeps_volume_and_shifts_the_first_copy_alone(float64):
    # with a head that reads the first copy only, the energy sees g(v) + h and nothing else
    energy, v, h = deep(), torch.randn(4, 2), torch.randn(4, 3)
    with torch.no_grad():
        energy.head.weight[:, 3:].zero_()
    shift = torch.randn(4, 3)
    moved = energy.energy_of_features(energy.features(v) + shift, h - shift)
    torch.testing.assert_close(moved, energy(v, h))


@pytest.mark.parametrize("negative_slope", [None, 0.2])
def test_residual_network_has_its_formula(negative_slope, float64):
    network, x = randomise(ResidualMLP(sizes=[2, 5, 4, 4], negative_slope=negative_slope)), torch.randn(6, 2)
    activation = elu if negative_slope is None else lambda x: np.where(x > 0, x, 0.2 * x)
    expected = [residual_by_hand(network, row.numpy(), activation) for row in x]
    np.testing.assert_allclose(network(x).detach().numpy(), np.stack(expected), rtol=1e-12)
    assert (network.event_shape, network.out_dim) == ((2,), 4)


def test_vector_field_has_its_formula_and_keeps_the_shape(float64):
    field, v = randomise(VectorField(v_dim=6)), torch.randn(4, 6)
    (A, a), (B, b), (C, c) = (arrays(layer) for layer in field.layers if isinstance(layer, nn.Linear))
    assert A.shape == B.shape == C.shape == (6, 6)
    expected = [C @ elu(B @ elu(A @ row.numpy() + a) + b) + c for row in v]
    np.testing.assert_allclose(field(v).detach().numpy(), np.stack(expected), rtol=1e-12)
    torch.testing.assert_close(field(v.view(4, 1, 2, 3)), field(v).view(4, 1, 2, 3))
    line = VectorField(v_dim=6, n_layers=1)
    torch.testing.assert_close(line(2 * v) - line(v), v @ line.layers[0].weight.T)


def count_calls(energy):
    calls = []
    energy.network.register_forward_hook(lambda module, args, out: calls.append(args[0].shape))
    return calls


@pytest.mark.parametrize("shape", [(), (7,), (3, 7)])
def test_one_pass_through_the_network_serves_all_latents(shape):
    energy, v = deep(), torch.randn(4, 2)
    calls = count_calls(energy)
    assert energy(v, torch.randn(*shape, 4, 3)).shape == (*shape, 4)
    assert calls == [(4, 2)]
    features = energy.features(v)
    for _ in range(5):
        energy.energy_of_features(features, torch.randn(*shape, 4, 3))
    assert len(calls) == 2


def test_the_fisher_divergence_of_many_particles_takes_one_pass():
    energy, v = deep(), torch.randn(4, 2)
    q = NetworkGaussianPosterior(network=MLP(sizes=[2, 5]), h_dim=3)
    calls = count_calls(energy)
    with plain_autograd():
        Fisher(n_particles=10).loss(energy, q, v, q.noise((10,), v, keyed_generator(0)))
    assert calls == [(4, 2)]


class Convolutional(nn.Module):
    """Features of images."""

    event_shape, out_dim = (1, 4, 6), 8

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, stride=2, padding=1)

    def forward(self, v):
        return self.conv(v).flatten(1)[:, :8]


def test_images_are_as_good_as_vectors(float64):
    energy = randomise(DeepLatentEnergy(network=Convolutional(), h_dim=3, head_dim=6), 0.5)
    assert energy.event_shape == (1, 4, 6)
    q = NetworkGaussianPosterior(network=Convolutional(), h_dim=3)
    v, h = torch.randn(5, 1, 4, 6), torch.randn(7, 5, 3)
    torch.testing.assert_close(energy(v, h)[2, 3], energy(v[3:4], h[2, 3:4]).squeeze())
    score = BilevelScore(energy, q, v, q.noise((), v, keyed_generator(0)))(v)
    assert score.shape == v.shape
    assert score.isfinite().all()


def test_gradients_are_finite_far_from_the_data_and_right(float64):
    energy, theta = deep(), None
    v, h = 100 * torch.randn(4, 2), 100 * torch.randn(4, 3)
    theta = params_of(energy)
    for g in torch.func.grad(lambda t: bind(energy, t).energy(v, h).sum())(theta).values():
        assert g.isfinite().all()
    v, h = torch.randn(3, 2, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    assert torch.autograd.gradcheck(energy.energy, (v, h))
    assert torch.autograd.gradgradcheck(energy.energy, (v, h))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DeepVectorEnergy(v_dim=0), "v_dim and widths >= 1, not 0"),
        (lambda: DeepVectorEnergy(v_dim=2, widths=[3, 0]), r"v_dim and widths >= 1, not 2 and \[3, 0\]"),
        (lambda: DeepVectorEnergy(v_dim=2, widths=[]), "at least an input and an output"),
        (lambda: DeepVectorEnergy(v_dim=2, h_dim=0), "h_dim >= 1 and head_dim >= 1, not 0"),
        (lambda: DeepVectorEnergy(v_dim=2, head_dim=0), "not 10 and 0"),
        (lambda: VectorField(v_dim=0), "v_dim and n_layers >= 1"),
        (lambda: VectorField(v_dim=2, n_layers=0), "v_dim and n_layers >= 1"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


# --- as a choice of the configuration ---------------------------------------------------------------------


def test_the_model_brings_its_posterior_divergence_and_schedule():
    cfg = configure("model=deep_toy", "method=bimdsm", "data=checkerboard")
    assert (cfg.model.v_dim, cfg.model.h_dim, cfg.model.head_dim) == (2, 10, 100)
    assert cfg.posterior._target_.endswith("NetworkGaussianPosterior")
    assert cfg.divergence._target_.endswith("Fisher")
    assert cfg.method.optimizer.lr == 1e-3
    assert configure("model=deep_toy", "model.h_dim=4", "optimizer.lr=1").method.energy.h_dim == 4


def test_the_published_toy_model(tmp_path):
    cfg = configure("experiment=vages_toy_deep", f"run_dir={tmp_path}")
    energy = build(cfg).method.energy
    assert [tuple(block.second.weight.shape) for block in energy.network.blocks] == [(100, 100)] * 3
    assert (energy.event_shape, energy.h_dim, energy.head.out_features) == ((2,), 10, 100)
    assert (cfg.trainer.max_steps, cfg.optimizer.lr, cfg.optimizer.schedule.floor) == (100_000, 1e-4, 1e-6)
    assert (cfg.objective.sigma_min, cfg.objective.sigma_max, cfg.objective.sigma0) == (0.05, 1.0, 0.05)


def test_methods_that_need_the_exact_score_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="DeepVectorEnergy has no tractable marginal"):
        build(tiny(tmp_path, "model=deep_toy", "method=dsm"))


def test_a_run_leaves_samples_and_how_far_the_posterior_is(tmp_path):
    parts = ["debug=fast", "model=deep_toy", "method=bimdsm", "data=checkerboard"]
    small = ["method.n_unroll=1", "trainer.max_steps=2", "callbacks.figures.figures.samples.n_steps=3"]
    metrics = run.train(configure(*parts, *small, f"run_dir={tmp_path}"))
    assert metrics["test/posterior_fisher"] > 0
    assert (tmp_path / "figures" / "samples.png").stat().st_size > 10_000
    assert not (tmp_path / "figures" / "density.png").exists()
