"""Tests of the networks of BiDVL: published sizes, initial values, spectral norms, and passes that change no state."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import eblvm_lit as eb
from eblvm_lit.core.functional import bind, buffers_of, clone_buffers, grad_and_value, params_of, plain_autograd
from eblvm_lit.energies.spectral import JointSpectralEnergy, SpectralEnergy
from eblvm_lit.networks.bidvl_conv import BatchNormEncoder, ConvGenerator, SpectralConv
from eblvm_lit.networks.bidvl_resnet import ResidualGenerator, SpectralResNet
from eblvm_lit.networks.layers import spectrally_normalised
from eblvm_lit.posteriors.gaussian import EncoderPosterior, SpectralEncoderPosterior

SMALL = [3, 16, 16]
LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


def n_params(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


def small_energy(**options):
    return SpectralEnergy(network=SpectralConv(v_shape=SMALL, width=2), **options)


def small_encoder():
    return EncoderPosterior(network=BatchNormEncoder(v_shape=SMALL, width=2), h_dim=3)


def test_published_numbers_of_parameters_at_32():
    shape = [3, 32, 32]
    assert n_params(SpectralEnergy(network=SpectralConv(v_shape=shape))) == 7_385_665
    encoder = EncoderPosterior(network=BatchNormEncoder(v_shape=shape))
    assert n_params(encoder, ConvGenerator(v_shape=shape)) == 7_232_987


def outputs(module, kind):
    return [layer.out_channels for layer in module.modules() if isinstance(layer, kind)]


def test_widths_double_with_each_halving():
    """Compare the numbers of channels with the published table for the largest images, with all base widths equal to
    one."""
    n = 5
    shape = [3, 128, 128]
    pairs = [2**i for i in range(n + 1) for _ in range(2)]
    network = SpectralConv(v_shape=shape, width=1)
    assert outputs(network, nn.Conv2d) == pairs[:-1]
    # This layer is a convolution over the whole image, and is therefore written as a linear layer.
    last = network.layers[-1]
    assert (last.in_features, last.out_features) == (16 * 2**n, pairs[-1])
    assert outputs(BatchNormEncoder(v_shape=shape, width=1), nn.Conv2d) == [2**i for i in range(n + 1)]
    wanted = [2**n, *(2 ** (n - i) for i in range(n)), 3]
    generator = ConvGenerator(v_shape=shape, h_dim=2, width=1)
    assert outputs(generator, nn.ConvTranspose2d) == wanted
    assert generator(torch.randn(2, 2)).shape == (2, *shape)


@pytest.mark.parametrize(
    ("side", "widths", "n_down", "last"), [(32, [4] * 4, 2, 8), (64, [1, 2, 3, 4, 5], 5, 2), (128, [1] * 6, 5, 4)]
)
def test_residual_features_are_summed_over_the_published_resolution(side, widths, n_down, last):
    network = SpectralResNet(v_shape=[3, side, side], widths=widths, n_down=n_down)
    v = torch.randn(2, 3, side, side)
    kept = network.blocks(v)
    assert kept.shape == (2, widths[-1], last, last)
    network.eval()
    torch.testing.assert_close(network(v), network.blocks(v).clamp(min=0).sum((2, 3)))


def test_shortcuts_commute_with_pooling_and_doubling(float64):
    """Compare the order of pooling and shortcut that the code uses, because it is cheaper, with the published order."""
    network = SpectralResNet(v_shape=SMALL, widths=[4, 6], n_down=2).eval()
    block = network.blocks[1]
    x = torch.randn(2, 4, 8, 8)
    full = block.second(block.first(x.clamp(min=0)).clamp(min=0)) + block.shortcut(x)
    torch.testing.assert_close(block(x), nn.functional.avg_pool2d(full, 2))
    block = ResidualGenerator(v_shape=[3, 8, 8], h_dim=2, widths=[4, 5]).eval().blocks[0]
    x = torch.randn(2, 4, 4, 4)
    double = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
    y = block.first(double(block.first_norm(x).clamp(min=0)))
    published = block.second(block.second_norm(y).clamp(min=0)) + block.shortcut(double(x))
    torch.testing.assert_close(block(x), published)


def test_the_rectifier_of_the_authors_code_overwrites_the_input_of_a_block_and_of_its_shortcut(float64):
    """Compare with the authors' code (Kan et al. 2022), in which all blocks except the first begin with
    ReLU(inplace=True)."""
    network = SpectralResNet(v_shape=SMALL, widths=[4, 6, 6], n_down=2, rectified_shortcut=True).eval()
    for block, channels in ((network.blocks[1], 4), (network.blocks[2], 6)):
        x = torch.randn(2, channels, 8, 8)
        published = nn.Sequential(nn.ReLU(inplace=True), block.first, nn.ReLU(inplace=True), block.second)
        overwritten = x.clone()
        y = published(overwritten) + block.shortcut(overwritten)
        torch.testing.assert_close(block(x), nn.functional.avg_pool2d(y, 2) if block.down else y)
        block.rectified_shortcut = False
        assert not torch.allclose(block(x), nn.functional.avg_pool2d(y, 2) if block.down else y)


@pytest.mark.parametrize("make", [small_energy, small_encoder, lambda: ConvGenerator(v_shape=SMALL, width=4)])
def test_plain_networks_start_from_a_narrow_normal(make):
    """Check the initial distribution N(0, 0.02^2), also for layers with spectral norms.

    If such a layer were initialised only after it is wrapped, the wrapping would discard the initial values.
    """
    torch.manual_seed(0)
    weights = {name: p for name, p in make().named_parameters() if p.dim() > 1}
    assert weights
    for name, p in weights.items():
        assert abs(p.std().item() / 0.02 - 1) < 6 / math.sqrt(p.numel()), name


def test_residual_networks_start_uniformly():
    torch.manual_seed(0)
    for network in (SpectralResNet(v_shape=SMALL, widths=[8, 8]), ResidualGenerator(v_shape=[3, 8, 8], widths=[8, 8])):
        for name, layer in network.named_modules():
            if isinstance(layer, LAYERS):
                wrapped = hasattr(layer, "parametrizations")
                weight = layer.parametrizations.weight.original if wrapped else layer.weight
                fan = weight[0].numel() + len(weight) * weight[0, 0].numel()
                gain = math.sqrt(2) if name.endswith(("first", "second")) else 1.0
                bound = gain * math.sqrt(6 / fan)
                assert 0.7 * bound < weight.abs().max() <= bound, name


def test_every_layer_of_an_energy_is_normalised():
    for module in (
        JointSpectralEnergy(network=SpectralConv(v_shape=SMALL, width=2), h_dim=3, h_widths=[4, 4]),
        SpectralEncoderPosterior(network=SpectralResNet(v_shape=SMALL, widths=[4, 4]), h_dim=3, bias=False),
    ):
        layers = [layer for layer in module.modules() if isinstance(layer, LAYERS)]
        assert len(layers) > 3
        assert all(hasattr(layer, "parametrizations") for layer in layers)


@pytest.mark.parametrize(
    "layer", [nn.Linear(4, 3), nn.Conv2d(4, 3, 2), nn.ConvTranspose2d(4, 3, 2)], ids=["linear", "conv", "transposed"]
)
def test_spectral_norms_are_torchs_own(layer, float64):
    layer = layer.double()
    norms = []
    for norm in (spectral_norm, spectrally_normalised):
        torch.manual_seed(0)
        norms.append(norm(copy.deepcopy(layer)))
    theirs, ours = norms
    for _ in range(3):  # in training, each access to the weight makes a step of the power iteration
        torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("output", ["softplus", "tanh", "sigmoid", "identity"])
def test_outputs_of_energies(output, float64):
    energy = SpectralEnergy(network=eb.MLP(sizes=[2, 4]), output=output).eval()
    v = torch.randn(5, 2)
    raw = energy.head(energy.network(v)).squeeze(-1)
    of = {"softplus": lambda x: (1 + x.exp()).log(), "tanh": lambda x: -x.tanh(), "sigmoid": torch.special.expit}
    torch.testing.assert_close(energy(v), of.get(output, lambda x: x)(raw))


def test_encoders_bound_the_log_variance_by_softplus(float64):
    q = SpectralEncoderPosterior(network=eb.MLP(sizes=[2, 4]), h_dim=3).eval()
    v = torch.randn(5, 2)
    raw = q.log_variance_head(q.network(v))
    torch.testing.assert_close(q.moments(v)[1], -0.5 * (1 + raw.exp()).log())
    q = EncoderPosterior(network=eb.MLP(sizes=[2, 4]), h_dim=3)
    torch.testing.assert_close(q.moments(v)[1], 0.5 * q.log_variance_head(q.network(v)))


@pytest.mark.parametrize("plain", [True, False], ids=["autograd", "torch.func"])
@pytest.mark.parametrize("make", [small_energy, small_encoder], ids=["spectral-norm", "batch-norm"])
def test_a_pass_of_a_view_moves_the_buffers_it_was_given(make, plain, float64):
    """Compare the loss, gradient and buffers of a view with those of torch's own training pass.

    The module itself must not change.
    """
    module = make()
    v = torch.randn(4, *SMALL)
    before = {name: value.clone() for name, value in module.state_dict().items()}

    def loss(params):
        moved = clone_buffers(buffers_of(module))
        view = bind(module, {**params, **moved})
        return view(v).square().sum(), moved

    with plain_autograd() if plain else torch.enable_grad():
        grads, (value, moved) = grad_and_value(loss, has_aux=True)(params_of(module))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())

    own = module(v).square().sum()
    own.backward()
    torch.testing.assert_close(value, own.detach())
    for name, p in module.named_parameters():
        torch.testing.assert_close(grads[name], p.grad if p.grad is not None else torch.zeros_like(p))
    torch.testing.assert_close(moved, buffers_of(module))
    assert any(not torch.equal(moved[name], before[name]) for name in moved)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(eb.ConfigError, match="pad or resize"):
        ConvGenerator(v_shape=[3, 48, 48])
    with pytest.raises(eb.ConfigError, match="one width more for each doubling"):
        ResidualGenerator(v_shape=[3, 64, 64])
