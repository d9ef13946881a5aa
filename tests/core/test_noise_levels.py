"""Tests of the ranges of noise levels."""

import pytest

import eblvm_lit as eb
from eblvm_lit.core.noise_levels import NoiseRange


@pytest.mark.parametrize(("smallest", "largest"), [(10.0, 1.0), (1.0, 1.0)])
def test_a_range_without_levels_is_refused(smallest, largest):
    with pytest.raises(eb.ConfigError, match=f"{smallest:g} s.2, is not below the largest, {largest:g} s.2"):
        NoiseRange(smallest=smallest, largest=largest)
