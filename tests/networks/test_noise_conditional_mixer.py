"""Tests of the mixer, a network for noised images and their noise level: its formula, and the image sizes that it
accepts."""

import pytest
import torch
from torch.nn.functional import silu

import eblvm_lit as eb
from cases import randomise
from eblvm_lit.core.functional import divergence
from eblvm_lit.networks.noise_conditional_mixer import NoiseConditionalMixer


def convolved(layer, x):
    """Compute a 3 x 3 convolution of x (C, H, W) with zero padding as a sum over the nine neighbours."""
    channels, height, width = x.shape
    padded = torch.zeros(channels, height + 2, width + 2)
    padded[:, 1:-1, 1:-1] = x
    value = layer.bias[:, None, None].clone()
    for i in range(3):
        for j in range(3):
            value = value + torch.einsum(
                "oc,chw->ohw", layer.weight[:, :, i, j], padded[:, i : i + height, j : j + width]
            )
    return value


def block_by_hand(block, x, gain):
    inner = (gain * x) @ block.first.weight.T + block.first.bias
    return x + silu(inner) @ block.second.weight.T + block.second.bias


def gains_by_hand(gains, c):
    phase = torch.linspace(0.3, 4.0, 16) * c
    hidden = gains.first(torch.cat([c[None], phase.sin(), phase.cos()]))
    return gains.second(silu(hidden)).exp().split(gains.sizes)


def squares_of(image, side):
    """Split an image (1, H, W) into squares of side x side pixels, shape (side^2, H / side, W / side)."""
    return torch.stack([image[0, i::side, j::side] for i in range(side) for j in range(side)])


def joined(squares, side):
    """Put squares (C side^2, H, W) together to an image (C, H side, W side)."""
    n, height, width = squares.shape
    image = torch.zeros(n // side**2, height * side, width * side)
    for k in range(n):
        image[k // side**2, k % side**2 // side :: side, k % side :: side] = squares[k]
    return image


def by_hand(network, y, c):
    gains = gains_by_hand(network.gains, c)
    image = y.view(1, 8, 12)
    squares = convolved(network.enter, squares_of(image, 4)).flatten(1).T + network.place  # shape (6, C)
    whole = network.keep(squares).flatten()
    for i in range(2):
        whole = block_by_hand(network.mix_squares[i], whole, gains[2 * i])
        squares = squares + network.spread[i](whole.view(6, -1))
        squares = block_by_hand(network.mix_channels[i], squares, gains[2 * i + 1])
    active = silu(gains[4] * squares)
    fine = convolved(network.enter_fine, squares_of(image, 2))
    fine = fine + joined(network.refine(active).T.reshape(-1, 2, 3), 2)
    for block, gain in zip(network.draw, gains[5:], strict=True):
        fine = fine + convolved(block.second, silu(convolved(block.first, gain[:, None, None] * fine)))
    out = joined(convolved(network.leave, silu(fine)), 2)
    return out.flatten(), torch.cat([active.mean(0), silu(whole)])


@torch.no_grad()
def test_the_network_has_its_formula(float64):
    sizes = {"width": 5, "dense_width": 7, "n_rounds": 2, "n_kept": 3, "fine_width": 4}
    network = randomise(NoiseConditionalMixer(v_shape=[1, 8, 12], **sizes), 0.3)
    x = torch.randn(3, 97)
    image, features = network(x)
    assert features.shape == (3, network.out_dim)
    for k in range(3):
        expected = by_hand(network, x[k, :-1], x[k, -1])
        torch.testing.assert_close((image[k], features[k]), expected)


def test_the_image_starts_at_zero():
    network = NoiseConditionalMixer(v_shape=[3, 8, 8], width=5, dense_width=7)
    image, features = network(torch.randn(2, 193))
    assert image.shape == (2, 192)
    assert not image.any()
    assert features.any()


def test_a_block_starts_near_the_identity():
    network = NoiseConditionalMixer(v_shape=[1, 8, 8], width=400, dense_width=300, n_rounds=1)
    second = network.mix_channels[0].second.weight
    # torch draws the weights of a layer with 400 inputs uniformly from [-1/20, 1/20], and the block halves them
    assert second.abs().max() <= 0.5 / 20


def test_images_that_do_not_divide_into_squares_are_refused():
    with pytest.raises(eb.ConfigError, match="multiples of 4"):
        NoiseConditionalMixer(v_shape=[1, 8, 10])


def test_the_divergence_of_an_image_s_score_is_the_trace_of_its_jacobian():
    """Differentiate the network under vmap, as the metric fisher does, and compare with derivatives one by one."""
    torch.manual_seed(0)
    network = randomise(
        NoiseConditionalMixer(v_shape=[1, 4, 4], width=6, dense_width=5, n_rounds=1, n_kept=2, fine_width=3, n_fine=1)
    ).double()

    def images(x):
        level = torch.zeros(len(x), 1, dtype=x.dtype)
        return network(torch.cat([x, level], 1))[0]

    x = torch.randn(2, 16, dtype=torch.float64)
    found = divergence(images, x)
    by_hand = [torch.autograd.functional.jacobian(lambda y: images(y[None])[0], row).trace() for row in x]
    torch.testing.assert_close(found, torch.stack(by_hand))
