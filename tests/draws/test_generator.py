"""Tests of images from a generator, with batch statistics and with stored statistics."""

import copy

import pytest
import torch
from torch import nn

from eblvm_lit.data.digits import Digits
from eblvm_lit.draws.generator import GeneratedImages
from eblvm_lit.samplers.sample_noise import SampleNoise
from helpers.bidvl_images import H_DIM, SHAPE, bidvl


@pytest.mark.parametrize("batch_statistics", [True, False])
def test_generated_images_are_those_of_the_generator_in_the_mode_that_is_asked_for(batch_statistics):
    torch.manual_seed(0)
    method = bidvl("offset")
    data = Digits()
    # With the small initial weights, all pixels would be near the middle of their range.
    nn.init.normal_(method.generator.layers[-2].weight)
    before = {name: b.clone() for name, b in method.persistent_buffers().items()}
    source = GeneratedImages(batch_statistics=batch_statistics, batch_size=4)
    images = source.images(method, data, 6)
    assert source.supports(method, data)
    assert all(torch.equal(b, before[name]) for name, b in method.persistent_buffers().items())
    assert method.generator.training
    torch.testing.assert_close(source.images(method, data, 3), images[:3])
    generator = copy.deepcopy(method.generator).train(batch_statistics)
    generator.load_state_dict(method.prior_statistics(), strict=False)
    h = [SampleNoise(method.seed, range(first, first + 4))((H_DIM,)) for first in (0, 4)]
    exact = torch.cat([data.as_bytes(generator(part).detach()) for part in h])[:6].view(6, *SHAPE)
    torch.testing.assert_close(images, exact, rtol=0, atol=1)
    other = GeneratedImages(batch_statistics=not batch_statistics, batch_size=4).images(method, data, 6)
    assert not torch.equal(other, images)
