"""Deep energies: the formula by hand, one pass through the network for all latents, any shape of v, and a run."""

from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, conv2d
from torch.nn.functional import elu as torch_elu

from cases import IMAGE, INFERRED, POSTERIORS, V_DIM, VISIBLE_ENERGIES, randomise, tiny_resnet
from eblvm_lit.cli import run
from eblvm_lit.cli.build import build
from eblvm_lit.core.functional import bind, params_of, plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.divergences.fisher import Fisher
from eblvm_lit.energies.base import Energy
from eblvm_lit.energies.deep import DeepEnergy, DeepLatentEnergy, DeepVectorEnergy
from eblvm_lit.energies.mlp_energy import MLPEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.bism import BiSM
from eblvm_lit.methods.contrastive_divergence import ContrastiveDivergence
from eblvm_lit.methods.score_matching import ScoreMatching
from eblvm_lit.methods.vages import VaGES
from eblvm_lit.networks.conv_encoder import ConvEncoder
from eblvm_lit.networks.heads import QuadraticHead, SquaredNormHead
from eblvm_lit.networks.image_mlp import ImageMLP
from eblvm_lit.networks.mlp import MLP
from eblvm_lit.networks.residual_mlp import ResidualMLP
from eblvm_lit.networks.resnet import ResNet
from eblvm_lit.networks.vector_field import VectorField
from eblvm_lit.objectives.mdsm import MDSM
from eblvm_lit.objectives.sm import SM
from eblvm_lit.objectives.ssm import SSM
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.posteriors.gaussian import NetworkGaussianPosterior
from eblvm_lit.samplers.chains.langevin_chain import LangevinChain
from eblvm_lit.scores.bilevel import BilevelScore
from eblvm_lit.scores.exact import Exact
from eblvm_lit.scores.particles import RefinedParticles
from eblvm_lit.scores.variational import Unbiased, VaES, VariationalScore, vages_product
from helpers import iterating
from helpers.image_files import write_images
from helpers.shell import configure, tiny


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


def test_terms_of_v_alone_have_their_formulas_and_leave_the_posterior(float64):
    network = randomise(MLP(sizes=[2, 5, 4]), 0.5)
    v, h = torch.randn(4, 2, requires_grad=True), torch.randn(5, 4, 3, requires_grad=True)
    tilted = randomise(
        DeepLatentEnergy(network=network, h_dim=3, head_dim=6, visible_head="quadratic", reference_std=0.7), 0.5
    )
    plain = DeepLatentEnergy(network=network, h_dim=3, head_dim=6)
    plain.load_state_dict({name: value for name, value in tilted.state_dict().items() if "visible" not in name})
    alone = tilted.visible_head(network(v)) + v.square().sum(1) / (2 * 0.49)
    torch.testing.assert_close(tilted(v, h), plain(v, h) + alone)
    of_h = [torch.autograd.grad(energy(v, h).sum(), h)[0] for energy in (tilted, plain)]
    torch.testing.assert_close(*of_h)  # p(h|v) is the same
    reference = DeepEnergy(network=network, reference_std=0.7)
    score, untilted = -torch.autograd.grad(reference(v).sum(), v)[0], DeepEnergy(network=network)
    untilted.load_state_dict(reference.state_dict())
    torch.testing.assert_close(score, -torch.autograd.grad(untilted(v).sum(), v)[0] - v / 0.49)
    image = DeepEnergy(network=Convolutional(), reference_std=2.0)  # all axes of an image are summed over
    torch.testing.assert_close(image.reference.energy(torch.ones(5, 1, 4, 6), 3), torch.full((5,), 24 / 8))
    confined = DeepLatentEnergy(network=network, h_dim=3, head_dim=6, latent_reference_std=0.5)
    confined.load_state_dict(plain.state_dict())
    torch.testing.assert_close(confined(v, h), plain(v, h) + 2 * h.square().sum(-1))


def test_the_mlp_of_images_has_its_formula_and_sees_all_pixels(float64):
    network, v = randomise(ImageMLP(v_shape=[2, 3, 4], widths=[6, 5])), torch.randn(7, 2, 3, 4)
    x = v.reshape(7, 24).numpy()
    for weight, bias in (arrays(layer) for layer in network.layers if isinstance(layer, nn.Linear)):
        z = x @ weight.T + bias
        x = z / (1 + np.exp(-z))
    np.testing.assert_allclose(network(v).detach().numpy(), x, rtol=1e-12)
    assert (network.event_shape, network.out_dim) == ((2, 3, 4), 5)


@pytest.mark.parametrize("negative_slope", [None, 0.2])
def test_residual_network_has_its_formula(negative_slope, float64):
    network, x = randomise(ResidualMLP(sizes=[2, 5, 4, 4], negative_slope=negative_slope)), torch.randn(6, 2)
    activation = elu if negative_slope is None else lambda x: np.where(x > 0, x, 0.2 * x)
    expected = [residual_by_hand(network, row.numpy(), activation) for row in x]
    np.testing.assert_allclose(network(x).detach().numpy(), np.stack(expected), rtol=1e-12)
    assert (network.event_shape, network.out_dim) == ((2,), 4)
    activated = ResidualMLP(sizes=[2, 5, 4, 4], negative_slope=negative_slope, activate_last=True)
    activated.load_state_dict(network.state_dict())
    np.testing.assert_allclose(activated(x).detach().numpy(), activation(np.stack(expected)), rtol=1e-12)


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
        (lambda: DeepLatentEnergy(network=MLP(sizes=[2, 4]), h_dim=1, visible_head="cubic"), "'none' or 'quadratic'"),
        (lambda: ResNet(v_shape=[1, 24, 24], n_blocks=1, channels=2, stem_stride=2), "multiples of 16"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


# --- networks of images -----------------------------------------------------------------------------------


def resnet_by_hand(network, v, stride=1, padding=1):
    x = conv2d(v, network.stem.weight, network.stem.bias, stride=stride, padding=padding)
    for i, block in enumerate(network.blocks):
        y = conv2d(torch_elu(x), block.first.weight, None, padding=1)
        y = conv2d(torch_elu(y), block.second.weight, block.second.bias, padding=1)
        if i % 2 == 0:  # two blocks a stage, the first of which halves the resolution
            x, y = avg_pool2d(x, 2), avg_pool2d(y, 2)
        x = y + conv2d(x, block.shortcut.weight, block.shortcut.bias)
    return x.contiguous().flatten(1)


def test_resnet_has_its_formula(float64):
    network, v = randomise(ResNet(v_shape=[2, 16, 8], n_blocks=2, channels=3), 0.3), torch.randn(5, 2, 16, 8)
    torch.testing.assert_close(network(v), resnet_by_hand(network, v), rtol=1e-10, atol=1e-10)
    assert (network.event_shape, network.out_dim) == ((2, 16, 8), 2 * 1 * 24)
    assert [block.down for block in network.blocks] == [True, False] * 3
    weights = [block.first for block in network.blocks]
    assert [conv.in_channels for conv in weights] == [3, 6, 6, 12, 12, 24]
    assert all(conv.bias is None for conv in weights)


@pytest.mark.parametrize(("stride", "kernel", "padding"), [(2, 4, 1), (4, 8, 2)])
def test_a_strided_stem_has_its_formula_and_sees_each_pixel(stride, kernel, padding, float64):
    size = 8 * stride
    network = ResNet(v_shape=[2, size, 2 * size], n_blocks=2, channels=3, stem_stride=stride)
    randomise(network, 0.3)
    v = torch.randn(5, 2, size, 2 * size, requires_grad=True)
    assert network.stem.kernel_size == (kernel, kernel)
    torch.testing.assert_close(network(v), resnet_by_hand(network, v, stride, padding), rtol=1e-10, atol=1e-10)
    assert network.out_dim == 1 * 2 * 24 == network(v).shape[1]
    assert (torch.autograd.grad(network(v).sum(), v)[0] != 0).all()


@pytest.mark.parametrize("make", [lambda: ResNet(v_shape=[3, 8, 8], n_blocks=1, channels=4), None])
def test_convolutions_are_channels_last(make):
    network = ConvEncoder(v_shape=[3, 8, 8], widths=[4, 4]) if make is None else make()
    formats = []
    for conv in network.modules():
        if isinstance(conv, nn.Conv2d):
            assert conv.weight.is_contiguous(memory_format=torch.channels_last)
            conv.register_forward_hook(
                lambda module, args, out: formats.append(out.is_contiguous(memory_format=torch.channels_last))
            )
    network(torch.randn(5, 3, 8, 8))
    assert formats
    assert all(formats)


@pytest.mark.parametrize("strides", [None, [1, 2, 2]])
def test_conv_encoder_has_its_formula(strides, float64):
    network = ConvEncoder(v_shape=[2, 8, 16], widths=[3, 4, 5], strides=strides)
    x = v = torch.randn(6, 2, 8, 16)
    convs = [layer for layer in network.layers if isinstance(layer, nn.Conv2d)]
    for conv, stride in zip(convs, strides or [2, 2, 2], strict=True):
        x = conv2d(x, conv.weight, conv.bias, stride=stride, padding=1)
        x = torch.where(x > 0, x, 0.2 * x)
    torch.testing.assert_close(network(v), x.contiguous().flatten(1), rtol=1e-10, atol=1e-10)
    assert network.out_dim == x[0].numel() == (10 if strides is None else 2 * 4 * 5)


def test_heads_have_their_formulas(float64):
    f = torch.randn(7, 5, 6)
    head = randomise(SquaredNormHead(in_dim=6, width=4))
    expected = (elu((f @ head.weight.T + head.bias).detach().numpy()) ** 2).sum(-1)
    np.testing.assert_allclose(head(f).detach().numpy(), expected, rtol=1e-12)
    head = randomise(QuadraticHead(in_dim=6))
    (w1, b1), (w2, b2), (w3, b3) = ((p.weight[0], p.bias) for p in (head.first, head.second, head.square))
    torch.testing.assert_close(head(f), (f @ w1 + b1) * (f @ w2 + b2) + (f * f) @ w3 + b3)


# --- sizes ------------------------------------------------------------------------------------------------

PUBLISHED = {
    "mnist": ([1, 32, 32], 2, 64, 50, 9_859_250),
    "cifar10": ([3, 32, 32], 3, 128, 50, 63_936_562),
    "celeba64-vages": ([3, 64, 64], 3, 128, 50, 68_876_338),
    "celeba64-bism": ([3, 64, 64], 4, 128, 20, 91_096_596),
}


def size(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_latent_variable_models_have_the_published_size(name):
    v_shape, n_blocks, channels, h_dim, expected = PUBLISHED[name]
    with torch.device("meta"):
        network = ResNet(v_shape=v_shape, n_blocks=n_blocks, channels=channels)
        energy = DeepLatentEnergy(network=network, h_dim=h_dim)
    assert size(energy) == expected
    assert energy.head.out_features == v_shape[1] * v_shape[2] // 64 * 4 * channels


@pytest.mark.parametrize(("head", "expected"), [("quadratic", 62_339_075), ("squared_norm", 196_515_840)])
def test_visible_models_have_the_published_size(head, expected):
    with torch.device("meta"):
        energy = DeepEnergy(network=ResNet(v_shape=[3, 32, 32], n_blocks=3, channels=128), head=head)
    assert size(energy) == expected


def test_the_published_posterior_of_images():
    with torch.device("meta"):
        q = NetworkGaussianPosterior(network=ConvEncoder(v_shape=[3, 32, 32]), h_dim=50)
    widths = [3, 64, 128, 256]
    assert size(q.network) == sum(9 * a * b + b for a, b in pairwise(widths))
    assert q.mean_head.in_features == 4 * 4 * 256


# --- energies without latents -----------------------------------------------------------------------------

every_visible = pytest.mark.parametrize("case", VISIBLE_ENERGIES, ids=str)


@every_visible
def test_visible_energies_are_marginals_of_nothing(case, float64):
    energy, v = case.make(), torch.randn(5, *case.event_shape, requires_grad=True)
    whole = energy.free_energy(v)
    assert (energy.h_dim, energy.event_shape, whole.shape) == (0, case.event_shape, (5,))
    torch.testing.assert_close(energy(v), whole)
    torch.testing.assert_close(energy.energy(v, torch.empty(3, 5, 0)), whole.expand(3, 5))
    torch.testing.assert_close(energy.free_energy(v.flip(0)), whole.flip(0))
    expected = -torch.autograd.grad(whole.sum(), v)[0]
    for backend in (nullcontext, plain_autograd):
        with backend():
            torch.testing.assert_close(Exact().function(energy, None, v, None)(v.detach()), expected)
    for name, g in zip(params_of(energy), torch.autograd.grad(energy(v).sum(), energy.parameters()), strict=True):
        assert g.abs().max() > 1e-6, name


@pytest.mark.parametrize("objective", [SM(), SSM(), MDSM(sigma_min=0.1, sigma_max=1.0, sigma0=0.1)])
@pytest.mark.parametrize("case", [c for c in VISIBLE_ENERGIES if c.event_shape == (V_DIM,)], ids=str)
def test_objectives_of_visible_energies_against_autograd(case, objective, float64):
    energy, v = case.make(), torch.randn(5, V_DIM)
    noise = objective.noise(v, (), keyed_generator(0))
    x = objective.perturb(v, noise).requires_grad_()
    loss = objective.loss(Exact().function(energy, None, x, None), x.detach(), noise)
    s = -torch.autograd.grad(energy(x).sum(), x, create_graph=True)[0]
    rows = [torch.autograd.grad(s[:, i].sum(), x, retain_graph=True)[0] for i in range(V_DIM)]
    jacobian = torch.stack(rows, 1)
    if isinstance(objective, MDSM):
        expected = 0.5 * (s / noise["sigma"].unsqueeze(-1) + noise["eps"] / 0.01).square().sum(-1)
    else:
        u = noise.get("u")
        trace = jacobian.diagonal(dim1=1, dim2=2).sum(-1) if u is None else torch.einsum("bi,bij,bj->b", u, jacobian, u)
        expected = 0.5 * s.square().sum(-1) + trace
    torch.testing.assert_close(loss, expected)


def test_methods_with_a_posterior_refuse_a_visible_energy():
    with pytest.raises(
        ConfigError, match="DeepEnergy has no latents, so there is no posterior to fit: use method=mdsm"
    ):
        image_method("bism", energy=DeepEnergy(network=tiny_resnet()))


# --- methods on images ------------------------------------------------------------------------------------


class AsImage(Energy):
    """An energy of vectors that is shown images of one row."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.h_dim, self.continuous = inner, inner.h_dim, inner.continuous
        self.event_shape = (1, 1, V_DIM)

    def energy(self, v, h):
        return self.inner.energy(v.flatten(1), h)


@pytest.mark.parametrize("case", INFERRED, ids=str)
def test_variational_estimates_of_images_are_those_of_vectors(case, float64):
    energy, v, z, h = case.make(), torch.randn(4, V_DIM), torch.randn(4, V_DIM), torch.rand(6, 4, 3)
    image, as_image = AsImage(energy), (4, 1, 1, V_DIM)
    torch.testing.assert_close(VaES()(image, None, v.view(as_image), h).flatten(1), VaES()(energy, None, v, h).detach())
    flat = vages_product(energy, v, z, h, h.flip(0) ** 2, Unbiased())
    seen = vages_product(image, v.view(as_image), z.view(as_image), h, h.flip(0) ** 2, Unbiased())
    grads = [
        torch.autograd.grad(value.sum(), [p for p in energy.parameters() if p.requires_grad]) for value in (flat, seen)
    ]
    torch.testing.assert_close(*grads)


OBJECTIVE = MDSM(sigma_min=0.1, sigma_max=1.0, sigma0=0.1)
KINDS = ["mdsm", "cd", "bism", "bism-2", "vages"]


def image_method(kind, energy=None, n_lower_steps=2, **network):
    """A method on tiny images, freshly initialised from one seed."""
    torch.manual_seed(0)
    rule, net = Adam(lr=1e-3), tiny_resnet(**network)
    if kind == "mdsm":
        return ScoreMatching(energy=DeepEnergy(network=net), objective=OBJECTIVE, optimizer=rule)
    if kind == "cd":
        chain = LangevinChain(n_steps=2, step_size=0.01)
        return ContrastiveDivergence(energy=DeepEnergy(network=net), chain=chain, optimizer=rule)
    encoder = ConvEncoder(v_shape=IMAGE, widths=[2, 3, 4])
    parts = {
        "energy": energy or DeepLatentEnergy(network=net, h_dim=3),
        "posterior": NetworkGaussianPosterior(network=encoder, h_dim=3),
        **{"objective": OBJECTIVE, "divergence": Fisher(), "optimizer": rule, "n_lower_steps": n_lower_steps},
    }
    if kind.startswith("bism"):
        return BiSM(**parts, n_unroll=int(kind.removeprefix("bism").removeprefix("-") or 0))
    particles = RefinedParticles(n_refine_steps=3, step_size=1e-2, noise_std=1e-4)
    return VaGES(**parts, score=VariationalScore(n_particles=2, particles=particles))


def model_gradient(method, v):
    noise = method.draw_noise(v, keyed_generator(0))
    (step,) = iterating.found(method, iterating.start(method, 1e-3), v, noise)[list(method.groups)[-1]]
    return step


@pytest.mark.parametrize("kind", KINDS)
def test_an_iteration_on_images_moves_every_network(kind, float64):
    method, v = image_method(kind), torch.rand(4, *IMAGE)
    before = iterating.start(method, 1e-3)
    with plain_autograd():
        after, record = iterating.run(method, before, v, method.draw_noise(v, keyed_generator(1)))
    assert all(value.isfinite() for value in record.values())
    for network, params in before.params.items():
        for name, p in params.items():
            # no score sees an additive constant of the energy, nor does the difference of two energies
            assert torch.equal(after.params[network][name], p) == (name == "head.square.bias"), name


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_on_images_do_not_depend_on_who_takes_them(kind, float64):
    v = torch.rand(4, *IMAGE)
    composed = model_gradient(image_method(kind), v)
    with plain_autograd():
        plain = model_gradient(image_method(kind), v)
    torch.testing.assert_close(composed.loss, plain.loss)
    torch.testing.assert_close(composed.grads, plain.grads)


def kept_bytes(energy, v):
    """What autograd keeps of a pass of v."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.setdefault(x.data_ptr(), x.numel()) and x, lambda x: x
    ):
        energy(v)
    return sum(kept.values())


def test_recomputed_activations_change_no_gradient(float64):
    v, passes, found = torch.rand(4, *IMAGE), {}, {}
    for recompute in (False, True):
        method = image_method("cd", checkpoint=recompute)
        count = passes.setdefault(recompute, [])
        method.energy.network.blocks[1].register_forward_pre_hook(lambda *_, count=count: count.append(1))
        with plain_autograd():
            found[recompute] = model_gradient(method, v).grads
    torch.testing.assert_close(found[True], found[False], rtol=1e-12, atol=1e-12)
    # two steps of the chain and the energies of both phases, each of them twice
    assert (len(passes[False]), len(passes[True])) == (4, 8)
    assert kept_bytes(image_method("cd", checkpoint=True).energy, v) < kept_bytes(image_method("cd").energy, v) / 2


@pytest.mark.parametrize(
    ("kind", "backend"),
    [("cd", nullcontext), *((kind, plain_autograd) for kind in ("mdsm", "bism", "bism-2", "vages"))],
)
def test_recomputation_is_refused_where_it_saves_nothing(kind, backend):
    method, v = image_method(kind, checkpoint=True), torch.rand(4, *IMAGE)
    with pytest.raises(ConfigError, match=r"first order by plain autograd alone.*checkpoint=false") as no, backend():
        model_gradient(method, v)
    assert "\n" not in str(no.value)
    method.eval()  # metrics are taken by torch.func, and keep their activations
    assert method.validation_loss(v, keyed_generator(0)).shape == (4,)


@pytest.mark.parametrize("kind", ["mdsm", "bism", "vages"])
def test_bfloat16_leaves_sums_and_parameters_in_float32(kind):
    v, found = torch.rand(4, *IMAGE), {}
    for enabled in (False, True):
        with plain_autograd(), torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False):
            found[enabled] = model_gradient(image_method(kind), v)
    assert found[True].loss.dtype == torch.float32
    torch.testing.assert_close(found[True].loss, found[False].loss, rtol=1e-4, atol=0)
    assert {g.dtype for g in found[True].grads.values()} == {torch.float32}
    half, single = (torch.cat([g.flatten() for g in found[enabled].grads.values()]) for enabled in (True, False))
    assert (half != single).any()
    assert (half - single).norm() < 0.1 * single.norm()


def test_what_sums_is_float32_under_autocast():
    v, h = torch.rand(4, *IMAGE), torch.randn(2, 4, 3)
    q = image_method("bism").posterior
    with torch.autocast("cpu", torch.bfloat16):
        energies = [
            image_method("bism").energy(v, h),
            image_method("mdsm").energy(v),
            q.log_prob(h, v),
            *q.distribution_params(v),
        ]
        energies += [POSTERIORS[0].make().float().logits(torch.rand(4, V_DIM))]
        assert tiny_resnet()(v).dtype == torch.bfloat16
    assert {e.dtype for e in energies} == {torch.float32}
    # 8 bits of mantissa cannot tell 1000 equal terms from 1001
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        head = SquaredNormHead(in_dim=1, width=1001)
        head.weight.zero_(), head.bias.fill_(1.0)
        assert head(torch.zeros(1, 1)).item() == 1001


PASSES = {"bism": 1, "bism-2": 3, "vages": 3, "mdsm": 1}


@pytest.mark.parametrize("kind", PASSES)
def test_passes_of_an_iteration_through_the_trunk(kind):
    # one for each lower step, unrolled or not; one for all refinement steps, one for the score, one for its gradient
    method, v = image_method(kind, n_lower_steps=4), torch.rand(4, *IMAGE)
    noise = method.draw_noise(v, keyed_generator(0))
    calls = count_calls(method.energy)
    with plain_autograd():
        iterating.run(method, iterating.start(method, 1e-3), v, noise)
    assert calls == [(4, *IMAGE)] * (PASSES[kind] + (0 if kind == "mdsm" else 4))


def test_refinement_takes_one_pass_whatever_its_length():
    energy, v = image_method("vages").energy, torch.rand(4, *IMAGE)
    q, calls = image_method("vages").posterior, count_calls(energy)
    for n in (1, 20):
        particles = RefinedParticles(n_refine_steps=n, step_size=1e-2, noise_std=1e-4)
        particles.draw(energy, q, v, particles.noise(energy, q, (6,), v, keyed_generator(0)))
    chain = LangevinChain(n_steps=1, step_size=0.01, n_latent_steps=20)
    chain.start(energy, v, chain.start_noise(energy, v, keyed_generator(0)))
    assert calls == [(4, *IMAGE)] * 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ResNet(v_shape=[1, 28, 28], n_blocks=1, channels=4), r"\[1, 28, 28\] .* multiples of 8"),
        (lambda: ResNet(v_shape=[784], n_blocks=1, channels=4), r"\[channels, height, width\]"),
        (
            lambda: ResNet(v_shape=[3, None, None], n_blocks=1, channels=4),
            r"\[3, None, None\] leaves open .* data.size",
        ),
        (lambda: ImageMLP(v_shape=[64]), r"\[channels, height, width\]"),
        (lambda: ConvEncoder(v_shape=[1, 12, 12]), "multiples of 8"),
        (lambda: DeepEnergy(network=tiny_resnet(), head="cubic"), "'quadratic' or 'squared_norm', not 'cubic'"),
        (lambda: DeepEnergy(network=tiny_resnet(), head_dim=3), "head=quadratic has no head_dim"),
    ],
)
def test_refusals_of_images(make, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        make()
    assert "\n" not in str(refusal.value)


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
    energy, q = (part for part in build(cfg).method.parts[:2])
    assert [tuple(block.second.weight.shape) for block in energy.network.blocks] == [(100, 2), (100, 100), (100, 100)]
    assert [sum(p.numel() for p in part.parameters()) for part in (energy, q)] == [64_316, 63_226]
    assert q.network.activate_last
    assert not energy.network.activate_last
    assert (energy.event_shape, energy.h_dim, energy.head.out_features) == ((2,), 10, 100)
    assert (cfg.trainer.max_steps, cfg.optimizer.lr, cfg.optimizer.schedule.floor) == (100_000, 1e-4, 1e-6)
    assert (cfg.objective.sigma_min, cfg.objective.sigma_max, cfg.objective.sigma0) == (0.05, 1.0, 0.05)


RESNET = "eblvm_lit.networks.resnet.ResNet"
SMALL = ["data.size=8", "model.network.n_blocks=1", "model.network.channels=2"]


def test_the_deep_model_of_images_brings_its_parts():
    cfg = configure("model=deep", "method=bimdsm", "data=cifar10")
    network = {"_target_": RESNET, "v_shape": [3, 32, 32], "n_blocks": 3, "channels": 128, "checkpoint": False}
    network["stem_stride"] = 1
    assert cfg.model == {
        **{"_target_": "eblvm_lit.energies.deep.DeepLatentEnergy", "network": network},
        **{"h_dim": 50, "head_dim": None, "visible_head": "none", "reference_std": None},
        "latent_reference_std": None,
    }
    assert cfg.posterior._target_.endswith("NetworkGaussianPosterior")
    assert (cfg.posterior.network.v_shape, cfg.posterior.network.widths) == ([3, 32, 32], [64, 128, 256])
    assert cfg.divergence._target_.endswith("Fisher")
    assert (cfg.method.n_lower_steps, cfg.method.n_unroll) == (5, 0)
    bism, vages = (configure("model=deep", f"method={m}", "data=celeba64").model for m in ("bimdsm", "vages_mdsm"))
    assert (bism.network.n_blocks, bism.h_dim, vages.network.n_blocks, vages.h_dim) == (4, 20, 3, 50)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *((name, "Deep") for name in ("mdsm", "dsm", "ssm", "sm", "cd", "pcd", "nce", "snl")),
        *((name, "DeepLatent") for name in ("bimdsm", "bissm", "vages_dsm", "vnce", "vsnl", "particle_ml")),
    ],
)
def test_the_deep_model_fits_the_method(method, kind):
    assert configure("model=deep", f"method={method}", "data=mnist").method.energy._target_.endswith(f".{kind}Energy")


def test_variational_methods_refine_the_particles_of_deep_models_of_images():
    cfg = configure("model=deep", "method=vages_mdsm", "data=cifar10")
    assert (cfg.particles.n_refine_steps, cfg.particles.step_size, cfg.particles.noise_std) == (5, 1e-2, 1e-4)
    assert (cfg.score.n_particles, cfg.method.n_lower_steps) == (2, 5)
    plain = configure("model=deep", "method=vages_mdsm", "data=cifar10", "particles=posterior")
    assert plain.particles == {"_target_": "eblvm_lit.scores.particles.PosteriorParticles"}
    celeba = configure("model=deep", "method=vages_mdsm", "data=celeba64").particles
    assert (celeba.n_refine_steps, celeba.step_size) == (50, 5e-4)


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=bimdsm", "posterior.network.widths=[64,64,128,128,256]", "posterior.network.strides=[2,1,2,1,2]"],
        ["method=vages_mdsm"],
        ["method=mdsm", "marginal_model.head=squared_norm"],
        ["method=pcd", "chain=langevin", "method.n_chains=4"],
        ["method=particle_ml", "method.n_chains=4"],
    ],
)
def test_methods_on_images_are_built(overrides, tmp_path):
    cfg = configure("model=deep", "data=mnist", *SMALL, *overrides, f"run_dir={tmp_path}")
    parts = build(cfg).method.parts
    assert parts.energy.event_shape == (1, 8, 8)
    if parts.posterior is not None:
        assert parts.posterior.mean_head.in_features == 256


@pytest.mark.parametrize("method", ["vages_mdsm", "mdsm"])
def test_a_run_on_images_in_bfloat16(method, tmp_path):
    write_images(tmp_path / "images", 12, size=(8, 8))
    data = ["data=image_folder", f"data.path={tmp_path / 'images'}", f"data.root={tmp_path}", "data.test_size=3"]
    short = ["debug=fast", "data.val_size=3", "data.batch_size=4", "trainer.max_steps=2", "callbacks.figures=null"]
    parts = ["model=deep", f"method={method}", "trainer.precision=bf16-mixed", f"run_dir={tmp_path}"]
    metrics = run.train(configure(*parts, *data, *SMALL, *short))
    assert metrics["iteration"] == 2
    assert (method == "mdsm") == ("test/posterior_fisher" not in metrics)
    weights = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert {value.dtype for value in weights.values()} == {torch.float32}


def test_methods_that_need_the_exact_score_are_refused():
    with pytest.raises(ConfigError, match="DeepVectorEnergy has no tractable marginal"):
        ScoreMatching(energy=DeepVectorEnergy(v_dim=2), objective=OBJECTIVE, optimizer=Adam(lr=1e-3))


def test_the_deep_toy_model_of_methods_of_a_marginal_is_a_multilayer_perceptron(tmp_path):
    energy = build(tiny(tmp_path, "model=deep_toy", "method=dsm", "data=checkerboard")).method.energy
    assert (type(energy), energy.event_shape, energy.h_dim, energy.base_std) == (MLPEnergy, (2,), 0, None)
    assert [p.shape[0] for name, p in energy.named_parameters() if "bias" in name] == [128] * 4


def test_a_run_leaves_samples_and_how_far_the_posterior_is(tmp_path):
    parts = ["debug=fast", "model=deep_toy", "method=bimdsm", "data=checkerboard"]
    small = ["method.n_unroll=1", "trainer.max_steps=2", "callbacks.figures.figures.samples.n_steps=3"]
    metrics = run.train(configure(*parts, *small, f"run_dir={tmp_path}"))
    assert metrics["test/posterior_fisher"] > 0
    assert (tmp_path / "figures" / "samples.png").stat().st_size > 10_000
    assert not (tmp_path / "figures" / "density.png").exists()
