"""Tests of the dynamics that sample a model's distribution: moments, weights of modes, and noise that depends on the
index.

The exact moments are computed by enumeration or quadrature.
"""

import logging

import pytest
import torch

import cases
import eblvm_lit as eb
from eblvm_lit.samplers.chain_trace import ChainTrace
from eblvm_lit.samplers.conditional import inpaint
from eblvm_lit.samplers.sample_noise import SampleNoise
from helpers.models import F64, generator, normal, random_grbm

ON_V = [row for row in cases.DYNAMICS if "marginal" in row.make().kinds]
ACROSS = [row for row in cases.DYNAMICS if row.across]


def assert_mean(values, mean, z=4.0):
    """Check that the mean of independent values (n, D) is within z standard errors of the expected mean."""
    errors = (values.mean(0) - mean).abs() / (values.var(0) / len(values)).sqrt()
    assert float(errors.max()) < z, errors


def brief(row, n_steps):
    """Build the dynamics of a row of ``cases.DYNAMICS`` with about n_steps steps, for chains that need not converge."""
    short = {
        "AnnealedLangevin": lambda: eb.AnnealedLangevin(
            step_size=0.15, temperature=1.0, n_hot=n_steps, n_falling=0, n_cold=0, denoise_std=0.0
        ),
        "PlainLangevin": lambda: eb.Langevin(n_steps=n_steps, step_size=0.0225),
        "Gibbs": lambda: eb.Gibbs(n_steps=n_steps),
        "GibbsLangevin": lambda: eb.GibbsLangevin(n_steps=n_steps, n_moves=3, step_size=0.7),
        "ParallelTempering": lambda: cases.parallel_tempering(n_steps),
        "DiffusiveGibbs": lambda: cases.diffusive_gibbs(n_steps // 3),
    }
    return short.get(row.name, row.make)()


def draw(energy, dynamics, n=1000):
    return eb.Sampler(dynamics=dynamics, batch_size=n).draw(energy, range(n), seed=1)


@pytest.mark.parametrize("row", cases.DYNAMICS, ids=str)
def test_moments_of_a_grbm_are_those_of_enumeration(float64, row):
    energy = random_grbm(2, 3, scale=1.5).requires_grad_(False)
    h = cases.binary(3)
    v = torch.zeros(1, 2)
    mean = energy.visible_mean(h)
    std = energy.visible_std()
    conditional = torch.distributions.Normal(mean, std).log_prob(v).sum(-1)
    p = (-energy.energy(v, h.unsqueeze(1)).squeeze(1) - conditional).softmax(0).unsqueeze(1)  # p(h) = p(v, h) / p(v|h)
    samples = draw(energy, row.make())
    assert_mean(samples, (p * mean).sum(0))
    assert_mean(samples.square(), (p * (mean.square() + std.square())).sum(0))


@pytest.mark.parametrize("row", ON_V, ids=str)
def test_moments_of_a_deep_energy_are_those_of_quadrature(float64, row):
    torch.manual_seed(3)
    energy = cases.randomise(eb.MLPEnergy(v_dim=2, widths=[16, 16], base_std=1.0), 0.5).requires_grad_(False)
    v = cases.product(torch.linspace(-7, 7, 281), 2)
    p = (-energy.free_energy(v)).softmax(0).unsqueeze(1)
    samples = draw(energy, row.make())
    for moment in (lambda v: v, torch.square, lambda v: v.sin() * v.flip(1)):
        assert_mean(moment(samples), (p * moment(v)).sum(0))


@pytest.mark.parametrize(("n_leapfrog", "step_size"), [(1, 0.9), (3, 0.7)])
def test_moves_at_the_mean_of_the_exact_posterior_have_the_marginal_of_a_gaussian(float64, n_leapfrog, step_size):
    case = next(case for case in cases.INFERRED if case.name == "gaussian-latent")
    # The latents of this model are normal given v, so that E(v, E[h|v]) = F(v) + a constant.
    energy = case.make().requires_grad_(False)
    langevin = eb.AnnealedLangevin(
        step_size=step_size, temperature=1.0, n_hot=60, n_falling=0, n_cold=0, denoise_std=0.0, n_leapfrog=n_leapfrog
    )  # without acceptance or rejection of moves, the variance would be a quarter too large
    sampler = eb.Sampler(dynamics=langevin, kind="mean", batch_size=2000)
    v = sampler.draw(energy, range(2000), seed=0, posterior=case.exact_posterior(energy))
    grid = cases.product(torch.linspace(-9, 9, 361), 2)
    p = (-energy.free_energy(grid)).softmax(0).unsqueeze(1)
    for moment in (lambda v: v, torch.square, lambda v: v * v.flip(1)):
        assert_mean(moment(v), (p * moment(grid)).sum(0))


def test_a_level_of_diffusive_gibbs_leaves_the_model_invariant(float64):
    digs = eb.DiffusiveGibbs(n_sweeps=20, noise_max=1.0, noise_min=1.0, n_levels=1, n_moves=1, step_size=0.7)
    chains = eb.Chains(lambda x: x.square().sum(1) / 2, (normal(8000, 4),))
    x = digs.end(chains, SampleNoise(0, range(8000)))[0].reshape(-1, 1)
    assert_mean(x.square(), torch.ones(1))


class UnequalModes(eb.VisibleEnergy):
    """The grid of 25 Gaussians with a given standard deviation and weights proportional to 1, 2, ..., 25."""

    event_shape = (2,)

    def __init__(self, std):
        super().__init__()
        self.centres = torch.tensor(eb.TwentyFiveGaussians.centres, dtype=F64)
        self.std = std
        self.weights = torch.arange(1.0, 26.0, dtype=F64) / 325
        self.place = torch.nn.Parameter(torch.zeros((), dtype=F64))

    def free_energy(self, v):
        constants = self.weights.log() - self.centres.square().sum(1) / (2 * self.std**2)
        modes = torch.addmm(constants, v, self.centres.T / self.std**2).logsumexp(1)
        return v.square().sum(1) / (2 * self.std**2) - modes + 0 * self.place

    def shares(self, v):
        """Return the mode to which each v belongs as one-hot rows, shape (n, 25)."""
        return torch.nn.functional.one_hot(torch.cdist(v, self.centres).argmin(1), 25).double()


@pytest.mark.parametrize("row", ACROSS, ids=str)
def test_weights_of_modes_are_found(float64, row):
    energy = UnequalModes(0.25)
    shares = energy.shares(draw(energy, row.across())).mean(0)
    errors = (shares - energy.weights) / (energy.weights * (1 - energy.weights) / 1000).sqrt()
    # The sum of squares is chi-squared with 24 degrees of freedom. The bound is its mean plus three standard
    # deviations.
    assert float(errors.square().sum()) < 24 + 3 * 48**0.5
    assert float(errors.abs().max()) < 3.3  # The largest of 25 errors exceeds this bound for one in forty seeds.


def test_langevin_dynamics_do_not_find_the_weights_of_modes(float64):
    energy = UnequalModes(0.25)
    dynamics = eb.AnnealedLangevin(step_size=0.1, temperature=1.0, n_hot=500, n_falling=0, n_cold=0, denoise_std=0.0)
    v = eb.Sampler(dynamics=dynamics, batch_size=500).draw(energy, range(500), seed=1)
    shares = energy.shares(v).mean(0)
    assert float(((shares - energy.weights).square() / energy.weights).sum() * 500) > 1000


def rounded(x):
    """Return x as autocast would round it, with the derivative of the unrounded x."""
    return x + (x.bfloat16().to(x) - x).detach() if torch.is_autocast_enabled("cpu") else x


class RoundedByAutocast(eb.GRBM):
    """A GRBM whose energies and p(h|v) are rounded to bfloat16 by autocast, but whose gradients are not."""

    def energy(self, v, h):
        return rounded(super().energy(v, h))

    def free_energy(self, v):
        return rounded(super().free_energy(v))

    def latent_mean(self, v):
        return rounded(super().latent_mean(v))


def rounded_grbm():
    energy = RoundedByAutocast(v_dim=2, h_dim=3).double()
    energy.load_state_dict(random_grbm(2, 3, scale=1.5).state_dict())
    return energy.requires_grad_(False)


ADJUSTED = cases.DynamicsCase(
    name="AnnealedLangevin with moves",
    make=lambda: eb.AnnealedLangevin(step_size=0.7, n_hot=5, n_falling=10, n_held=20, n_cold=5, n_leapfrog=2),
)


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        pytest.param(row, kind, id=f"{row}-{kind}")
        for row in (*cases.DYNAMICS, ADJUSTED)
        for kind in ("marginal", "mean", "posterior", "gibbs")
        if kind in row.make().kinds
    ],
)
def test_what_is_accepted_and_drawn_does_not_depend_on_the_rounding_of_energies(float64, row, kind):
    energy = rounded_grbm()
    q = eb.BernoulliPosterior(v_dim=2, h_dim=3)
    v = normal(10, 2)
    found = {}
    for bfloat16 in (False, True):
        sampler = eb.Sampler(dynamics=brief(row, 20), kind=kind, batch_size=150, bfloat16=bfloat16)
        samples = sampler.draw(energy, range(150), seed=1, posterior=q, examples=v)
        found[bfloat16] = samples.tolist(), sampler.record
    assert found[True] == found[False]


def test_annealed_weights_and_training_chains_do_not_depend_on_the_rounding_of_energies(float64):
    energy = rounded_grbm()
    x = normal(50, 2)
    found = {}
    method = eb.AnnealedLikelihood(
        **{"energy": energy, "objective": eb.DSM(noise_std=0.1), "optimizer": eb.SGD(lr=0.1), "n_chains": 50},
        **{"n_moves": 4, "n_leapfrog": 2, "step_size": 0.7, "temperature": 3.0, "n_falling": 4, "n_held": 4},
    )
    noise = method._move_noise(x, 4, generator(3))
    age = torch.zeros(50)
    for bfloat16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            moved = [part.tolist() for part in method.moved(energy.free_energy, x, age, noise)]
            found[bfloat16] = moved, eb.HamiltonianAIS(n_chains=50, n_betas=10).estimate(energy, x, generator())
    assert found[True] == found[False]


@pytest.mark.parametrize("row", cases.DYNAMICS, ids=str)
def test_a_sample_depends_on_its_index_and_not_on_its_batch(float64, row):
    energy = random_grbm(2, 3).requires_grad_(False)
    # Noise is drawn for 50 steps at a time, so that 60 steps need a second draw.
    together, apart = (
        eb.Sampler(dynamics=brief(row, 60), batch_size=size).draw(energy, range(3), seed=0) for size in (3, 1)
    )
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "dynamics", [eb.ParallelTempering(n_steps=20), eb.DiffusiveGibbs(n_sweeps=4)], ids=["pt", "digs"]
)
def test_kept_pixels_stay_and_the_others_follow_them(float64, dynamics):
    energy = random_grbm(3, 4).requires_grad_(False)
    v = normal(400, 3)
    keep = torch.tensor([1.0, 0.0, 1.0]).expand(400, 3)
    full = inpaint(eb.Sampler(dynamics=dynamics, batch_size=400), energy, v, keep, seed=0)
    assert torch.equal(full[:, ::2], v[:, ::2])
    grid = torch.linspace(-12, 12, 961)
    line = v.unsqueeze(1).repeat(1, 961, 1)
    line[..., 1] = grid
    p = (-energy.free_energy(line.flatten(0, 1))).view(400, 961).softmax(1)
    mean = p @ grid
    error = (full[:, 1] - mean) / (p @ grid.square() - mean.square()).sqrt()
    assert_mean(error.unsqueeze(1), torch.zeros(1))


def test_what_dynamics_cannot_draw_is_refused(float64):
    # A score is not the gradient of an energy, by which moves could be accepted or rejected.
    score = eb.Sampler(dynamics=eb.ParallelTempering(), kind="score")
    with pytest.raises(eb.ConfigError, match="ParallelTempering of kind score"):
        score.draw(random_grbm(2, 3), range(2), seed=0)


def test_chains_that_do_not_mix_are_reported(float64, caplog):
    energy = UnequalModes(0.25)
    equal = energy.free_energy
    # The added term makes energies differ between the modes, so that chains in different modes are noticed.
    energy.free_energy = lambda v: equal(v) + 3 * v[:, 0].round().detach()
    stuck = eb.AnnealedLangevin(step_size=0.1, temperature=1.0, n_hot=40, n_falling=0, n_cold=0, denoise_std=0.0)
    with caplog.at_level(logging.WARNING):
        sampler = eb.Sampler(dynamics=stuck)
        sampler.draw(energy, range(20), seed=0)
    assert sampler.record["r_hat"] > 1.1
    assert len([record for record in caplog.records if "R-hat" in record.message]) == 1
    # the temperature of this schedule never stays at one, so that no step is stationary
    published = eb.AnnealedLangevin()
    assert ChainTrace.steps_of(published.stationary) == set()
    assert ChainTrace.steps_of(range(500, 1000)) == set(range(500, 1000, 5))


@pytest.mark.parametrize("energy", [300.0, float("inf"), float("nan")])
def test_equal_energies_give_no_r_hat_and_no_effective_size(energy, caplog):
    trace = ChainTrace()
    for _ in range(100):
        trace.add(torch.full((4,), energy))
    assert trace.close() == {}
    assert "all equal or not finite" in caplog.text


def test_effective_sizes_are_those_of_an_autoregressive_process():
    trace = ChainTrace()
    x = normal(40)
    rho = 0.5
    g = generator(5)
    for _ in range(1000):
        x = rho * x + (1 - rho**2) ** 0.5 * torch.randn(40, generator=g, dtype=F64)
        trace.add(x)
    record = trace.close()
    time = (1 + rho) / (1 - rho)  # the number of draws that count as one independent draw
    assert record["ess_bulk"] == pytest.approx(40 * 1000 / time, rel=0.1)
    assert record["r_hat"] == pytest.approx((1 + time / 500) ** 0.5, abs=0.002)  # R-hat compares halves of 500 draws
