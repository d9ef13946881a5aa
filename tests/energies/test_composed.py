"""Tests of composed energies against mixtures of normals whose products, mixtures and tilts are known."""

import math

import pytest
import torch

import eblvm_lit as eb
from cases import at_every_level, hermite
from eblvm_lit.core.noise_levels import NoiseRange, join_level
from eblvm_lit.energies.composed import MixtureEnergy, ProductEnergy, TiltedEnergy
from eblvm_lit.evaluation.likelihood.own_log_partition import OwnLogPartition
from eblvm_lit.samplers.probability_flow import ProbabilityFlow
from eblvm_lit.samplers.sampler import Sampler
from helpers.known_mixture import KnownMixture

pytestmark = pytest.mark.usefixtures("float64")

RANGE = NoiseRange(mean=[0.1, 0.2], std=1.3, smallest=1e-3)

CENTRES = torch.tensor([[-0.6, 0.0], [0.6, 0.0]], dtype=torch.float64)
OTHERS = torch.tensor([[-0.6, 0.4], [0.6, -0.2], [0.0, 2.0]], dtype=torch.float64)


def two_mixtures():
    one = KnownMixture(CENTRES, [0.8, 0.2], std=0.4, offset=1.5, noise_range=RANGE)
    other = KnownMixture(OTHERS, [0.3, 0.5, 0.2], std=0.4, offset=-0.7, noise_range=RANGE)
    return one, other


def product_of(one, other, variance):
    """Return the normalised product of two mixtures whose components all have the same variance."""
    apart = (one.centres[:, None] - other.centres).square().sum(-1)
    log_weights = one.weights.log()[:, None] + other.weights.log() - apart / (4 * variance)
    centres = (one.centres[:, None] + other.centres) / 2
    return KnownMixture(centres.flatten(0, 1), log_weights.flatten().softmax(0), std=math.sqrt(variance / 2))


def test_a_product_is_the_known_mixture_up_to_log_z():
    one, other = two_mixtures()
    both = ProductEnergy(energies=[one.of_data(), other])
    assert both.noise_range.t_min == pytest.approx(RANGE.t_min / 2)
    assert both.noise_range.t_max == pytest.approx(RANGE.t_max / 2)
    v = torch.randn(7, 2)
    exact = product_of(one, other, 0.4**2 + RANGE.t_min)
    gap = both.of_data().free_energy(v) + exact.components(v, 0.0).logsumexp(1)
    torch.testing.assert_close(gap, gap[:1].expand(7))
    w = join_level(v, torch.full((7,), math.log(0.3)))
    at_level = one.at_level(0.6).free_energy(v) + other.at_level(0.6).free_energy(v)
    torch.testing.assert_close(both.free_energy(w), at_level)
    # At the largest level, the product is almost the normal distribution with the mean and the variance of its noise
    # range.
    (z, weights) = hermite(30, 2)
    t = both.noise_range.t_max
    points = torch.as_tensor(both.noise_range.mean) + math.sqrt(both.noise_range.std**2 + t) * z
    ratio = -both.at_level(t).free_energy(points) + both.reference.energy(
        join_level(points, torch.full((900,), t).log())
    )
    share = weights * (ratio - ratio.max()).exp()
    # the effective sample size is near its maximum, because the weights are nearly equal
    assert share.sum().square() / (share.square() / weights).sum() > 0.98
    assert not OwnLogPartition.supports(both.of_data(), None)


def test_a_product_of_equal_normal_distributions_is_noised_data_of_its_levels():
    one = KnownMixture([[0.1, 0.2]], [1.0], std=1.3, noise_range=RANGE)
    both = ProductEnergy(energies=[one, one, one])
    v = torch.randn(5, 2)
    for t in (0.01, 1.0, 30.0):
        exact = torch.distributions.Normal(torch.tensor([0.1, 0.2]), math.sqrt(1.3**2 / 3 + t)).log_prob(v).sum(1)
        gap = both.at_level(t).free_energy(v) + exact
        torch.testing.assert_close(gap, gap[:1].expand(5))


def drawn(energy, n_corrections):
    flow = ProbabilityFlow(n_steps=12, n_corrections=n_corrections, correction_size=1.0)
    return Sampler(dynamics=flow, batch_size=2000).draw(energy.of_data(), range(2000), seed=0)


def errors(v, exact):
    """Compute the largest error of the means and standard deviations of samples, in standard errors.

    The exact values are those of a mixture. The standard errors of the standard deviations are those of normal
    distributions, which are right here within a factor of one and a half.
    """
    truth = exact.sample(50_000, 0.0, torch.Generator().manual_seed(0))
    scale = truth.std(0) / math.sqrt(len(v))
    means = (v.mean(0) - truth.mean(0)) / scale
    stds = (v.std(0) - truth.std(0)) / (scale / math.sqrt(2))
    return torch.cat([means, stds]).abs().max()


def test_corrected_samples_of_a_product_have_the_known_moments_and_those_of_the_flow_do_not():
    one, other = two_mixtures()
    both = ProductEnergy(energies=[one, other])
    exact = product_of(one, other, 0.4**2 + RANGE.t_min)
    assert errors(drawn(both, 15), exact) < 5
    assert errors(drawn(both, 0), exact) > 8


def test_a_mixture_is_normalised_by_the_log_z_of_its_parts():
    one, other = two_mixtures()
    mixture = MixtureEnergy(energies=[one.of_data(), other], weights=[6.0, 2.0])
    # The mixture estimates log Z of its parts by samples of the reference. The tolerance is large, because few samples
    # have most of the weight where the reference is wider than a part.
    torch.testing.assert_close(mixture.log_z, torch.tensor([-1.5, 0.7]), rtol=0, atol=0.02)
    mixture.log_z.copy_(torch.tensor([-1.5, 0.7]))
    weights = torch.cat([0.75 * one.weights, 0.25 * other.weights])
    exact = KnownMixture(torch.cat([CENTRES, OTHERS]), weights, std=0.4, noise_range=RANGE)
    w = join_level(torch.randn(6, 2), torch.linspace(-5.0, 4.0, 6))
    torch.testing.assert_close(mixture.free_energy(w), exact.free_energy(w))
    assert torch.equal(mixture.energy(w, torch.zeros(3, 6, 0)), mixture.free_energy(w).expand(3, 6))
    assert abs(OwnLogPartition().estimate(mixture.of_data(), None, torch.Generator().manual_seed(0)).log_z) < 0.02
    known = KnownMixture(exact.centres, weights, std=math.sqrt(0.4**2 + RANGE.t_min))
    assert errors(drawn(mixture, 0), known) < 5


def test_a_mixture_shares_log_z_between_levels_only_if_its_parts_do():
    one, other = two_mixtures()
    tilted = TiltedEnergy(energy=other, log_factor=lambda v, log_level: 3 * v[:, 0])
    assert MixtureEnergy(energies=[one, other]).shares_log_z
    # the tilt multiplies Z by another number at each level, so that log Z at the largest level says nothing of the data
    for part in (tilted, ProductEnergy(energies=[one, other])):
        mixture = MixtureEnergy(energies=[one, part])
        assert not mixture.shares_log_z
        assert not OwnLogPartition.supports(mixture.of_data(), None)


def test_a_mixture_of_different_data_has_the_moments_of_both():
    near = KnownMixture([[0.0, 0.0]], [1.0], noise_range=NoiseRange(mean=0.0, std=0.5, smallest=1e-3, largest=900.0))
    far = KnownMixture([[4.0, 0.0]], [1.0], noise_range=NoiseRange(mean=[4.0, 0.0], std=1.0, smallest=1e-4))
    found = MixtureEnergy(energies=[near, far]).noise_range
    assert found.mean == [2.0, 0.0]
    assert found.std == pytest.approx(math.sqrt((0.25 + 1) / 2 + 4 / 2))
    assert (found.t_min, found.t_max) == pytest.approx((2.5e-4, 100.0))
    both = ProductEnergy(energies=[near, far]).noise_range
    assert both.mean == pytest.approx([0.8, 0.0])  # the mean of the product is nearer to the narrower part
    assert both.std == pytest.approx(1 / math.sqrt(5))


def test_corrected_samples_of_a_tilted_energy_have_the_known_moments():
    one, _ = two_mixtures()
    centre = torch.tensor([0.5, 0.4])
    tilted = TiltedEnergy(energy=one, log_factor=lambda v, log_level: -(v - centre).square().sum(1) / (2 * 0.6**2))
    # A component N(m, s^2) times the factor is again a normal distribution. Its weight is multiplied by the density
    # N(m; centre, s^2 + 0.6^2).
    variance = 0.4**2 + RANGE.t_min
    log_weights = one.weights.log() - (CENTRES - centre).square().sum(1) / (2 * (variance + 0.36))
    centres = (0.36 * CENTRES + variance * centre) / (variance + 0.36)
    std = math.sqrt(variance * 0.36 / (variance + 0.36))
    exact = KnownMixture(centres, log_weights.softmax(0), std=std)
    v = torch.randn(6, 2)
    gap = tilted.of_data().free_energy(v) + exact.components(v, 0.0).logsumexp(1)
    torch.testing.assert_close(gap, gap[:1].expand(6))
    assert errors(drawn(tilted, 15), exact) < 5
    assert errors(drawn(tilted, 0), exact) > 8


def test_a_classifier_of_noised_data_sees_the_level_and_the_shape_of_examples():
    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.tensor(0.7))

        def forward(self, v, log_level):
            assert v.shape[1:] == (2,)
            return self.a * v[:, 0] * log_level

    one, _ = two_mixtures()
    tilted = TiltedEnergy(energy=one, log_factor=Classifier(), of_noised_data=True)
    w = torch.randn(5, 3)
    torch.testing.assert_close(tilted.free_energy(w), one.free_energy(w) - 0.7 * w[:, 0] * w[:, 2])
    assert "log_factor.a" in dict(tilted.named_parameters())
    faded = TiltedEnergy(energy=one, log_factor=Classifier())
    share = (1.3**2 + RANGE.t_min) / (1.3**2 + w[:, 2].exp())
    torch.testing.assert_close(faded.free_energy(w), one.free_energy(w) - 0.7 * w[:, 0] * w[:, 2] * share)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda one: ProductEnergy(energies=[one, eb.GRBM(v_dim=2, h_dim=3)]), "GRBM cannot be composed"),
        (lambda one: ProductEnergy(energies=[at_every_level(3).of_data()]), "AtLevel cannot be composed"),
        (lambda one: MixtureEnergy(energies=[one, one], weights=[1.0, 0.0]), "positive weights"),
        (lambda one: MixtureEnergy(energies=[one, one], weights=[1.0]), "positive weights"),
        (
            lambda one: ProductEnergy(energies=[one, KnownMixture(CENTRES, [0.5, 0.5], noise_range=FAR)]),
            "levels in common",
        ),
    ],
)
def test_what_cannot_be_composed_is_refused(make, message):
    with pytest.raises(eb.ConfigError, match=message):
        make(two_mixtures()[0])


FAR = NoiseRange(std=1.3, smallest=1000.0, largest=2000.0)
