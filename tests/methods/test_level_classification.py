"""Tests of the classification of the noise level: its probabilities and its mean gradient at the true energy.

The probabilities are those of Bayes' rule, and the mean gradient is zero.
"""

import math

import pytest
import torch

import eblvm_lit as eb
from cases import at_every_level, hermite, randomise
from eblvm_lit.core.noise_levels import NoiseRange
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
from eblvm_lit.methods.level_classification import LevelClassification
from eblvm_lit.methods.state import TrainState
from helpers.known_mixture import KnownMixture

pytestmark = pytest.mark.usefixtures("float64")


class Perturbed(KnownMixture):
    """The energy of a known mixture plus a_0 g(w) + a_1 log t, for a random network g and parameters a that start at
    zero."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.a = torch.nn.Parameter(torch.zeros(2))
        self.g = randomise(eb.MLPEnergy(v_dim=3, widths=[5]), 0.5)

    def free_energy(self, v):
        return super().free_energy(v) + self.a[0] * self.g(self.reference.inputs(v)) + self.a[1] * v[:, -1]


def levels_of(energy, **options):
    return LevelClassification(energy=energy, optimizer=eb.SGD(lr=0.1), **options)


def state_of(method):
    return TrainState({"theta": dict(method.energy.named_parameters())}, {}, {}, {})


@pytest.mark.parametrize("time_weight", [0.0, 0.6])
@pytest.mark.parametrize("centre", [[0.4], [0.4, -0.2], [0.4, -0.2, 0.1, 0.3, -0.5]])
def test_loss_at_the_true_energy_has_the_probabilities_of_bayes(centre, time_weight):
    """Compare the loss for one normal distribution, whose noised densities are known, with Bayes' rule.

    The derivative of its energy with respect to log t is known, too.

    The energy has an offset that is the same at all levels and must not matter.
    """
    method = levels_of(KnownMixture([centre], [1.0], offset=3.0), classification_weight=1.7, time_weight=time_weight)
    v = torch.randn(6, len(centre))
    noise = method.noise(v, keyed_generator(0))
    assert noise["log_levels"].shape == (3, 6)
    loss = method.loss(state_of(method), v, noise)
    for i in range(6):
        levels = noise["log_levels"][:, i].exp()
        noised = v[i] + levels[0].sqrt() * noise["eps"][i]
        densities = torch.stack(
            [
                torch.distributions.Normal(torch.tensor(centre), math.sqrt(0.3**2 + t)).log_prob(noised).sum().exp()
                for t in levels
            ]
        )
        variance = 0.3**2 + levels[0]
        slope = (noised - torch.tensor(centre)) / variance
        of_level = 0.5 * levels[0] * (len(centre) / variance - slope.square().sum())
        in_level = 0.5 * (1 - noise["eps"][i].square().mean()) - of_level / len(centre)
        denoising = (levels[0].sqrt() * slope - noise["eps"][i]).square().mean()
        classification = 2 * 1.7 / len(centre) * (densities[0] / densities.sum()).log()
        torch.testing.assert_close(loss[i], denoising + time_weight * in_level.square() - classification)


def mean_gradient(levels, time_weight=0.0, **options):
    """Integrate the gradient of the loss with respect to a, over data, noise and the choice of the true level."""
    centres = [[-0.5, 0.2], [0.4, -0.1]]
    energy = Perturbed(centres, [0.7, 0.3], **options)
    method = levels_of(energy, time_weight=time_weight)
    (z, weights) = hermite(9, 4)
    mean = torch.zeros(2)
    for k in range(2):
        for first in range(len(levels)):
            order = [first, *(j for j in range(len(levels)) if j != first)]
            v = torch.tensor(centres[k]) + 0.3 * z[:, :2]
            noise = {"eps": z[:, 2:], "log_levels": torch.tensor(levels)[order].log()[:, None].expand(-1, len(z))}
            loss = energy.weights[k] / len(levels) * (weights @ method.loss(state_of(method), v, noise))
            mean += torch.autograd.grad(loss, energy.a)[0]
    return mean


def test_the_mean_gradient_is_zero_at_the_true_energy_and_at_no_energy_whose_levels_are_apart():
    torch.manual_seed(3)
    levels = [0.4, 0.6, 0.9]
    assert mean_gradient(levels).abs().max() < 5e-6
    assert mean_gradient(levels, offset=2.0).abs().max() < 5e-6
    # This offset depends on log t, which the denoising term cannot notice. Its gradient is positive, so that gradient
    # descent lowers the offset.
    apart = mean_gradient(levels, offset=lambda log_level: 0.2 * log_level)[1]
    assert apart > 0.02
    # The gradient of the term that learns the derivative with respect to log t is zero at the true energy, too. With the
    # offset, the mean of this term's residual is -(0.2 + a_1) / d, whose square has the derivative 2 * 0.2 / d^2 with
    # respect to a_1 at a_1 = 0, so that gradient descent lowers the offset.
    assert mean_gradient(levels, time_weight=1.0).abs().max() < 5e-6
    more = mean_gradient(levels, time_weight=1.0, offset=lambda log_level: 0.2 * log_level)[1]
    assert more - apart == pytest.approx(2 * 0.2 / 2**2, abs=5e-6)


def test_each_level_is_uniform_in_its_logarithm_within_the_range():
    method = levels_of(KnownMixture([[0.0, 0.0]], [1.0]), n_levels=2, spread=3.0)
    lowest, highest = (math.log(x) for x in (method.noise_range.t_min, method.noise_range.t_max))
    log_levels = method.noise(torch.zeros(20_000, 2), keyed_generator(1))["log_levels"]
    assert lowest <= log_levels.min() < lowest + 0.01
    assert highest - 0.01 < log_levels.max() <= highest
    for row in log_levels:
        counts = torch.histc(row, 10, lowest, highest)
        assert (counts - 2000).abs().max() < 5 * math.sqrt(2000)
    inside = (log_levels[0] - (lowest + highest) / 2).abs() < 0.1
    apart = (log_levels[1] - log_levels[0])[inside]
    # The tolerance is 0.1 plus five standard errors, because levels are reflected at the ends of their range.
    assert apart.std() == pytest.approx(3.0 * math.sqrt(2), rel=5 / math.sqrt(2 * len(apart)) + 0.1)


def test_each_example_has_a_spread_of_its_own_by_default():
    energy = NoiseConditionalFreeEnergy(
        energy=eb.MLPEnergy(v_dim=17, widths=[4]), v_shape=[16], noise_range=NoiseRange()
    )
    method = levels_of(energy)
    smallest = 0.5  # 2 / sqrt(16)
    spreads = method.spreads(torch.zeros(20_000, 16), 12.0, keyed_generator(0))
    # The logarithm of a spread in units of its range has the mean 1/2 and the standard deviation 1/sqrt(12).
    position = (spreads / smallest).log() / math.log(12.0 / smallest)
    assert 0 <= position.min() < 0.001
    assert 0.999 < position.max() <= 1
    assert position.mean() == pytest.approx(0.5, abs=5 / math.sqrt(12 * 20_000))
    assert position.std() == pytest.approx(1 / math.sqrt(12), rel=5 / math.sqrt(2 * 20_000))


def test_the_title_names_the_numbers():
    energy = KnownMixture([[0.0, 0.0]], [1.0])
    assert "J = 3, spread of all sizes, weight 1" in levels_of(energy).title
    assert "J = 2, spread 0.5, weight 1" in levels_of(energy, n_levels=2, spread=0.5).title
    assert "weight 1, weight of the derivative 0.5" in levels_of(energy, time_weight=0.5).title
    assert levels_of(energy).parts.energy.level == energy.noise_range.t_min


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: levels_of(eb.MLPEnergy(v_dim=3, widths=[4])), "does not know the noise level"),
        (lambda: levels_of(at_every_level(3)), "no tractable free energy"),
    ],
)
def test_what_has_no_levels_to_tell_apart_is_refused(make, message):
    with pytest.raises(eb.ConfigError, match=message):
        make()
