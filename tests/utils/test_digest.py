"""Tests of digests: values that change what a module computes change its digest."""

import torch

import eblvm_lit as eb
from eblvm_lit.core.noise_levels import NoiseRange
from eblvm_lit.energies.composed import TiltedEnergy
from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
from eblvm_lit.utils.digest import digest


def of_every_level(**options):
    torch.manual_seed(0)
    inner = eb.MLPEnergy(v_dim=3, widths=[8])
    return NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange(**options)).of_data()


def rise(v, log_level):
    return 3 * v[:, 0]


def test_the_range_of_noise_levels_is_a_part():
    assert digest(of_every_level()) == digest(of_every_level())
    assert len({digest(of_every_level(largest=largest)) for largest in (9.0, 100.0)}) == 2
    assert len({digest(of_every_level(mean=mean)) for mean in ([0.0, 1.0], [0.0, 2.0])}) == 2


def test_functions_are_told_apart():
    energy = of_every_level()
    tilted = [TiltedEnergy(energy=energy, log_factor=lambda v, _, c=c: c * v[:, 0]) for c in (3, -3)]
    assert digest(tilted[0]) != digest(tilted[1])
    named = [TiltedEnergy(energy=energy, log_factor=rise) for _ in range(2)]
    assert digest(named[0]) == digest(named[1])
