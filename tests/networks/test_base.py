"""Tests of networks: their formulas by hand, published sizes, memory layout, and shapes that they refuse."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, conv2d
from torch.nn.functional import elu as torch_elu

import eblvm_lit as eb
from cases import IMAGE, randomise, tiny_resnet
from eblvm_lit.networks.heads import QuadraticHead, SquaredNormHead
from eblvm_lit.networks.residual_mlp import ResidualMLP
from eblvm_lit.networks.vector_field import VectorField
from eblvm_lit.runs.instantiate import instantiate


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


def test_the_mlp_of_images_has_its_formula_and_sees_all_pixels(float64):
    network = randomise(eb.ImageMLP(v_shape=[2, 3, 4], widths=[6, 5]))
    v = torch.randn(7, 2, 3, 4)
    x = v.reshape(7, 24).numpy()
    for weight, bias in (arrays(layer) for layer in network.layers if isinstance(layer, nn.Linear)):
        z = x @ weight.T + bias
        x = z / (1 + np.exp(-z))
    np.testing.assert_allclose(network(v).detach().numpy(), x, rtol=1e-12)
    assert (network.event_shape, network.out_dim) == ((2, 3, 4), 5)


@pytest.mark.parametrize("negative_slope", [None, 0.2])
def test_residual_network_has_its_formula(negative_slope, float64):
    network = randomise(ResidualMLP(sizes=[2, 5, 4, 4], negative_slope=negative_slope))
    x = torch.randn(6, 2)
    activation = elu if negative_slope is None else lambda x: np.where(x > 0, x, 0.2 * x)
    expected = [residual_by_hand(network, row.numpy(), activation) for row in x]
    np.testing.assert_allclose(network(x).detach().numpy(), np.stack(expected), rtol=1e-12)
    assert (network.event_shape, network.out_dim) == ((2,), 4)
    activated = ResidualMLP(sizes=[2, 5, 4, 4], negative_slope=negative_slope, activate_last=True)
    activated.load_state_dict(network.state_dict())
    np.testing.assert_allclose(activated(x).detach().numpy(), activation(np.stack(expected)), rtol=1e-12)


def test_vector_field_has_its_formula_and_keeps_the_shape(float64):
    field = randomise(VectorField(v_dim=6))
    v = torch.randn(4, 6)
    (A, a), (B, b), (C, c) = (arrays(layer) for layer in field.layers if isinstance(layer, nn.Linear))
    assert A.shape == B.shape == C.shape == (6, 6)
    expected = [C @ elu(B @ elu(A @ row.numpy() + a) + b) + c for row in v]
    np.testing.assert_allclose(field(v).detach().numpy(), np.stack(expected), rtol=1e-12)
    torch.testing.assert_close(field(v.view(4, 1, 2, 3)), field(v).view(4, 1, 2, 3))
    line = VectorField(v_dim=6, n_layers=1)
    torch.testing.assert_close(line(2 * v) - line(v), v @ line.layers[0].weight.T)


def resnet_by_hand(network, v, stride, padding):
    x = conv2d(v, network.stem.weight, network.stem.bias, stride=stride, padding=padding)
    for i, block in enumerate(network.blocks):
        y = conv2d(torch_elu(x), block.first.weight, None, padding=1)
        y = conv2d(torch_elu(y), block.second.weight, block.second.bias, padding=1)
        if i % 2 == 0:  # each stage has two blocks, of which the first halves the resolution
            x = avg_pool2d(x, 2)
            y = avg_pool2d(y, 2)
        x = y + conv2d(x, block.shortcut.weight, block.shortcut.bias)
    return x.contiguous().flatten(1)


@pytest.mark.parametrize(("stride", "kernel", "padding"), [(1, 3, 1), (2, 4, 1), (4, 8, 2)])
def test_resnet_has_its_formula_and_sees_each_pixel(stride, kernel, padding, float64):
    shape = 2, 16 * stride, 8 * stride
    network = randomise(eb.ResNet(v_shape=shape, n_blocks=2, channels=3, stem_stride=stride), 0.3)
    v = torch.randn(5, *shape, requires_grad=True)
    torch.testing.assert_close(network(v), resnet_by_hand(network, v, stride, padding), rtol=1e-10, atol=1e-10)
    assert (network.event_shape, network.out_dim) == (shape, 2 * 1 * 24)
    assert network.stem.kernel_size == (kernel, kernel)
    assert [block.first.in_channels for block in network.blocks] == [3, 6, 6, 12, 12, 24]
    assert (torch.autograd.grad(network(v).sum(), v)[0] != 0).all()


@pytest.mark.parametrize("make", [lambda: tiny_resnet(), lambda: eb.ConvEncoder(v_shape=IMAGE, widths=[4, 4])])
def test_convolutions_are_channels_last(make):
    network = make()
    last = {"memory_format": torch.channels_last}
    formats = []
    for conv in network.modules():
        if isinstance(conv, nn.Conv2d):
            assert conv.weight.is_contiguous(**last)
            conv.register_forward_hook(lambda module, args, out: formats.append(out.is_contiguous(**last)))
    network(torch.randn(5, *IMAGE))
    assert set(formats) == {True}


@pytest.mark.parametrize("strides", [None, [1, 2, 2]])
def test_conv_encoder_has_its_formula(strides, float64):
    network = eb.ConvEncoder(v_shape=[2, 8, 16], widths=[3, 4, 5], strides=strides)
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


def test_the_published_posterior_of_images():
    with torch.device("meta"):
        q = eb.NetworkGaussianPosterior(network=eb.ConvEncoder(v_shape=[3, 32, 32]), h_dim=50)
    widths = [3, 64, 128, 256]
    assert sum(p.numel() for p in q.network.parameters()) == sum(9 * a * b + b for a, b in pairwise(widths))
    assert q.mean_head.in_features == 4 * 4 * 256


def test_shapes_that_do_not_fit_are_refused():
    for shape, words in (([1, 28, 28], "multiples of 8"), ([3, None, None], "data.size")):
        with pytest.raises(eb.ConfigError, match=words):
            eb.ResNet(v_shape=shape, n_blocks=1, channels=4)
    with pytest.raises(eb.ConfigError, match=r"network.v_shape \(ImageMLP\) must have at least 3 items, not \[64\]"):
        instantiate({"_target_": "eblvm_lit.networks.image_mlp.ImageMLP", "v_shape": [64]}, "network")


def test_mlp_is_linear_layers_with_leaky_rectifiers(float64):
    mlp = eb.MLP(sizes=[6, 5, 4], negative_slope=0.3)
    x = torch.randn(3, 1, 2, 3)
    expected = x.reshape(3, 6)
    for i in (0, 2):
        expected = expected @ mlp.layers[i].weight.T + mlp.layers[i].bias
        expected = torch.where(expected > 0, expected, 0.3 * expected)
    torch.testing.assert_close(mlp(x), expected)
    assert mlp.out_dim == 4
