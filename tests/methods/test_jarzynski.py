"""Tests of Jarzynski's weighted chains: log Z and expectations along a run, density ratios of steps, and resampling."""

import itertools
import math

import pytest
import torch

import eblvm_lit as eb
from cases import V_DIM, make_binary, make_gaussian_latent, randomise
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.methods.jarzynski import systematic
from eblvm_lit.samplers.chains.gibbs_chain import GibbsChain
from eblvm_lit.samplers.chains.langevin_chain import LangevinChain
from helpers import iterating
from helpers.models import LatentOnly
from helpers.shell import train

pytestmark = pytest.mark.usefixtures("float64")
N = 4000


class Joint(LatentOnly):
    """The linear-Gaussian model without its closed forms."""

    continuous = True


class Bowl(eb.VisibleEnergy):
    """The energy of N(0, 1) without its constant."""

    event_shape = (1,)

    def __init__(self):
        super().__init__()
        self.log_std = torch.nn.Parameter(torch.tensor(0.0))

    def free_energy(self, v):
        return 0.5 * (v * (-self.log_std).exp()).square().sum(-1)


def by_quadrature(energy, half_width=12.0, n=161):
    axis = torch.linspace(-half_width, half_width, n)
    return (-energy.free_energy(torch.cartesian_prod(axis, axis))).logsumexp(0) + 2 * (axis[1] - axis[0]).log()


# A function that builds a model, the chain for it, and a function that computes its exact log Z.
MODELS = {
    "gibbs of bits": (
        lambda: make_binary(eb.BernoulliRBM(v_dim=V_DIM, h_dim=3)),
        GibbsChain(n_steps=1),
        lambda energy: energy.log_partition(),
    ),
    "gibbs of layers": (
        lambda: make_binary(eb.DeepBoltzmannMachine(v_dim=V_DIM, h_dim=3, h1_dim=2)),
        GibbsChain(n_steps=2),
        lambda energy: energy.log_partition(),
    ),
    "gibbs": (
        lambda: randomise(eb.GRBM(v_dim=V_DIM, h_dim=3), 0.7),
        GibbsChain(n_steps=1),
        lambda energy: energy.log_partition(),
    ),
    "langevin": (
        lambda: eb.MLPEnergy(v_dim=V_DIM, widths=[8, 8], base_std=1.5),
        LangevinChain(n_steps=2, step_size=0.3),
        by_quadrature,
    ),
    "joint langevin": (
        lambda: Joint(make_gaussian_latent()),
        LangevinChain(n_steps=2, step_size=0.2),
        lambda energy: energy.model.log_partition(),
    ),
}


STILL = 1e-300  # a learning rate so small that no parameter changes


def make(energy, chain, lr=STILL, **options):
    return eb.Jarzynski(energy=energy, chain=chain, optimizer=eb.SGD(lr=lr), **{"n_chains": N, **options})


def iterate(method, seed=0, v=None):
    eps = torch.randn(200, *method.event_shape, generator=keyed_generator(seed, "v"))
    data = (eps < 1).double() if method.energy.binary_visible else 1 + 0.5 * eps
    v = data if v is None else v
    return method.run_iteration(iterating.start(method), v, method.draw_noise(v, keyed_generator(seed)))


def walkers(method):
    return {name: method.get_buffer(f"chain_{name}") for name in method.chain.shapes(method.energy)}


def log_weights(method):
    """Return the log weights of the chains, and the energies at them."""
    x = walkers(method)
    joint = method.energy.energy
    energies = joint(x["v"], x["h"]) if "h" in x else method.energy.free_energy(x["v"])
    return (method.chain_volume - energies).detach(), energies


@pytest.mark.parametrize("name", MODELS)
def test_log_z_is_within_its_standard_error_along_a_run_in_which_it_moves_by_far_more(name):
    build, chain, exact = MODELS[name]
    energy = build()
    # the weights of walkers of bits differ so little that they are resampled in every iteration
    method = make(energy, chain, lr=0.15, resample_below=2.0 if energy.binary_visible else 0.9)
    v = torch.randn(1000, V_DIM)
    starts = []
    for seed in range(6):
        method.start(v, keyed_generator(seed))
        starts.append(method.log_partition())
    first = exact(method.energy).item()
    spread = torch.stack(starts).std().item()
    assert abs(sum(starts) / 6 - first) < 4 * spread / math.sqrt(6) < 0.1
    variance = spread**2
    n_resampled = 0
    for seed in range(40):
        truth = exact(method.energy)
        with plain_autograd():
            record = iterate(method, seed)
        # The delta method gives the variance that the weights have added since they were last equal.
        of_weights = 1 / record["model_effective_sample_size"] - 1 / N
        assert abs(record["model_log_z"] - truth) < 4 * (variance + of_weights).sqrt()
        variance = variance + of_weights * record["model_resampled"]
        n_resampled = n_resampled + record["model_resampled"]
    assert n_resampled > 1
    assert abs(truth - first) > 10 * variance.sqrt()


@pytest.mark.parametrize("name", MODELS)
def test_the_step_descends_the_weighted_estimate_of_the_negative_log_likelihood(name):
    build, chain, _ = MODELS[name]
    method = make(build(), chain, n_chains=50)
    v = torch.randn(30, V_DIM)
    method.start(v, keyed_generator(0))
    method.chain_volume += torch.randn(50)
    noise = method.draw_noise(v, keyed_generator(0))
    state = iterating.start(method)
    (found,) = iterating.found(method, state, v, noise)["model"]
    positive = method.chain.start(method.energy, v, noise["positive"])
    joint = "h" in method.chain.shapes(method.energy)
    of_data = method.energy.energy(v, positive["h"].detach()) if joint else method.energy.free_energy(v)
    A, of_walkers = log_weights(method)
    loss = of_data.mean() - (A.exp() / A.exp().sum() * of_walkers).sum()
    torch.testing.assert_close(found.grads, iterating.gradient_of(loss, method.energy))
    torch.testing.assert_close(found.loss, (of_data.mean() + A.exp().mean().log()).detach())


def test_weights_stay_equal_under_gibbs_sweeps_of_one_theta():
    build, chain, _ = MODELS["gibbs"]
    method = make(build(), chain)
    method.start(torch.randn(1000, V_DIM), keyed_generator(0))
    before = walkers(method)["v"].clone()
    for seed in range(5):
        record = iterate(method, seed)
    assert record["model_effective_sample_size"] == pytest.approx(N, rel=1e-9)
    assert (walkers(method)["v"] != before).all()


@pytest.mark.parametrize("resample_below", [0.0, 1.0])
def test_weights_correct_the_large_steps_of_unadjusted_langevin_dynamics(resample_below):
    # The step is so large that the chain's own stationary variance is 4/3 instead of 1.
    chain = LangevinChain(n_steps=2, step_size=1.0)
    method = make(Bowl(), chain, n_chains=40_000, resample_below=resample_below)
    method.start(torch.randn(1000, 1), keyed_generator(0))
    for seed in range(5):
        iterate(method, seed)
    (A, _) = log_weights(method)
    square = walkers(method)["v"].square().squeeze(1)
    w = A.softmax(0)
    error = (w.square() * (square - 1).square()).sum().sqrt()
    assert abs((w * square).sum() - 1) < 4 * error < 0.08
    assert abs(method.log_partition() - 0.5 * math.log(2 * math.pi)) < 4 * w.square().sum().sqrt() < 0.05
    assert (resample_below == 1) or abs(square.mean() - 1) > 20 * square.std() / 200


@pytest.mark.parametrize("name", ["langevin", "joint langevin"])
@pytest.mark.parametrize("noise_std", [None, 0.7])
def test_the_ratio_is_that_of_the_densities_of_the_steps(name, noise_std):
    energy = MODELS[name][0]().requires_grad_(False)
    chain = LangevinChain(n_steps=3, step_size=0.3, noise_std=noise_std)
    x = {key: torch.randn(5, *shape) for key, shape in chain.shapes(energy).items()}
    noise = chain.noise(energy, 5, x["v"], keyed_generator(0))
    path = [x]
    end, ratio = chain.weighted_run(energy, x, noise)
    one = LangevinChain(n_steps=1, step_size=0.3, noise_std=noise_std)
    s = noise_std or math.sqrt(0.3)
    for i in range(3):
        path.append(one.run(energy, path[-1], {key: eps[i : i + 1] for key, eps in noise.items()}))
    still = {key: torch.zeros_like(eps[:1]) for key, eps in noise.items()}

    def log_density(x, y):
        means = one.run(energy, x, still)
        return sum(torch.distributions.Normal(means[key], s).log_prob(y[key]).sum(1) for key in x)

    expected = sum(log_density(y, x) - log_density(x, y) for x, y in itertools.pairwise(path))
    torch.testing.assert_close(ratio, expected)
    torch.testing.assert_close(end, path[-1])


def test_resampled_chains_have_equal_weights_the_same_log_z_and_frequencies_by_weight():
    build, chain, _ = MODELS["gibbs"]
    method = make(build(), chain, resample_below=0.5)
    method.start(torch.randn(1000, V_DIM), keyed_generator(0))
    method.chain_volume += 3 * torch.randn(N)
    (A, _) = log_weights(method)
    log_z = method.log_partition()
    assert iterate(method)["model_resampled"] == 1
    torch.testing.assert_close(method.log_partition(), log_z)
    torch.testing.assert_close(log_weights(method)[0], log_z.expand(N))
    w = A.softmax(0)
    for u in (0.0, 0.5, 0.999):
        counts = torch.bincount(systematic(w, torch.tensor(u), N), minlength=N)
        assert ((counts - N * w).abs() < 1 + 1e-9).all()


def test_a_run_starts_its_chains_and_logs_the_error_of_log_z(tmp_path):
    run = train(tmp_path, "method=jarzynski", "method.n_chains=2000", "optimizer.lr=0.01")
    assert 0 < abs(run["test/learned_log_z_error"]) < 0.2
