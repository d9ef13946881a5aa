"""Tests of the masks of images that samplers complete."""

import torch

from eblvm_lit.data.digits import Digits
from eblvm_lit.draws.masks import DrawnMask, LeftHalf
from eblvm_lit.samplers.sample_noise import SampleNoise


def test_masks_are_halves_inverted_by_the_samples_own_noise():
    noise = range(400)
    keep = LeftHalf(inverted=0.5).keep((3, 2, 5), SampleNoise(0, noise))
    right = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]).expand(3, 2, 5)
    inverted = (keep == 1 - right).flatten(1).all(1)
    assert ((keep == right).flatten(1).all(1) ^ inverted).all()
    assert abs(inverted.float().mean() - 0.5) < 5 * 0.5 / 400**0.5
    assert torch.equal(LeftHalf(inverted=0.5).keep((3, 2, 5), SampleNoise(0, [7, 3])), keep[[7, 3]])
    assert torch.equal(LeftHalf(inverted=1.0).keep((3, 2, 5), SampleNoise(0, [7]))[0], 1 - right)
    assert torch.equal(LeftHalf().keep((3, 2, 5), SampleNoise(0, [7]))[0], right)


def test_masks_of_digits_keep_what_is_bright_or_all_else():
    data = Digits()
    noise = range(60)
    keep = DrawnMask(data=data, inverted=0.5).keep((3, 8, 8), SampleNoise(0, noise))
    assert torch.equal(keep[:, 0], keep[:, 2])
    bright = (data.splits.test.view(-1, 8, 8) > 0.5).float().flatten(1)
    rows = keep[:, 0].flatten(1)
    plain, inverted = ((rows[:, None] == shapes).all(2).any(1) for shapes in (bright, 1 - bright))
    assert (plain ^ inverted).all()
    assert 10 < int(inverted.sum()) < 50
    assert len(rows.unique(dim=0)) > 40  # nearly every sample has a mask of its own
    assert torch.equal(DrawnMask(data=data, inverted=0.5).keep((3, 8, 8), SampleNoise(0, [7, 3])), keep[[7, 3]])
