"""Tests of estimates of log Z by Hamiltonian AIS and by quadrature, against enumeration and closed forms."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import eblvm_lit as eb
from cases import randomise
from eblvm_lit.evaluation.likelihood.ais import AIS, BinaryPath, estimate_from_log_weights
from eblvm_lit.evaluation.likelihood.annealing import NormalBase, anneal, step_sizes
from eblvm_lit.evaluation.likelihood.jackknife import jackknife
from eblvm_lit.evaluation.likelihood.log_partition_sandwich import LogPartitionSandwich
from helpers.models import (
    F64,
    Confined,
    LatentOnly,
    check_moments,
    exact_moments,
    generator,
    method_of,
    normal,
    random_gaussian_model,
    random_grbm,
)


def quartic(x):
    """Compute the energy (x^2 - 1)^2 + x / 2, summed over dimensions, which has two unequal wells."""
    return ((x.square() - 1).square() + 0.5 * x).sum(-1)


class Bowl(eb.VisibleEnergy):
    """The energy of N(0, std^2 I) without its normalising constant."""

    def __init__(self, dim, std=1.0):
        super().__init__()
        self.event_shape = (dim,)
        self.std = std

    def free_energy(self, v):
        return 0.5 * (v / self.std).square().sum(-1)


class Quartic(eb.VisibleEnergy):
    """The quartic energy in three variables, which are too many for a grid."""

    event_shape = (3,)

    def free_energy(self, v):
        return quartic(v)


class ConfinedJoint(eb.Energy):
    """A deep energy of (v, h) plus a quadratic term, whose free energy is only known by quadrature."""

    continuous = True
    event_shape = (2,)
    h_dim = 1

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.deep = eb.DeepVectorEnergy(v_dim=2, h_dim=1, head_dim=8, widths=[12])
        self.double().requires_grad_(False)

    def energy(self, v, h):
        return self.deep.energy(v, h) + 0.2 * v.square().sum(-1) + 0.2 * (h - 0.5).square().sum(-1)


def exact(energy):
    return float(energy.log_partition())


def test_adapted_step_sizes_have_the_acceptance_that_is_asked_for():
    hmc = eb.HMC(n_leapfrog=2, step_size=5.0, target_acceptance=0.8)
    g = generator(3)
    betas = torch.linspace(0, 1, 200).tolist()
    sizes = step_sizes(quartic, hmc, betas, torch.randn(200, 4, generator=g, dtype=F64), g)
    x = torch.randn(2000, 4, generator=g, dtype=F64)
    for _ in range(30):
        move = hmc.move(quartic, x, hmc.noise(x, g), sizes[-1])
        x = move.x
    assert abs(move.acceptance.mean() - 0.8) < 0.1


def test_the_base_is_the_normal_distribution_of_the_examples():
    v = normal(500, 3) @ normal(3, 3, seed=1) + 2
    base = NormalBase.fitted(v)
    torch.testing.assert_close(base.root @ base.root.T, torch.cov(v.T))
    torch.testing.assert_close(base.whiten(base.colour(v)), v)
    truth = torch.distributions.MultivariateNormal(base.mean, scale_tril=base.root)
    # this sum equals -log Z of the base at every point
    expected = truth.log_prob(v) + 0.5 * base.whiten(v).square().sum(-1)
    torch.testing.assert_close(expected, torch.full_like(expected, -base.log_partition()))


def test_data_with_constant_values_do_not_bias_log_z():
    # A pixel that is always 0 in the data does not tell how wide the model is along this pixel.
    v = normal(500, 4)
    v[:, :2] = 0
    found = eb.HamiltonianAIS(n_chains=200, n_betas=200).estimate(Bowl(4, std=0.3), v, generator(3))
    assert 0 < found.standard_error < 0.05
    assert abs(found.log_z - 4 * math.log(0.3 * math.sqrt(2 * math.pi))) < 4 * found.standard_error


def test_a_small_effective_sample_size_gives_a_warning(caplog):
    one = torch.tensor([0.0, *[-50.0] * 199], dtype=F64)
    assert estimate_from_log_weights(one, 0.0).ess == pytest.approx(1)
    assert len(caplog.records) == 1
    half = torch.tensor([0.0, -50.0], dtype=F64).repeat(100)
    assert estimate_from_log_weights(half, 0.0).ess == pytest.approx(100)
    assert len(caplog.records) == 1


def test_a_model_that_is_the_base_has_equal_weights_and_its_own_log_z():
    model = random_gaussian_model(2, 3)
    for p in (model.W, model.b, model.c, model.log_std):
        p.zero_()
    found = eb.HamiltonianAIS(n_chains=10, n_betas=5, base="standard").sandwich(model, normal(9, 2), generator())
    for side in found:
        assert side.log_z == pytest.approx(exact(model), abs=1e-12)
        assert (side.standard_error, side.ess) == pytest.approx((0, 10), abs=1e-9)


def wavy(x):
    """Compute the energy 0.45 x^2 + 1.5 cos(2 x), summed over dimensions.

    The weights of annealing between it and a normal distribution have finite moments in both directions.
    """
    return (0.45 * x.square() + 1.5 * (2 * x).cos()).sum(-1)


@pytest.mark.parametrize("n_betas", [2, 4])
def test_the_mean_weight_is_unbiased_in_both_directions(n_betas):
    """Check the mean weights of annealing with few temperatures.

    The weights have a large variance, so that only their means, Z / Z_0 and Z_0 / Z, are right.
    """
    axis = torch.linspace(-9, 9, 36001, dtype=F64)
    g = generator(4)
    n = 40_000
    log_p = -wavy(axis[:, None])
    log_ratio = float(log_p.logsumexp(0) + (axis[1] - axis[0]).log()) - 0.5 * math.log(2 * math.pi)
    hmc = eb.HMC(n_leapfrog=1)
    betas = torch.linspace(0, 1, n_betas).tolist()
    schedule = [(beta, 0.8) for beta in betas]
    at = torch.searchsorted(log_p.softmax(0).cumsum(0), torch.rand(n, generator=g, dtype=F64)).clamp(max=36000)
    starts = torch.randn(n, 1, generator=g, dtype=F64), axis[at, None]
    for z, path, log_mean in ((starts[0], schedule, log_ratio), (starts[1], schedule[::-1], -log_ratio)):
        log_w = anneal(wavy, hmc, path, z, g)
        w = (log_w - log_mean).exp()
        error = float(w.std()) / math.sqrt(n)
        assert error < 0.02
        assert abs(float(w.mean()) - 1) < 4 * error
        assert float(log_w.mean()) < log_mean - 0.05  # by Jensen's inequality, the mean log weight is only a bound


@pytest.mark.parametrize("parametrisation", ["code", "paper"])
def test_exact_samples_of_binary_latents_have_the_moments_of_the_mixture(parametrisation):
    model = random_grbm(3, 5, parametrisation)
    mean, covariance = exact_moments(model)
    check_moments(model.sample_exact(40_000, generator(5)), mean[:3], covariance[:3, :3])


def coupled():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return eb.CoupledGRBM(v_dim=3, h_dim=4).double().requires_grad_(False)


def far_gaussian():
    """Build a narrow model far from the origin, for which the whitened variable differs much from v."""
    model = random_gaussian_model()
    model.b.add_(3)
    model.log_std.sub_(1)
    return model


MODELS = {"far gaussian": far_gaussian, "grbm, paper": lambda: random_grbm(3, 6, "paper"), "coupled grbm": coupled}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_both_sides_of_the_sandwich_contain_the_exact_log_z(model):
    model = model()
    v = model.sample_exact(500, generator(7))
    ais = eb.HamiltonianAIS(n_chains=1000, n_betas=40, n_adapting=50)
    lower, upper = ais.sandwich(model, v, generator(8))
    for side in (lower, upper):
        assert 0 < side.standard_error < 0.03
        assert abs(side.log_z - exact(model)) < 4 * side.standard_error
        assert 300 < side.ess <= 1000
    assert lower == ais.estimate(model, v, generator(8))


@pytest.mark.parametrize("parametrisation", ["code", "paper"])
def test_both_sides_of_the_sandwich_by_gibbs_sweeps_contain_the_exact_log_z(parametrisation):
    model = random_grbm(4, 7, parametrisation)
    lower, upper = AIS(n_chains=1000, n_betas=100).sandwich(model, generator(9))
    for side in (lower, upper):
        assert 0 < side.standard_error < 0.04
        assert abs(side.log_z - exact(model)) < 4 * side.standard_error


BINARY = {
    "rbm": lambda: eb.BernoulliRBM(v_dim=6, h_dim=4),
    "dbm": lambda: eb.DeepBoltzmannMachine(v_dim=6, h_dim=6, h1_dim=4),
}


def random_binary(kind):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        energy = BINARY[kind]().double()
        energy.fit([torch.randint(0, 2, (20, 6)).double()])
        return randomise(energy, 0.8).requires_grad_(False)


@pytest.mark.parametrize("with_examples", [True, False])
@pytest.mark.parametrize("kind", BINARY)
def test_both_sides_of_the_sandwich_contain_the_exact_log_z_of_bits(kind, with_examples):
    model = random_binary(kind)
    v = model.sample_exact(50, generator(1)) if with_examples else None
    lower, upper = AIS(n_chains=1000, n_betas=60).sandwich(model, generator(9), v)
    for side in (lower, upper):
        assert abs(side.log_z - exact(model)) < 4 * side.standard_error
        assert 0 < side.standard_error < 0.05


@pytest.mark.parametrize("kind", BINARY)
def test_one_temperature_of_bits_is_importance_sampling_from_the_base(kind):
    """With the temperatures 0 and 1, the mean weight over all states of x, weighted by the base, is Z / Z_0."""
    model = random_binary(kind)
    path = BinaryPath(model, model.sample_exact(50, generator(1)))
    x = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=F64)] * len(path.a))
    path.start(len(x), generator(), exact=False)
    path.x = x
    path.z = x @ model.layers().U
    base = (x @ path.a - torch.nn.functional.softplus(path.a).sum()).exp()
    log_z = (base @ path.log_ratio(0.0, 1.0).exp()).log() + path.log_z_base
    torch.testing.assert_close(log_z, model.log_partition())


def test_the_log_likelihood_of_a_dbm_is_bounded_by_mean_field_and_that_of_an_rbm_is_exact():
    for kind, name in (("rbm", "log Z by enumeration"), ("dbm", "log Z by enumeration, F(v) bounded by mean field")):
        model = random_binary(kind)
        method = method_of(model)
        metric = eb.LogLikelihood()
        assert metric.describe(method, None)["log_likelihood"] == name
        v = model.sample_exact(200, generator(1))
        h = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=F64)] * model.h_dim)
        F = -(-model.energy(v, h.unsqueeze(1).expand(-1, len(v), -1))).logsumexp(0)
        truth = float(-F.mean()) - exact(model)
        found = metric.compute(method, v, generator())["log_likelihood"]
        sampled = eb.LogLikelihood(max_enumerated=3, n_chains=1000, n_betas=60)
        assert sampled.describe(method, None)["log_likelihood"].startswith("log Z by AIS with Gibbs sweeps")
        by_ais = sampled.compute(method, v, generator())
        assert abs(by_ais["log_likelihood"] - found) < 4 * by_ais["log_z_standard_error"] < 0.2
        assert found == pytest.approx(truth, abs=1e-9) if kind == "rbm" else truth - 0.5 < found < truth - 1e-3


def test_the_sandwich_is_given_where_there_are_exact_samples():
    v = normal(100, 3)
    model = random_grbm(3, 5)
    for ais in (AIS(n_chains=50, n_betas=5), eb.HamiltonianAIS(n_chains=50, n_betas=5, n_adapting=5)):
        metric = LogPartitionSandwich(ais=ais)
        assert {"log_z_lower", "log_z_upper"} < set(metric.compute(method_of(model), v, generator()))
        assert set(metric.describe(method_of(model), None)) == {"log_z_lower", "log_z_upper"}
        for other in (method_of(), method_of(LatentOnly(model)), method_of(Confined()), method_of(nn.Linear(2, 2))):
            assert not metric.applies(other, None)
            assert metric.describe(other, None) == {}
    few = LogPartitionSandwich(ais=AIS(n_chains=50, n_betas=5), max_enumerated=4)
    assert not few.applies(method_of(model), None)


@pytest.mark.parametrize("shape", [(1, 2), (2, 3)], ids=["line", "plane"])
def test_quadrature_of_v_is_the_closed_form(shape):
    model = random_gaussian_model(*shape)
    v = model.sample_exact(50, generator())
    assert eb.VisibleQuadrature(n_nodes=61).log_partition(model, v) == pytest.approx(exact(model), abs=1e-6)
    assert eb.VisibleQuadrature(n_nodes=61).log_partition(model, 0.1 * v) == pytest.approx(exact(model), abs=1e-6)


class Tail(eb.VisibleEnergy):
    """The energy F(v) = a sqrt(0.01 + |v - 1/2|^2), summed over variables, whose tails are as wide as a network's."""

    def __init__(self, rate, dim):
        super().__init__()
        self.rate = rate
        self.event_shape = (dim,)

    def free_energy(self, v):
        return self.rate * (0.01 + (v - 0.5).square()).sqrt().sum(-1)


@pytest.mark.parametrize(("dim", "rate", "tolerance"), [(1, 0.1, 1e-6), (1, 3.0, 1e-6), (2, 0.1, 1e-4)])
def test_quadrature_holds_the_tails(dim, rate, tolerance):
    # Z of one variable is 2 s K_1(a s) with s = 0.1, where K_1 is the modified Bessel function.
    z = 0.2 * float(torch.special.modified_bessel_k1(torch.tensor(0.1 * rate, dtype=F64)))
    v = torch.rand(50, dim, generator=generator(), dtype=F64)
    found = eb.VisibleQuadrature(tolerance=tolerance).log_partition(Tail(rate, dim), v)
    assert found == pytest.approx(dim * math.log(z), abs=2 * dim * tolerance)


def test_quadrature_refuses_what_it_does_not_resolve():
    with pytest.raises(eb.ConfigError, match="tolerance"):  # the tolerance needs more nodes than are allowed
        eb.VisibleQuadrature(tolerance=1e-6).log_partition(Tail(0.1, 2), torch.rand(9, 2, dtype=F64))


@pytest.mark.parametrize("std", [0.01, 100.0])
def test_quadrature_finds_a_model_that_is_wider_than_the_data(std):
    found = eb.VisibleQuadrature().log_partition(Bowl(2, std=std), torch.zeros(1, 2).double())
    assert found == pytest.approx(2 * math.log(std * math.sqrt(2 * math.pi)), abs=2e-6)


def test_quadrature_says_where_log_z_grows_with_the_box(caplog):
    model = Bowl(2)
    # the free energy is constant along a line to infinity, so that log Z is infinite
    model.free_energy = lambda v: 2 * (v[:, 0] - 0.6 * v[:, 1] + 0.1).square()
    assert eb.VisibleQuadrature(n_nodes=21).log_partition(model, normal(9, 2)) == math.inf
    assert len(caplog.records) == 1


def test_a_deep_energy_of_the_plane_has_the_log_z_of_quadrature():
    model = Confined()
    axis = torch.linspace(-14, 14, 801, dtype=F64)
    grid = torch.cartesian_prod(axis, axis)
    by_hand = float((-model.free_energy(grid)).logsumexp(0) + 2 * (axis[1] - axis[0]).log())
    v = normal(300, 2)
    assert eb.VisibleQuadrature(tolerance=1e-4).log_partition(model, v) == pytest.approx(by_hand, abs=1e-3)
    found = eb.HamiltonianAIS(n_chains=1000, n_betas=80).estimate(model, v, generator(10))
    assert 0 < found.standard_error < 0.05
    assert abs(found.log_z - by_hand) < 4 * found.standard_error


@pytest.fixture(scope="module")
def joint():
    """Return a joint energy of v and h, its marginal and its log Z by quadrature, and points v."""
    model = ConfinedJoint()
    v = normal(400, 2)
    marginal = eb.QuadratureMarginal(energy=model, half_width=12.0, n_nodes=201)
    return model, marginal, eb.VisibleQuadrature(tolerance=1e-4, n_nodes=61).log_partition(marginal, v), v


def test_the_free_energy_at_given_v_is_unbiased_and_bounds_from_above(joint):
    model, marginal, _, v = joint
    exact_f = marginal.free_energy(v)
    hmc = eb.HMC(n_leapfrog=1)
    ais = eb.HamiltonianAIS(n_betas=8, n_adapting=50, hmc=hmc)
    runs = torch.stack([ais.free_energy(model, v, generator(seed)) for seed in range(20)])
    w = (exact_f - runs).exp().flatten()
    error = float(w.std()) / math.sqrt(len(w))
    assert error < 0.01
    assert abs(float(w.mean()) - 1) < 4 * error
    assert float((runs - exact_f).mean()) > 0
    close = eb.HamiltonianAIS(n_betas=100, hmc=hmc).free_energy(model, v, generator())
    assert float((close - exact_f).abs().mean()) < 0.4 * float((runs - exact_f).abs().mean())


def test_the_log_likelihood_says_how_it_was_found(joint):
    model, marginal, log_z, v = joint
    known = eb.LogLikelihood(n_chains=200, n_betas=50)
    metric = eb.LogLikelihood(
        n_chains=200,
        n_betas=50,
        quadrature=eb.VisibleQuadrature(tolerance=1e-4),
        hamiltonian_ais=eb.HamiltonianAIS(n_chains=20, n_betas=10),
    )
    expected = {
        "log Z by enumeration": random_grbm(2, 4),
        "log Z by a closed form": random_gaussian_model(2, 3),
        "log Z by quadrature": Confined(),
        "log Z and F(v) by AIS with Hamiltonian moves": model,
        "log Z by AIS with Gibbs sweeps": random_grbm(4, 21, scale=0.3),
        "log Z by AIS with Hamiltonian moves": Quartic(),
    }
    for words, energy in expected.items():
        method = method_of(energy)
        x = normal(40, energy.event_shape[0])
        assert metric.describe(method, None) == {"log_likelihood": words}
        found = metric.compute(method, x, generator())
        assert "log_likelihood" in found
        if hasattr(energy, "log_partition"):  # an exact log Z is used even if estimates are possible
            assert known.compute(method, x, generator()) == found
        else:
            assert known.compute(method, x, generator()) == known.describe(method, None) == {}
    metric = eb.LogLikelihood(hamiltonian_ais=eb.HamiltonianAIS(n_chains=1000, n_betas=80))
    found = metric.compute(method_of(model), v, generator(12))
    by_quadrature = -float(marginal.free_energy(v).mean()) - log_z
    assert abs(found["log_likelihood"] - by_quadrature) < 4 * found["log_z_standard_error"] + 0.02


def test_validations_do_not_wait_for_hamiltonian_moves():
    metric = eb.LogLikelihood(hamiltonian_ais=eb.HamiltonianAIS(n_chains=5, n_betas=2))
    splits = SimpleNamespace(val=normal(9, 3), test=normal(9, 3))
    data = SimpleNamespace(splits=splits, as_float=lambda v: v, log_unit_of_v=0.0)
    for energy, found in ((Quartic(), False), (random_grbm(3, 4), True)):
        method = method_of(energy)
        assert ("log_likelihood" in metric.evaluate(method, data, "val", generator())) == found
        assert "log_likelihood" in metric.evaluate(method, data, "test", generator())


def test_the_error_of_the_log_likelihood_is_its_spread_over_seeds():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = random_gaussian_model(3, 3)
    joint = LatentOnly(model)
    joint.continuous = True
    # At these points the latents are far from N(0, I), so that F(v) has most of the error.
    v = 4 * model.sample_exact(50, generator())
    exact_value = -float(model.free_energy(v).mean()) - exact(model)
    ais = eb.HamiltonianAIS(n_chains=400, n_betas=20, base="standard", n_adapting=20)
    metric = eb.LogLikelihood(hamiltonian_ais=ais)
    runs = [metric.compute(method_of(joint), v, generator(seed)) for seed in range(16)]
    names = ("log_likelihood", "log_likelihood_standard_error", "log_z_standard_error")
    values, errors, of_log_z = torch.tensor([[run[name] for name in names] for run in runs], dtype=F64).T
    # the mean square of 16 standard normal values is between 0.25 and 2.6 with probability 0.999
    assert 0.25 < ((values - exact_value) / errors).square().mean() < 2.6
    assert ((values - exact_value) / of_log_z).square().mean() > 2.6


def test_the_jackknife_removes_the_bias_of_a_log_of_few_weights():
    std = 0.5
    n = 100_000
    one, other = std * normal(2, n) + std**2 / 2  # values of -log w with E[w] = 1, so that the exact F is 0
    value, error = jackknife(one, other)
    assert abs(value) < 4 * error + std**4 / 4  # the bias that remains is of the next order, std^4 / 4
    assert float(one.mean()) > 20 * error


@pytest.mark.parametrize("std", [0.1, 0.7, 1.5, 3.0])
def test_the_error_of_the_jackknife_is_its_spread_for_normal_log_weights(std):
    values, errors = torch.tensor([jackknife(*x) for x in (std * normal(1000, 2, 200))], dtype=F64).T
    assert float(values.std() / errors.mean()) == pytest.approx(1, abs=3 / math.sqrt(2 * 1000))
