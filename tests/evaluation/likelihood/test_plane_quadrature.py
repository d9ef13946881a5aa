"""Tests of metrics of models of points in the plane: log Z and divergences by quadrature, and modes."""

import math

import numpy as np
import pytest
import torch

import eblvm_lit as eb
from cases import randomise
from eblvm_lit.data.array_files import ArrayFile
from eblvm_lit.data.blobs import Blobs, TriangleBlobs, TwentyFiveGaussians, TwoBlobs
from eblvm_lit.evaluation.modes import Modes, gaussian_shares, shares_of_modes
from helpers.models import LatentOnly
from helpers.stand_in import StandIn, loaded


class OfDensity(eb.VisibleEnergy):
    """The energy F(v) = c - log p(v) of a given density p."""

    event_shape = (2,)

    def __init__(self, log_density, c=0.0):
        super().__init__()
        self.log_density = log_density
        self.c = torch.nn.Parameter(torch.tensor(c))

    def free_energy(self, v):
        return self.c - self.log_density(v)


class Joint(LatentOnly):
    """The Gaussian model, without its closed form for the sum over latents."""

    continuous = True


def numbers(metric, energy, data, split="test"):
    if data.splits is None:
        data.setup()
    method = StandIn(energy=energy)
    generator = torch.Generator().manual_seed(0)
    return metric.evaluate(method, data, split, generator) if metric.applies(method, data) else {}


@pytest.mark.parametrize("split", ["val", "test"])
def test_the_log_likelihood_is_that_of_enumeration(split):
    torch.manual_seed(0)
    data = TwoBlobs()
    energy = randomise(eb.GRBM(v_dim=2, h_dim=3), 0.3)
    found = numbers(eb.PlaneQuadrature(n_cells=60, scale=5), energy, data, split)
    v = getattr(data.splits, split)
    exact = eb.LogLikelihood().compute(StandIn(energy=energy), v, torch.Generator())["log_likelihood"]
    assert found["quadrature_log_likelihood"] == pytest.approx(exact, abs=1e-9)


def test_the_log_likelihood_is_in_the_units_of_the_data(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(400, 2)) * [20, 0.1])
    data = ArrayFile(path=tmp_path / "a.npy")
    energy = randomise(eb.GRBM(v_dim=2, h_dim=3), 0.3)
    found = numbers(eb.PlaneQuadrature(n_cells=60, scale=5), energy, data)
    v = data.splits.test
    exact = eb.LogLikelihood().compute(StandIn(energy=energy), v, torch.Generator())["log_likelihood"]
    assert found["quadrature_log_likelihood"] == pytest.approx(exact - data.log_unit_of_v, abs=1e-6)


@pytest.mark.parametrize("data", [TwoBlobs(), eb.Checkerboard()], ids=lambda d: d.sample_name)
def test_the_divergence_of_the_truth_is_zero_whatever_the_constant(data):
    inside = data.log_density if isinstance(data, Blobs) else lambda v: data.log_density(v).clamp(min=-50)
    for c in (0.0, 37.0):
        found = numbers(eb.PlaneQuadrature(), OfDensity(inside, c), data)
        assert found["kl"] == pytest.approx(0, abs=1e-6)


def test_the_divergence_of_two_normal_distributions_has_its_closed_form():
    # The closed form in two dimensions is KL(N(0, s^2 I) || N(m, I)) = s^2 - 1 + |m|^2 / 2 - 2 log s.
    class Normal(Blobs):
        sample_name = "normal"
        bounds = ((-4.0, 4.0), (-4.0, 4.0))
        centres = ((0.0, 0.0),)
        stds = (0.5,)

    mean = torch.tensor([0.3, -0.7])
    energy = OfDensity(lambda v: -0.5 * (v - mean).square().sum(-1))
    found = numbers(eb.PlaneQuadrature(n_cells=90), energy, Normal())["kl"]
    closed = 0.25 - 1 + mean.square().sum().item() / 2 - 2 * math.log(0.5)
    assert found == pytest.approx(closed, abs=1e-7)


def test_the_error_of_the_weights_of_modes_is_their_total_variation():
    data = TwoBlobs()
    metric = eb.PlaneQuadrature()
    p = torch.tensor([0.8, 0.2], dtype=torch.float64)
    unequal = [OfDensity(lambda v, w=w: data.log_density(v) + w[(v.sum(1) > 0).long()].log()) for w in (p, 0 * p + 0.5)]
    found = [numbers(metric, energy, data)["mode_weights_error"] for energy in unequal]
    assert found == pytest.approx([0.3, 0], abs=1e-7)


def test_few_latents_are_summed_over_a_grid():
    torch.manual_seed(0)
    model = eb.GaussianLatentModel(v_dim=2, h_dim=1, weight_scale=0.5)
    data = TwoBlobs()
    metric = eb.PlaneQuadrature(n_cells=60)
    summed, exact = (numbers(metric, energy, data) for energy in (Joint(model), model))
    assert summed == pytest.approx(exact, abs=1e-6)
    narrow = eb.PlaneQuadrature(n_cells=60, half_width=0.5)
    assert numbers(narrow, Joint(model), data) == {}


@pytest.mark.parametrize("log_density", [lambda v: 0 * v.sum(-1), lambda v: math.nan * v.sum(-1)])
def test_a_grid_too_small_for_the_mass_gives_no_number(log_density, caplog):
    assert numbers(eb.PlaneQuadrature(n_cells=30), OfDensity(log_density), TwoBlobs()) == {}
    assert "of the model's mass" in caplog.text


@pytest.mark.parametrize(
    ("place", "std"),
    [
        *(((7.0, 0.0), 0.05), ((7.0, 0.0), 1.0), ((-8.0, 8.0), 0.05), ((-8.0, 8.0), 1.0)),
        # the last mode is further away than the points where the search starts
        *(((3.0, -19.0), 0.05), ((3.0, -19.0), 1.0), ((60.0, 10.0), 1.0)),
    ],
)
@pytest.mark.parametrize("weight", [0.99, 0.01])
def test_a_mode_outside_of_the_grid_gives_no_number(place, std, weight, caplog):
    data = TwoBlobs()
    centre = torch.tensor(place, dtype=torch.float64)

    def log_density(v):
        far = -(v - centre).square().sum(-1) / (2 * std**2) - math.log(2 * math.pi * std**2)
        return torch.logaddexp(math.log(1 - weight) + data.log_density(v), math.log(weight) + far)

    assert numbers(eb.PlaneQuadrature(n_cells=60), OfDensity(log_density), data) == {}
    assert "of the model's mass" in caplog.text


def test_a_mode_outside_that_has_all_of_the_mass_does_not_overflow(caplog):
    data = TwoBlobs()
    centre = torch.tensor([9.0, 0.0], dtype=torch.float64)
    deep = OfDensity(lambda v: torch.logaddexp(data.log_density(v), 2000 - 8 * (v - centre).square().sum(-1)))
    assert numbers(eb.PlaneQuadrature(n_cells=60), deep, data) == {}
    assert "of the model's mass" in caplog.text


def test_a_mode_outside_without_mass_changes_nothing():
    data = TwoBlobs()
    centre = torch.tensor([9.0, 0.0], dtype=torch.float64)

    def log_density(v, weight=1e-5):
        far = -(v - centre).square().sum(-1) / (2 * 0.3**2) - math.log(2 * math.pi * 0.3**2)
        return torch.logaddexp(data.log_density(v), math.log(weight) + far)

    found = [numbers(eb.PlaneQuadrature(n_cells=60), OfDensity(x), data)["kl"] for x in (data.log_density, log_density)]
    assert found[1] == pytest.approx(found[0], abs=1e-9)


def test_data_without_known_density_or_modes_give_no_numbers():
    metric = eb.PlaneQuadrature(n_cells=30)
    data = eb.Moons()
    # the density of these data is unknown, so that there is no divergence
    assert list(numbers(metric, eb.GRBM(v_dim=2, h_dim=3), data)) == ["quadrature_log_likelihood"]
    for data_set, energy in ((eb.Digits(), eb.GRBM(v_dim=64, h_dim=3)), (data, None)):
        assert numbers(metric, energy, data_set) == numbers(Modes(), energy, data_set) == {}
    assert numbers(metric, Joint(eb.GaussianLatentModel(v_dim=2, h_dim=4)), data) == {}


def mixture(centres, std=0.05):
    truth = type("Some", (Blobs,), {"centres": tuple(centres), "stds": (std,) * len(centres)})
    return OfDensity(lambda v: truth.log_density(truth, v))


QUICK = {"n_samples": 1250, "sampler": eb.Langevin(n_steps=60, step_size=1e-3)}


def test_the_truth_has_all_modes_and_a_collapsed_model_lacks_those_it_lost():
    data = TwentyFiveGaussians()
    whole = numbers(Modes(**QUICK), mixture(data.centres), data)
    assert whole["modes"] == 25
    # A sample of a normal distribution in the plane is within 3 standard deviations with probability 1 - exp(-9/2). The
    # steps of Langevin dynamics widen the distribution a little.
    assert 0.97 < whole["samples_at_modes"] < 0.995
    # The modes have cells of equal size, and equally many chains start in each cell.
    assert whole["rarest_mode"] > 1 - 5 * (25 / 1250) ** 0.5
    lost = numbers(Modes(**QUICK), mixture(data.centres[:20]), data)
    assert (lost["modes"], lost["rarest_mode"]) == (20, 0)
    wide = numbers(Modes(**QUICK), mixture(data.centres, std=0.2), data)
    # a sample is within 3 / 4 standard deviations of its mode with probability 1 - exp(-(3 / 4)^2 / 2) = 0.245
    assert wide["samples_at_modes"] < 0.4


def test_one_gaussian_finds_no_mode_and_the_truth_finds_all():
    data = loaded(TriangleBlobs())
    v = data.splits.train
    gaussian = torch.distributions.MultivariateNormal(v.mean(0), v.T.cov())
    assert (
        numbers(Modes(sampler=eb.Langevin(n_steps=300, step_size=1e-3)), OfDensity(gaussian.log_prob), data)["modes"]
        == 0
    )
    assert (
        numbers(Modes(sampler=eb.Langevin(n_steps=300, step_size=1e-3)), OfDensity(data.log_density), data)["modes"]
        == 3
    )


def test_the_share_of_one_gaussian_is_that_of_its_samples():
    data = TriangleBlobs()
    n = 400_000
    v = data.sample(n, torch.Generator().manual_seed(0)).double()
    gaussian = torch.distributions.MultivariateNormal(v.mean(0), v.T.cov())
    torch.manual_seed(0)
    modes = [torch.tensor(x).double() for x in (data.centres, data.stds)]
    found = gaussian_shares(data)
    drawn, truth = (shares_of_modes(x, *modes) for x in (gaussian.sample((n,)), v))
    torch.testing.assert_close(found, drawn, rtol=0.02, atol=5 * (drawn.max().item() / n) ** 0.5)
    assert (truth > 1.7 * found).all()  # samples of the data themselves are near each mode far more often


def test_shares_are_counts_within_some_deviations():
    centres = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    stds = torch.tensor([0.1, 1.0])
    v = torch.tensor([[0.29, 0.0], [-0.31, 0.0], [0.0, 0.0], [3.0, 2.9]])
    assert shares_of_modes(v, centres, stds).tolist() == [0.5, 0.75]
    assert shares_of_modes(v, centres, stds, n_stds=1.0).tolist() == [0.25, 0.0]


def test_the_normal_factor_makes_a_flat_network_normal():
    energy = eb.MLPEnergy(v_dim=2, widths=[4], base_std=0.7).double()
    with torch.no_grad():
        energy.network[-1].weight.zero_()
    data = TriangleBlobs()
    found = numbers(eb.PlaneQuadrature(n_cells=90), energy, data)["quadrature_log_likelihood"]
    v = data.splits.test.double()
    assert found == pytest.approx(torch.distributions.Normal(0, 0.7).log_prob(v).sum(1).mean().item(), abs=1e-8)
