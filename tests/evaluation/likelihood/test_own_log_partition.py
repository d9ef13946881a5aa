"""Tests of the log-likelihood of models of every noise level, which estimate their own log Z."""

import math
from types import SimpleNamespace

import pytest
import torch

import eblvm_lit as eb
from cases import hermite, randomise
from eblvm_lit.core.noise_levels import NoiseRange, join_level
from eblvm_lit.data.base import Splits
from eblvm_lit.energies.noise_conditional import NoiseConditionalEnergy, NoiseConditionalFreeEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.likelihood.own_log_partition import OwnLogPartition
from eblvm_lit.evaluation.out_of_distribution import OutOfDistribution, UniformNoise
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.posteriors.at_every_level import NoiseConditionalPosterior
from helpers.known_mixture import KnownMixture
from helpers.models import generator, method_of, normal

pytestmark = pytest.mark.usefixtures("float64")

RANGE = NoiseRange(mean=0.3, std=1.4)


class Narrower(eb.VisibleEnergy):
    """The energy F'(x) = 0.5 a |z|^2 + c of scaled inputs x = (z, level).

    The density and log Z of its model are known at every level.
    """

    def __init__(self, d, a=0.8, c=2.5):
        super().__init__()
        self.event_shape = (d + 1,)
        self.a = torch.nn.Parameter(torch.tensor(a))
        self.c = c

    def free_energy(self, v):
        return 0.5 * self.a * v[:, :-1].square().sum(1) + self.c


def narrower(shape):
    inner = Narrower(math.prod(shape))
    return NoiseConditionalFreeEnergy(energy=inner, v_shape=shape, noise_range=RANGE).of_data()


def normal_of(model):
    """Return the density of one coordinate of the data under the model that ``narrower`` returns."""
    return torch.distributions.Normal(0.3, math.sqrt((1.4**2 + model.level) / 1.8))


def test_log_likelihood_of_a_normal_model_is_the_closed_form():
    model = narrower([2])
    v = 2 * normal(300, 2)
    found = eb.LogLikelihood().compute(method_of(model), v, generator())
    log_p = normal_of(model).log_prob(v).sum(1)
    error = found["log_z_standard_error"]
    assert 0.003 < error < 0.02
    assert abs(found["log_z"] - (-math.log(1.8) - 2.5)) < 4 * error
    assert found["log_likelihood"] == pytest.approx(log_p.mean().item() - (found["log_z"] + math.log(1.8) + 2.5))
    over_examples = log_p.std(correction=0).item() / math.sqrt(300)
    assert found["log_likelihood_error_over_examples"] == pytest.approx(over_examples)
    assert 2000 < found["ais_effective_sample_size"] < 4000


@pytest.mark.parametrize("slope", [0.0, 0.02], ids=["tied", "untied"])
def test_the_error_of_the_own_log_z_is_how_far_the_levels_are_apart(slope):
    mixture = KnownMixture([[-1.0, 0.5], [1.2, -0.3]], [0.7, 0.3], offset=lambda log_level: 1.5 + slope * log_level)
    model = mixture.of_data()
    v = mixture.sample(200, model.level, generator())
    data = SimpleNamespace(splits=Splits(v, v, v), as_float=lambda v: v, image_shape=None, log_unit_of_v=0.25)
    metric = eb.LogLikelihood(quadrature=eb.VisibleQuadrature(n_nodes=101, tolerance=1e-4))
    method = method_of(model)
    found = metric.evaluate(method, data, "test", generator())
    apart = slope * math.log(mixture.noise_range.smallest / mixture.noise_range.largest)
    error = found["own_log_z_error_standard_error"]
    assert error < 0.003
    assert found["own_log_z_error"] == pytest.approx(apart, abs=4 * error + 1e-4)
    exact = mixture.components(v, model.level).logsumexp(1).mean().item()
    assert found["log_likelihood"] + found["own_log_z_error"] == pytest.approx(exact - 0.25, abs=1e-4)
    assert metric.describe(method, data) == {
        "log_likelihood": "log Z by importance sampling at the largest noise level"
    }
    few = metric.evaluate(method, data, "val", generator())
    assert few["log_likelihood"] == found["log_likelihood"]
    assert "own_log_z_error" not in few


def test_a_peak_narrower_than_every_grid_leaves_out_the_check_and_not_the_log_likelihood(monkeypatch, caplog):
    def unresolved(*_):
        raise ConfigError("log Z is not resolved by 4,194,304 nodes: raise the tolerance of the quadrature.")

    monkeypatch.setattr(eb.VisibleQuadrature, "log_partition", unresolved)
    v = normal(50, 2)
    data = SimpleNamespace(splits=Splits(v, v, v), as_float=lambda x: x, image_shape=None, log_unit_of_v=0.0)
    found = eb.LogLikelihood(quadrature=eb.VisibleQuadrature()).evaluate(
        method_of(narrower([2])), data, "test", generator()
    )
    assert math.isfinite(found["log_likelihood"])
    assert "own_log_z_error" not in found
    assert "own_log_z_error is left out: log Z is not resolved" in caplog.text


def joint_model():
    """Return a joint energy of one coordinate and one latent, and a posterior that is not the exact one."""
    torch.manual_seed(2)
    inner = randomise(eb.DeepVectorEnergy(v_dim=2, h_dim=1, head_dim=4, widths=[5]), 0.4)
    energy = NoiseConditionalEnergy(energy=inner, v_shape=[1], noise_range=RANGE)
    linear = randomise(eb.LinearGaussianPosterior(v_dim=2, h_dim=1), 0.1)
    # this posterior is wider than p(h|v), so that importance weights have a finite variance
    torch.nn.init.constant_(linear.log_std, 1.0)
    return energy, NoiseConditionalPosterior(posterior=linear, noise_range=RANGE)


def summed(energy, w):
    """Compute F(w) by quadrature over the latent."""
    h = torch.linspace(-12, 12, 2001)
    return -(-energy.energy(w, h[:, None, None].expand(-1, len(w), -1))).logsumexp(0) - math.log(h[1] - h[0])


def test_with_latents_log_z_is_unbiased_and_f_is_bounded_from_above():
    energy, q = joint_model()
    t = RANGE.t_max
    (z, weights) = hermite(60, 1)
    w = join_level(0.3 + math.sqrt(1.4**2 + t) * z, torch.full((len(z),), math.log(t)))
    exact = (weights * (energy.reference.energy(w) - summed(energy, w)).exp()).sum().log().item()
    own = OwnLogPartition(n_samples=3000, n_particles=5)
    model = energy.of_data()
    posterior = q.of_data()
    found = own.estimate(model, posterior, generator())
    assert 0.002 < found.standard_error < 0.1
    assert abs(found.log_z - exact) < 4 * found.standard_error
    v = normal(200, 1)
    f = summed(energy, join_level(v, torch.full((200,), math.log(model.level))))
    gaps = [
        (OwnLogPartition(n_particles=n).free_energy(model, posterior, v, generator()) - f).mean() for n in (1, 10, 3000)
    ]
    assert gaps[0] > 2 * gaps[1] > 20 * abs(gaps[2])
    metric = eb.LogLikelihood(own=own)
    method = method_of(model, posterior)
    assert "bounded by 5 latents" in metric.describe(method, None)["log_likelihood"]
    both = metric.compute(method, v, generator())
    assert both["log_z"] == found.log_z
    assert both["log_likelihood"] <= -(f.mean().item()) - found.log_z


def test_a_joint_energy_without_its_posterior_has_no_own_log_z():
    energy, _ = joint_model()
    assert eb.LogLikelihood().compute(method_of(energy.of_data()), normal(5, 1), generator()) == {}


def test_bits_per_dimension_are_those_of_bytes_with_uniform_noise():
    model = narrower([1, 2, 3])
    # few different values, so that the uniform noise matters
    raw = torch.randint(5, (4000, 1, 2, 3), generator=generator()).to(torch.uint8)
    data = SimpleNamespace(
        splits=Splits(raw, raw, raw),
        as_float=lambda v: (v.double() / 2 - 1) if v.dtype == torch.uint8 else v,
        image_shape=(1, 2, 3),
        log_unit_of_v=0.0,
    )
    found = eb.LogLikelihood().evaluate(method_of(model), data, "test", generator())
    p = normal_of(model)
    mean = p.log_prob(data.as_float(raw)).mean() - 0.5**2 / 12 / (2 * p.variance)
    own = (found["log_z"] + 3 * math.log(1.8) + 2.5) / 6  # the error of the estimated log Z, per dimension
    bits = -(mean.item() - own + math.log(0.5)) / math.log(2)
    assert found["bits_per_dimension"] == pytest.approx(bits, abs=4e-3)
    assert eb.LogLikelihood().evaluate(method_of(model), data, "val", generator()) == {}


@pytest.mark.parametrize("latents", [False, True])
def test_outliers_are_also_ranked_at_other_noise_levels(latents):
    energy, q = joint_model() if latents else (narrower([2]).every_level, None)
    parts = MethodParts(energy=energy.of_data(), posterior=None if q is None else q.of_data())
    v = 0.3 + 1.4 * normal(100, 1 if latents else 2)
    metric = OutOfDistribution(sets={"noise": UniformNoise(low=-3, high=4)}, n_particles=3, levels=[0.5])
    found = metric.compute(SimpleNamespace(parts=parts), v, generator())
    assert list(found)[::3] == ["auroc_noise", "auroc_noise_at_0.5"]
    assert found["auroc_noise"] != found["auroc_noise_at_0.5"] or not latents
    t = 0.5 * 1.4**2
    at = MethodParts(energy=energy.at_level(t), posterior=None if q is None else q.at_level(t))
    by_itself = OutOfDistribution(sets=metric.sets, n_particles=3).compute(SimpleNamespace(parts=at), v, generator())
    assert by_itself["auroc_noise"] == found["auroc_noise_at_0.5"]
