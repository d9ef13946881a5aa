"""Tables with one row for every energy, posterior, objective and other part of a method, with its closed forms.

Batteries of tests check identities for all rows. A new class needs one row in these tables; ``test_cases.py`` fails
without it. A row's builder is called inside a test, after the test has set the dtype and the seed. Expectations are
weighted sums over nodes, never means of samples, so that identities are exact up to rounding.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.distributions import Bernoulli, Distribution, Independent, Normal, register_kl

import eblvm_lit as eb
from eblvm_lit.core.noise_levels import NoiseRange
from eblvm_lit.energies.harmonium import DeepHarmonium
from eblvm_lit.energies.inner_product import InnerProductEnergy, InnerProductHarmonium, InnerProductLatentEnergy
from eblvm_lit.energies.noise_conditional import (
    NoiseConditionalEnergy,
    NoiseConditionalExactLatents,
    NoiseConditionalFreeEnergy,
)
from eblvm_lit.energies.spectral import JointSpectralEnergy
from eblvm_lit.methods.log_density.self_normalised import SelfNormalised
from eblvm_lit.networks.noise_conditional_mixer import NoiseConditionalMixer
from eblvm_lit.networks.smooth_mlp import SmoothMLP
from eblvm_lit.networks.transposed_conv import TransposedConv
from eblvm_lit.noise_distributions.independent_bits import FittedBernoulli
from eblvm_lit.noise_distributions.normal import FittedNormal, StandardNormal
from eblvm_lit.objectives.dual import Dual
from eblvm_lit.optimizers.late_start import LateStart
from eblvm_lit.optimizers.schedules import Constant, Cosine, Exponential, Step, Warmup
from eblvm_lit.posteriors.at_every_level import NoiseConditionalPosterior, PosteriorAtLevel
from eblvm_lit.posteriors.gaussian import EncoderPosterior, SpectralEncoderPosterior
from eblvm_lit.scores.particles import ExactParticles, RefinedParticles
from eblvm_lit.scores.variational import Biased, ControlledVaES, Dropped, Unbiased, VariationalFunction

V_DIM = 2
H_DIM = 3
IMAGE = (1, 8, 8)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row of a table: a name, which becomes the test's id, and a builder."""

    name: str
    make: Callable[..., Any]

    def __str__(self):
        return self.name


# --- nodes of exact expectations --------------------------------------------------------------------------


def product(values, d):
    """Return all tuples of d elements of ``values``, shape (len(values)^d, d)."""
    return torch.tensor(list(itertools.product(torch.as_tensor(values).tolist(), repeat=d)))


def hermite(n, d):
    """Return nodes (n^d, d) and weights (n^d,) of an expectation over N(0, I), exact up to degree 2n - 1."""
    x, w = np.polynomial.hermite_e.hermegauss(n)
    return product(x, d), product(w / w.sum(), d).prod(-1)


def binary(m):
    """Return all states of m bits, shape (2^m, m)."""
    return product([0.0, 1.0], m)


def randomise(module, scale=0.6):
    """Give every trainable parameter a random value, so that none is zero and no two are equal."""
    for p in module.parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p, std=scale)
    return module


def enumerated_free_energy(case, energy, v):
    """Compute F(v), shape (B,), only from values of E(v, h) at the row's nodes of h."""
    h, log_weight = case.nodes(energy)
    return -(log_weight.unsqueeze(-1) - energy.energy(v, h.unsqueeze(1).expand(-1, len(v), -1))).logsumexp(0)


# --- energies ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EnergyCase(Case):
    """An energy with its closed forms; if a field is None, the tests that need it are left out.

    formula(energy, x, y): E(x, y) of one x (d,) and one y (H,), written out term by term, as on paper.
    nodes(energy): Points h (S, H) and log-weights w (S,); sum_s exp(w_s) f(h_s) is the sum or integral of f over h.
    conditional(energy, v): The distribution p(h|v) as an object of torch.distributions.
    exact_posterior(energy): A posterior that equals p(h|v); None if no family of posteriors contains p(h|v).
    event_shape: The shape of v without the batch.
    binary: Whether the latents are bits.
    binary_visible: Whether v consists of bits, so that methods with a score refuse the energy.
    """

    event_shape: tuple[int, ...] = (V_DIM,)
    formula: Callable | None = None
    nodes: Callable | None = None
    conditional: Callable | None = None
    exact_posterior: Callable | None = None
    binary: bool = False
    binary_visible: bool = False


def exact_linear(q, weight, bias):
    with torch.no_grad():
        q.linear.weight.copy_(weight)
        q.linear.bias.copy_(bias)
    return q


def visible_terms(energy, x, y, coupling):
    """Compute the terms that the energies below have in common: the Gaussian of x, and the coupling of x and y."""
    std = energy.log_std.exp().expand(V_DIM)
    gaussian = sum((x[i] - energy.b[i]) ** 2 / (2 * std[i] ** 2) for i in range(V_DIM))
    return gaussian - sum(x[i] * coupling[i, j] * y[j] for i in range(V_DIM) for j in range(H_DIM))


def grbm_formula(energy, x, y):
    return visible_terms(energy, x, y, energy.coupling()) - energy.c @ y


def coupled_formula(energy, x, y):
    (first, second, third) = energy.pairs.tolist()
    return grbm_formula(energy, x, y) - first * y[0] * y[1] - second * y[0] * y[2] - third * y[1] * y[2]


def gaussian_formula(energy, x, y):
    return visible_terms(energy, x, y, energy.W) + sum((y[j] - energy.c[j]) ** 2 / 2 for j in range(H_DIM))


def grbm_case(name, **options):
    def exact_posterior(energy):
        return exact_linear(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM), energy.coupling().T, energy.c)

    return EnergyCase(
        name=name,
        make=lambda: randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM, **options)),
        formula=grbm_formula,
        nodes=lambda energy: (binary(H_DIM), torch.zeros(2**H_DIM)),
        conditional=lambda energy, v: bernoulli(energy.latent_logits(v)),
        exact_posterior=exact_posterior,
        binary=True,
    )


def rbm_formula(energy, x, y):
    alpha = energy.v_offset
    pairs = sum((x[i] - alpha[i]) * energy.W[i, j] * (y[j] - 0.5) for i in range(V_DIM) for j in range(H_DIM))
    return -pairs - energy.b @ x - energy.c @ y


def dbm_formula(energy, x, y):
    """The energy of a DBM with two latents in the first layer, and one in the second."""
    alpha = energy.v_offset
    first = sum((x[i] - alpha[i]) * energy.W1[i, j] * (y[j] - 0.5) for i in range(V_DIM) for j in range(2))
    second = sum((y[j] - 0.5) * energy.W2[j, 0] * (y[2] - 0.5) for j in range(2))
    return -first - second - energy.b @ x - energy.c1 @ y[:2] - energy.c2 @ y[2:]


def make_binary(energy):
    """Give an energy of bits random parameters, and offsets other than 1/2."""
    energy.fit([torch.tensor([[1.0, 0.0]]).expand(3, -1)[:, :V_DIM]])
    return randomise(energy, 0.9)


def exact_rbm_posterior(energy):
    posterior = eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM)
    return exact_linear(posterior, energy.W.T, energy.c - energy.v_offset @ energy.W)


class Bits(Distribution):
    """A distribution of dependent bits; log_prob_of maps h (*L, B, H) to log-probabilities (*L, B)."""

    def __init__(self, log_prob_of):
        super().__init__(validate_args=False)
        self.log_prob = log_prob_of


@register_kl(Independent, Bits)
def kl_of_bits(q, p):
    h = binary(H_DIM).unsqueeze(1).expand(-1, q.batch_shape[0], -1)
    return (q.log_prob(h).exp() * (q.log_prob(h) - p.log_prob(h))).sum(0)


def coupled_bits(energy, v):
    """Return p(h|v) of a coupled GRBM, computed by its definition with a loop over pairs and a sum over all states."""

    def weight(h):
        total = (h * (energy.c + v @ energy.coupling())).sum(-1)
        for pair, (j, k) in zip(energy.pairs, itertools.combinations(range(H_DIM), 2), strict=True):
            total = total + pair * h[..., j] * h[..., k]
        return total

    return Bits(lambda h: weight(h) - weight(binary(H_DIM).unsqueeze(1)).logsumexp(0))


def coupled_case(name, **options):
    return EnergyCase(
        name=name,
        make=lambda: randomise(eb.CoupledGRBM(v_dim=V_DIM, h_dim=H_DIM, **options), 0.8),
        formula=coupled_formula,
        nodes=lambda energy: (binary(H_DIM), torch.zeros(2**H_DIM)),
        conditional=coupled_bits,
        binary=True,
    )


def bernoulli(logits):
    return Independent(Bernoulli(logits=logits, validate_args=False), 1, validate_args=False)


def normal(mean, std):
    return Independent(Normal(mean, std, validate_args=False), 1, validate_args=False)


def make_gaussian_latent():
    energy = eb.GaussianLatentModel(v_dim=V_DIM, h_dim=H_DIM, weight_scale=0.9)
    for p, scale in ((energy.b, 0.6), (energy.c, 0.6), (energy.log_std, 0.2)):
        torch.nn.init.normal_(p, std=scale)
    return energy


def gaussian_nodes(energy):
    x, w = hermite(24, H_DIM)
    return x, w.log() + 0.5 * x.square().sum(-1) + 0.5 * H_DIM * math.log(2 * math.pi)


def exact_gaussian_posterior(energy):
    return exact_linear(eb.LinearGaussianPosterior(v_dim=V_DIM, h_dim=H_DIM), energy.W.T, energy.c)


def latent_prior(generator):
    prior = SmoothMLP(sizes=[H_DIM, 5, 1])
    return randomise(eb.LatentPriorEnergy(h_dim=H_DIM, generator=generator, prior=prior, std=0.8), 0.5)


def tiny_resnet(**options):
    return eb.ResNet(v_shape=IMAGE, n_blocks=1, channels=4, **options)


def tiny_mlp():
    return eb.MLP(sizes=[V_DIM, 5, 4])


def deep_latent(network, **options):
    return eb.DeepLatentEnergy(network=network, h_dim=H_DIM, head_dim=6, **options)


def deep_vector():
    return randomise(eb.DeepVectorEnergy(v_dim=V_DIM, h_dim=H_DIM, head_dim=6, widths=[5, 4]), 0.4)


def joint_spectral():
    energy = JointSpectralEnergy(network=tiny_mlp(), h_dim=H_DIM, h_widths=[4, 4], output="identity")
    # The model is in eval mode, because in training mode each forward pass changes the spectral norms.
    return randomise(energy, 0.4).eval()


def energy_case(name, make, scale=0.4, event_shape=(V_DIM,)):
    """Return the row of an energy whose free energy, log Z and conditionals are not known in closed form."""
    return EnergyCase(name=name, make=lambda: randomise(make(), scale), event_shape=event_shape)


def at_every_level(n_inputs=V_DIM):
    """Return a joint energy of n_inputs - 1 noised coordinates and their noise level."""
    inner = eb.DeepVectorEnergy(v_dim=n_inputs, h_dim=H_DIM, head_dim=6, widths=[5, 4])
    return NoiseConditionalEnergy(energy=inner, v_shape=[n_inputs - 1], noise_range=NoiseRange(mean=0.3, std=1.4))


def grbm_at_every_level(n_inputs=V_DIM):
    """Return an energy with binary latents and a free energy, of n_inputs - 1 noised coordinates and their noise
    level."""
    inner = eb.GRBM(v_dim=n_inputs, h_dim=H_DIM)
    return NoiseConditionalFreeEnergy(energy=inner, v_shape=[n_inputs - 1], noise_range=NoiseRange(mean=0.3, std=1.4))


def harmonium(n_inputs=V_DIM, continuous=True):
    network = eb.MLP(sizes=[n_inputs, 5, 4])
    return DeepHarmonium(network=network, h_dim=H_DIM, continuous=continuous)


def harmonium_at_every_level(n_inputs=V_DIM, continuous=True):
    """Return an energy of n_inputs - 1 noised coordinates and their noise level, with latents of a known posterior."""
    levels = NoiseRange(mean=0.3, std=1.4)
    inner = harmonium(n_inputs, continuous)
    return NoiseConditionalExactLatents(energy=inner, v_shape=[n_inputs - 1], noise_range=levels)


NOISED = (17,)  # the shape of an image of 4 x 4 pixels with its noise level


def tiny_mixer():
    return NoiseConditionalMixer(
        v_shape=[1, 4, 4], width=4, dense_width=4, n_rounds=1, n_kept=2, fine_width=4, n_fine=1
    )


ENERGIES = [
    grbm_case("grbm-code"),
    grbm_case("grbm-paper", parametrisation="paper"),
    grbm_case("grbm-fixed-std", learn_std=False),
    replace(
        grbm_case("grbm-perturbed"),
        make=lambda: eb.PerturbedGRBM(v_dim=V_DIM, h_dim=H_DIM, perturbation=0.6, perturbation_seed=1),
    ),
    coupled_case("coupled-grbm"),
    coupled_case("coupled-grbm-paper", parametrisation="paper"),
    EnergyCase(
        name="bernoulli-rbm",
        make=lambda: make_binary(eb.BernoulliRBM(v_dim=V_DIM, h_dim=H_DIM)),
        formula=rbm_formula,
        nodes=lambda energy: (binary(H_DIM), torch.zeros(2**H_DIM)),
        conditional=lambda energy, v: bernoulli(energy.latent_logits(v)),
        exact_posterior=exact_rbm_posterior,
        binary=True,
        binary_visible=True,
    ),
    EnergyCase(
        name="deep-boltzmann",
        make=lambda: make_binary(eb.DeepBoltzmannMachine(v_dim=V_DIM, h_dim=H_DIM, h1_dim=2)),
        formula=dbm_formula,
        binary=True,
        binary_visible=True,
    ),
    energy_case("deep", lambda: deep_latent(tiny_mlp())),
    EnergyCase(name="deep-vector", make=deep_vector),
    energy_case("deep-image", lambda: deep_latent(tiny_resnet()), 0.3, IMAGE),
    EnergyCase(name="latent-prior", make=lambda: latent_prior(SmoothMLP(sizes=[H_DIM, 5, V_DIM]))),
    EnergyCase(
        name="latent-prior-image",
        make=lambda: latent_prior(TransposedConv(v_shape=IMAGE, h_dim=H_DIM, width=2)),
        event_shape=IMAGE,
    ),
    energy_case("noise-conditional", at_every_level),
    replace(energy_case("noise-conditional-grbm", grbm_at_every_level), binary=True),
    energy_case(
        "inner-product-latent", lambda: InnerProductLatentEnergy(network=tiny_mixer(), h_dim=H_DIM), 0.3, NOISED
    ),
    energy_case(
        "inner-product-harmonium", lambda: InnerProductHarmonium(network=tiny_mixer(), h_dim=H_DIM), 0.3, NOISED
    ),
    energy_case("harmonium", harmonium, 0.8),
    replace(energy_case("harmonium-bits", lambda: harmonium(continuous=False), 0.8), binary=True),
    energy_case("harmonium-at-every-level", harmonium_at_every_level, 0.8),
    energy_case("at-level-harmonium", lambda: harmonium_at_every_level(V_DIM + 1).at_level(0.5), 0.8),
    energy_case("at-level", lambda: at_every_level(V_DIM + 1).at_level(0.5)),
    replace(energy_case("at-level-grbm", lambda: grbm_at_every_level(V_DIM + 1).at_level(0.5)), binary=True),
    energy_case("deep-visible-terms", lambda: deep_latent(tiny_mlp(), visible_head="quadratic", reference_std=0.7)),
    EnergyCase(name="joint-spectral", make=joint_spectral),
    EnergyCase(
        name="quadrature", make=lambda: eb.QuadratureMarginal(energy=deep_vector(), half_width=10.0, n_nodes=11)
    ),
    EnergyCase(
        name="gaussian-latent",
        make=make_gaussian_latent,
        formula=gaussian_formula,
        nodes=gaussian_nodes,
        conditional=lambda energy, v: normal(energy.latent_mean(v), torch.ones(())),
        exact_posterior=exact_gaussian_posterior,
    ),
]

SUMMED = [case for case in ENERGIES if case.nodes]
INFERRED = [case for case in SUMMED if case.exact_posterior]


def deep_visible(kind, head):
    shape, network = {"vector": ((V_DIM,), tiny_mlp), "image": (IMAGE, tiny_resnet)}[kind]
    return energy_case(f"deep-{head}-{kind}", lambda: eb.DeepEnergy(network=network(), head=head), 0.3, shape)


def spectral(hidden):
    return eb.SpectralEnergy(network=tiny_mlp(), hidden=hidden, output="softplus").eval()


# The following energies have no latents. test_deep.py tests them, and the batteries over E(v, h) leave them out.
def visible_at_every_level():
    """Return an energy of V_DIM - 1 noised coordinates and their noise level, without latents."""
    inner = eb.MLPEnergy(v_dim=V_DIM, widths=[5, 4])
    return NoiseConditionalFreeEnergy(energy=inner, v_shape=[V_DIM - 1], noise_range=NoiseRange(mean=0.3, std=1.4))


def composed_of_two(kind):
    return kind(energies=[visible_at_every_level(), visible_at_every_level()])


def tilted():
    return eb.TiltedEnergy(energy=visible_at_every_level(), log_factor=lambda v, log_level: v.sin().sum(1))


VISIBLE_ENERGIES = [
    *(deep_visible(kind, head) for head in ("quadratic", "squared_norm") for kind in ("vector", "image")),
    energy_case("deep-reference", lambda: eb.DeepEnergy(network=tiny_mlp(), reference_std=0.7), 0.3),
    energy_case("inner-product", lambda: InnerProductEnergy(network=tiny_mixer()), 0.3, NOISED),
    energy_case("spectral-hidden", lambda: spectral(hidden=True)),
    energy_case("spectral-linear", lambda: spectral(hidden=False)),
    energy_case("mlp", lambda: eb.MLPEnergy(v_dim=V_DIM, widths=[5, 4])),
    energy_case("mlp-normal", lambda: eb.MLPEnergy(v_dim=V_DIM, widths=[5, 4], base_std=2.0)),
    energy_case("mlp-frequencies", lambda: eb.MLPEnergy(v_dim=V_DIM, widths=[5, 4], base_std=2.0, n_frequencies=3)),
    energy_case("product-at-every-level", lambda: composed_of_two(eb.ProductEnergy)),
    energy_case("mixture-at-every-level", lambda: composed_of_two(eb.MixtureEnergy)),
    energy_case("tilted-at-every-level", tilted),
]

# --- posteriors -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PosteriorCase(Case):
    """A posterior of latents h (B, 3) given v (B, *event_shape).

    distribution(q, v): The distribution q(h|v) as an object of torch.distributions.
    nodes(q, v): Noise (S, B, H) and weights (S, B) whose weighted samples have the exact moments of q(h|v) up to degree
    5, and all moments for binary h; None for a relaxation.
    """

    distribution: Callable
    nodes: Callable | None = None
    event_shape: tuple[int, ...] = (V_DIM,)


def normal_nodes(q, v):
    x, w = hermite(3, q.h_dim)
    return x.unsqueeze(1).expand(-1, len(v), -1), w.unsqueeze(1).expand(-1, len(v))


def bernoulli_nodes(q, v):
    h = binary(q.h_dim).unsqueeze(1)
    p = q.mean(v).detach()
    # h is 1 where u > 1 - p. The values h = 0 and h = 1 are therefore drawn by the middles of the two ranges of u.
    return h * (1 - p / 2) + (1 - h) * (1 - p) / 2, (h * p + (1 - h) * (1 - p)).prod(-1)


def bernoulli_case(name, temperature, nodes):
    return PosteriorCase(
        name=name,
        make=lambda: randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM, temperature=temperature)),
        distribution=lambda q, v: bernoulli(q.logits(v)),
        nodes=nodes,
    )


def gaussian_case(name, make, event_shape=(V_DIM,), scale=0.4):
    return PosteriorCase(
        name=name,
        make=lambda: randomise(make(), scale),
        event_shape=event_shape,
        distribution=lambda q, v: normal(q.distribution_params(v)[0], q.distribution_params(v)[1].exp()),
        nodes=normal_nodes,
    )


POSTERIORS = [
    bernoulli_case("bernoulli-relaxed", 0.1, None),
    bernoulli_case("bernoulli-binary", 0.0, bernoulli_nodes),
    gaussian_case("linear-gaussian", lambda: eb.LinearGaussianPosterior(v_dim=V_DIM, h_dim=H_DIM)),
    gaussian_case("mlp-gaussian", lambda: eb.NetworkGaussianPosterior(network=tiny_mlp(), h_dim=H_DIM)),
    gaussian_case(
        "conv-gaussian",
        lambda: eb.NetworkGaussianPosterior(network=eb.ConvEncoder(v_shape=IMAGE, widths=[2, 3, 4]), h_dim=H_DIM),
        event_shape=IMAGE,
        scale=0.2,
    ),
    gaussian_case(
        "noise-conditional",
        lambda: NoiseConditionalPosterior(
            posterior=eb.NetworkGaussianPosterior(network=tiny_mlp(), h_dim=H_DIM),
            noise_range=NoiseRange(mean=0.3, std=1.4),
        ),
    ),
    gaussian_case(
        "at-level",
        lambda: PosteriorAtLevel(eb.LinearGaussianPosterior(v_dim=V_DIM + 1, h_dim=H_DIM), 0.5),
    ),
    gaussian_case("encoder", lambda: EncoderPosterior(network=tiny_mlp(), h_dim=H_DIM)),
    gaussian_case("encoder-spectral", lambda: SpectralEncoderPosterior(network=tiny_mlp(), h_dim=H_DIM).eval()),
]


def fits(energy_case, posterior_case):
    """Return whether the energy and the posterior have the same kind of v, and both binary or both continuous
    latents."""
    same_v = energy_case.event_shape == posterior_case.event_shape
    return same_v and energy_case.binary == posterior_case.name.startswith("bernoulli")


PAIRS = [(e, q) for e in ENERGIES for q in POSTERIORS if fits(e, q)]

# --- divergences ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DivergenceCase(Case):
    """A divergence between q(h|v) and p(h|v), with its exact values.

    expected(p, q, free_energy): Its expectation (B,) over q for two distributions of h, given F(v); None if unknown.
    continuous: Whether it needs continuous latents.
    at_posterior(free_energy): Its value if q(h|v) = p(h|v), which is then the same for any noise.
    """

    expected: Callable | None = None
    continuous: bool = False
    at_posterior: Callable = lambda free_energy: free_energy


def expected_kl(p, q, free_energy):
    return torch.distributions.kl_divergence(q, p) + free_energy


def expected_fisher(p, q, free_energy):
    s = q.base_dist.scale / p.base_dist.scale
    gap = q.base_dist.loc - p.base_dist.loc
    return 0.5 * ((s - 1 / s) ** 2 + gap**2).sum(-1)  # This holds because the standard deviations of p are one.


def fisher_case(name, **options):
    exact = {"expected": expected_fisher, "continuous": True, "at_posterior": torch.zeros_like}
    return DivergenceCase(name=name, make=lambda: eb.Fisher(**options), **exact)


DIVERGENCES = [
    DivergenceCase(name="kl", make=eb.KL, expected=expected_kl),
    DivergenceCase(name="kl-3", make=lambda: eb.KL(n_particles=3), expected=expected_kl),
    DivergenceCase(name="iwae-1", make=lambda: eb.IWAE(n_particles=1), expected=expected_kl),
    DivergenceCase(name="iwae-5", make=lambda: eb.IWAE(n_particles=5)),
    fisher_case("fisher"),
    fisher_case("fisher-2", n_particles=2),
]

# --- scores -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScoreCase(Case):
    """An estimator of scores, which is exact if q(h|v) = p(h|v).

    make(energy_case, energy, v, noise): The function that estimates the score, with q(h|v) = p(h|v).
    classes: The classes that the row tests.
    of_real_latents: Whether the estimator can be used with continuous latents.
    """

    classes: tuple[type, ...]
    of_real_latents: bool = True


def make_bilevel(case, energy, v, noise):
    return eb.BilevelScore(energy, case.exact_posterior(energy), v, noise)


def make_controlled(case, energy, v, noise):
    q = case.exact_posterior(energy)
    h = q.rsample(v, noise).unsqueeze(0).detach()
    return lambda x: ControlledVaES()(energy, q, x, h)


def make_importance(case, energy, v, noise):
    return eb.ImportanceScore(energy, case.nodes(energy)[0].unsqueeze(1).expand(-1, len(v), -1))


SCORES = [
    ScoreCase(
        name="exact",
        classes=(eb.Exact, eb.ExactScore),
        make=lambda case, energy, v, noise: eb.Exact().function(energy, None, v, None),
    ),
    ScoreCase(name="bilevel", classes=(eb.BilevelScore,), make=make_bilevel),
    ScoreCase(
        name="variational",
        classes=(
            *(eb.VariationalScore, VariationalFunction, eb.VaES, ControlledVaES, Unbiased, Biased, Dropped),
            *(eb.PosteriorParticles, RefinedParticles, ExactParticles),
        ),
        make=make_controlled,
    ),
    ScoreCase(
        name="importance", classes=(eb.Importance, eb.ImportanceScore), make=make_importance, of_real_latents=False
    ),
]

# --- objectives -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ObjectiveCase(Case):
    """An objective with its exact expectations.

    nodes(objective, d): Noise (S, ...) and weights (S,) for one example of shape (d,), which give the exact expectation
    of polynomials of degree at most 5.
    gaussian(objective, P, mu, m, S): The exact expectation for data N(m, S) and the score -P (x - mu).
    precision(objective): The P that minimises the expectation for data N(0, 1).
    """

    nodes: Callable
    gaussian: Callable
    precision: Callable


def gaussian_sm(objective, P, mu, m, S):
    return 0.5 * torch.trace(P @ S @ P) + 0.5 * (P @ (m - mu)).square().sum() - torch.trace(P)


def gaussian_dsm(objective, P, mu, m, S):
    noised = S + objective.noise_std**2 * torch.eye(len(m))
    return gaussian_sm(objective, P, mu, m, noised) + 0.5 * len(m) / objective.noise_std**2


def gaussian_mdsm(objective, P, mu, m, S):
    total = 0.0
    for sigma in mdsm_levels(objective):
        noised = S + sigma**2 * torch.eye(len(m))
        square = 0.5 * torch.trace(P @ noised @ P) + 0.5 * (P @ (m - mu)).square().sum()
        total += square / sigma**2 - torch.trace(P) / objective.sigma0**2 + 0.5 * len(m) / objective.sigma0**4
    return total / 3


def mdsm_levels(objective):
    low = objective.sigma_min
    high = objective.sigma_max
    return [low, (low + high) / 2 if objective.ladder == "linear" else math.sqrt(low * high), high]


def mdsm_nodes(objective, d):
    (eps, w) = hermite(3, d)
    sigma = torch.tensor(mdsm_levels(objective))
    return {"eps": eps.repeat(3, 1), "sigma": sigma.repeat_interleave(len(eps))}, w.repeat(3) / 3


def mdsm_precision(objective):
    return 3 / objective.sigma0**2 / sum(1 + 1 / sigma**2 for sigma in mdsm_levels(objective))


def hermite_nodes(name):
    def nodes(objective, d):
        x, w = hermite(3, d)
        return {name: x}, w

    return nodes


def rademacher_nodes(objective, d):
    return {"u": product([-1.0, 1.0], d)}, torch.full((2**d,), 0.5**d)


def sm_case(name, make, nodes):
    return ObjectiveCase(name=name, make=make, nodes=nodes, gaussian=gaussian_sm, precision=lambda objective: 1.0)


def mdsm_case(ladder):
    return ObjectiveCase(
        name=f"mdsm-{ladder}",
        make=lambda: eb.MDSM(sigma_min=0.2, sigma_max=0.4, sigma0=0.3, ladder=ladder),
        nodes=mdsm_nodes,
        gaussian=gaussian_mdsm,
        precision=mdsm_precision,
    )


OBJECTIVES = [
    sm_case("sm", eb.SM, lambda objective, d: ({}, torch.ones(1))),
    sm_case("ssm-rademacher", eb.SSM, rademacher_nodes),
    sm_case("ssm-gaussian", lambda: eb.SSM(projection="gaussian"), hermite_nodes("u")),
    sm_case("ssm-projected-rademacher", lambda: eb.SSM(norm="projected"), rademacher_nodes),
    sm_case("ssm-projected-gaussian", lambda: eb.SSM(projection="gaussian", norm="projected"), hermite_nodes("u")),
    ObjectiveCase(
        name="dsm",
        make=lambda: eb.DSM(noise_std=0.3),
        nodes=hermite_nodes("eps"),
        gaussian=gaussian_dsm,
        precision=lambda objective: 1 / (1 + objective.noise_std**2),
    ),
    mdsm_case("linear"),
    mdsm_case("geometric"),
]

# The objective of energies that know the noise level. It is tested in test_dual.py, because its score has one
# coordinate more.
LEVEL_OBJECTIVES = [Case(name="dual", make=lambda: Dual(noise_range=NoiseRange(smallest=0.01)))]

# Objectives that are sums over pairs of examples: test_ksd.py tests them, because the batteries need a loss per
# example.
PAIRED_OBJECTIVES = [
    Case(name="ksd", make=lambda: eb.KSD(bandwidth=0.7)),
    Case(name="ksd-one-sided", make=lambda: eb.KSD(bandwidth=0.7, pairs="one_sided")),
]

# --- noise_distributions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NoiseDistributionCase(Case):
    """A noise distribution of v (B, 2), with the same distribution in torch.

    truth(p_n): The same distribution as an object of torch.distributions.
    """

    truth: Callable
    fitted: bool = False


def make_fitted_normal():
    p_n = FittedNormal()
    p_n.prepare((V_DIM,))
    p_n.fit([torch.randn(50, V_DIM) @ torch.tensor([[1.0, 0.5], [0.0, 2.0]]) + torch.tensor([1.0, -0.5])])
    return p_n


def make_fitted_bernoulli():
    p_n = FittedBernoulli()
    p_n.prepare((V_DIM,))
    p_n.fit([torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]).repeat(4, 1)])
    return p_n


def fitted_truth(p_n):
    scale_tril = torch.linalg.cholesky(p_n.axes @ torch.diag(p_n.std**2) @ p_n.axes.T)
    return torch.distributions.MultivariateNormal(p_n.mean, scale_tril=scale_tril)


NOISE_DISTRIBUTIONS = [
    NoiseDistributionCase(
        name="standard-normal",
        make=lambda: StandardNormal(),
        truth=lambda p_n: torch.distributions.MultivariateNormal(torch.zeros(V_DIM), torch.eye(V_DIM)),
    ),
    NoiseDistributionCase(name="fitted-normal", make=make_fitted_normal, truth=fitted_truth, fitted=True),
    NoiseDistributionCase(
        name="fitted-bernoulli",
        make=make_fitted_bernoulli,
        truth=lambda p_n: Independent(Bernoulli(p_n.mean), 1),
        fitted=True,
    ),
]

# --- log-densities, and losses of them ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LogDensityCase(Case):
    """A log-density that methods can use.

    make(energy_case, energy): The log-density, with q(h|v) = p(h|v) if it has a posterior.
    classes: The classes that the row tests.
    of: The rows of the energies for which it can be computed.
    """

    classes: tuple[type, ...]
    of: list[EnergyCase]


def bound_case(name, **options):
    def make(case, energy):
        return eb.LogDensityBound(posterior=case.exact_posterior(energy), divergence=eb.KL(), **options)

    return LogDensityCase(name=name, classes=(eb.LogDensityBound,), make=make, of=INFERRED)


LOG_DENSITIES = [
    LogDensityCase(
        name="exact", classes=(eb.ExactLogDensity,), make=lambda case, energy: eb.ExactLogDensity(), of=SUMMED
    ),
    bound_case("bound"),
    bound_case("bound-relaxed", relaxed=True),
    bound_case("bound-at-data", n_particles=3, n_at_data=4, n_lower_steps=0),
]


@dataclass(frozen=True, kw_only=True)
class DensityLossCase(Case):
    """A loss that is a function of log-densities.

    make(kind, energy, **options): A method of the class ``kind``, which is one of the first two in ``classes``.
    classes: The class that takes a log-density, and the class that takes the arguments of a posterior's bound instead.
    preset: The options of the bound that the second class sets.
    """

    classes: tuple[type, ...]
    preset: Callable[[int], dict[str, Any]] = lambda n: {}


def self_normalised_case(name, *classes, preset=lambda n: {}, **options):
    def make(kind, energy, **others):
        p_n = make_fitted_bernoulli() if energy.binary_visible else StandardNormal()
        parts = {"noise_distribution": p_n, "optimizer": eb.SGD(lr=0.1)}
        method = kind(energy=energy, **parts, **options, **others)
        torch.nn.init.constant_(method.model.log_z, 0.4)
        return method

    return DensityLossCase(name=name, classes=(*classes, SelfNormalised), make=make, preset=preset)


def discrepancy_case(name, **options):
    def make(kind, energy, **others):
        return kind(energy=energy, optimizer=eb.SGD(lr=0.1), noise_std=0.7, n_negatives=3, **options, **others)

    classes = (eb.EnergyDiscrepancy, eb.LatentEnergyDiscrepancy)
    return DensityLossCase(name=name, classes=classes, make=make, preset=lambda n: {"n_at_data": n})


DENSITY_LOSSES = [
    self_normalised_case("nce", eb.NCE, eb.VNCE, preset=lambda n: {"relaxed": True}),
    self_normalised_case("nce-2", eb.NCE, eb.VNCE, preset=lambda n: {"relaxed": True}, nu=2),
    self_normalised_case("snl", eb.SNL, eb.VSNL, n_proposals=2),
    discrepancy_case("ed"),
    discrepancy_case("ed-0", w=0.0),
]

# --- hypergradients ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HypergradientCase(Case):
    """A hypergradient on a quadratic lower problem with Hessian H and descent steps of size alpha.

    n_steps: The number of descent steps of phi before J is evaluated.
    inverse(H, alpha): The matrix by which the hypergradient approximates the inverse of H.
    make(alpha): The hypergradient.
    """

    n_steps: int
    inverse: Callable


def series(n):
    """Return the function that computes n terms of the Neumann series of H^-1, alpha sum_{i<n} (I - alpha H)^i."""

    def inverse(H, alpha):
        contraction = torch.eye(len(H)) - alpha * H
        return alpha * sum((torch.linalg.matrix_power(contraction, i) for i in range(n)), torch.zeros_like(H))

    return inverse


def exact_inverse(H, alpha):
    return H.inverse()


def damped_inverse(H, alpha):
    return (H + 0.3 * torch.eye(len(H))).inverse()


def hyper_case(name, make, inverse, n_steps=0):
    return HypergradientCase(name=name, make=make, n_steps=n_steps, inverse=inverse)


def unroll_case(n, plain):
    def make(alpha):
        return eb.Unroll(n_unroll=n, descent="plain", step_size=alpha) if plain else eb.Unroll(n_unroll=n)

    return hyper_case(f"unroll-{'plain' if plain else 'live'}-{n}", make, series(n), n_steps=n)


def neumann_case(n):
    return hyper_case(
        f"implicit-neumann-{n}", lambda a: eb.Implicit(n_terms=n, solver="neumann", step_size=a), series(n)
    )


def warm(**options):
    return eb.Warm(curvature="hessian", preconditioner="none", **options)


HYPERGRADIENTS = [
    *(unroll_case(n, plain=True) for n in (0, 1, 2, 5)),
    *(unroll_case(n, plain=False) for n in (0, 1, 3)),
    hyper_case("implicit-cg-5", lambda alpha: eb.Implicit(n_terms=5), exact_inverse),
    # the lower problem has 5 dimensions, so that 12 iterations of CG are exact
    hyper_case("implicit-cg-12", lambda alpha: eb.Implicit(n_terms=12), exact_inverse),
    hyper_case("implicit-cg-damped", lambda alpha: eb.Implicit(n_terms=5, damping=0.3), damped_inverse),
    *(neumann_case(n) for n in (1, 4)),
    hyper_case("warm-cg-5", lambda alpha: warm(n_steps=5), exact_inverse),
    hyper_case("warm-cg-damped", lambda alpha: warm(n_steps=5, damping=0.3), damped_inverse),
    hyper_case("warm-descent-1", lambda alpha: warm(n_steps=1, step_size=alpha), series(1)),
    hyper_case("warm-descent-4", lambda alpha: warm(n_steps=4, step_size=alpha), series(4)),
    # Finite differences are exact here, because G is quadratic.
    hyper_case("finite-difference", lambda alpha: eb.FiniteDifference(adjoint=eb.Implicit(n_terms=5)), exact_inverse),
]

# Hypergradients that do not replace the inverse of H by a fixed matrix; test_fixed_point.py and test_warm.py test them.
OTHER_HYPERGRADIENTS = [
    Case(name="fixed-point", make=lambda alpha: eb.FixedPoint()),
    Case(name="adam-adjoint", make=lambda alpha: eb.AdamAdjoint(scale=alpha)),
    Case(name="penalty", make=lambda alpha: eb.Penalty(step_size=alpha, preconditioner="none")),
]

# --- optimizers and schedules -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TwinCase(Case):
    """An optimizer or a schedule that torch also has; twin(...) builds torch's version."""

    twin: Callable


def twin_case(name, make, twin):
    return TwinCase(name=name, make=make, twin=twin)


def adam_case(name, **options):
    return twin_case(name, lambda: eb.Adam(lr=0.05, **options), lambda ps: torch.optim.Adam(ps, lr=0.05, **options))


class LateTwin(torch.optim.Adam):
    """Torch's Adam, where the last parameter has no gradient in the first step."""

    def step(self):
        last = self.param_groups[0]["params"][-1]
        if not self.state:
            last.grad = None
        super().step()


OPTIMIZERS = [
    twin_case("sgd", lambda: eb.SGD(lr=0.05), lambda ps: torch.optim.SGD(ps, lr=0.05)),
    adam_case("adam", betas=(0.9, 0.95)),
    adam_case("adam-decay", betas=(0.0, 0.9), weight_decay=0.1, eps=1e-3),
    twin_case(
        "late", lambda: LateStart(rule=eb.Adam(lr=0.05), late="y"), lambda ps: LateTwin(ps, lr=0.05, betas=(0.9, 0.95))
    ),
]

lr_scheduler = torch.optim.lr_scheduler


def warmed_up(o, total):
    linear = lr_scheduler.LinearLR(o, start_factor=1 / 5, total_iters=4)
    return lr_scheduler.ChainedScheduler([linear, lr_scheduler.ExponentialLR(o, gamma=0.9)])


SCHEDULES = [
    twin_case("constant", Constant, lambda o, total: lr_scheduler.ConstantLR(o, factor=1.0)),
    twin_case(
        "cosine",
        lambda: Cosine(floor=0.01),
        lambda o, total: lr_scheduler.CosineAnnealingLR(o, T_max=total, eta_min=0.01),
    ),
    twin_case("step", lambda: Step(factor=0.5), lambda o, total: lr_scheduler.StepLR(o, total // 6, gamma=0.5)),
    twin_case(
        "exponential", lambda: Exponential(factor=0.9), lambda o, total: lr_scheduler.ExponentialLR(o, gamma=0.9)
    ),
    twin_case(
        "exponential-every-4",
        lambda: Exponential(factor=0.9, every=4),
        lambda o, total: lr_scheduler.StepLR(o, 4, gamma=0.9),
    ),
    twin_case("warmup", lambda: Warmup(n_iterations=5, schedule=Exponential(factor=0.9)), warmed_up),
]


# --- dynamics ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DynamicsCase(Case):
    """Dynamics whose chains converge to the model's distribution if its modes are not separated.

    across: Builds the same dynamics with more steps, which also find the weights of separated modes; None if no number
    of steps does.
    """

    across: Callable | None = None


def parallel_tempering(n_steps):
    return eb.ParallelTempering(n_steps=n_steps, step_size=0.25, temperature=30.0, n_temperatures=4)


def diffusive_gibbs(n_sweeps):
    return eb.DiffusiveGibbs(n_sweeps=n_sweeps, noise_max=2.0, noise_min=0.5, n_levels=3, n_moves=1, step_size=0.4)


DYNAMICS = [
    DynamicsCase(
        name="AnnealedLangevin",
        make=lambda: eb.AnnealedLangevin(
            step_size=0.15, temperature=1.0, n_hot=400, n_falling=0, n_cold=0, denoise_std=0.0
        ),
    ),
    DynamicsCase(name="PlainLangevin", make=lambda: eb.Langevin(n_steps=400, step_size=0.0225)),
    DynamicsCase(name="Gibbs", make=lambda: eb.Gibbs(n_steps=60)),
    DynamicsCase(name="GibbsLangevin", make=lambda: eb.GibbsLangevin(n_steps=80, n_moves=3, step_size=0.7)),
    DynamicsCase(name="ParallelTempering", make=lambda: parallel_tempering(60), across=lambda: parallel_tempering(150)),
    DynamicsCase(name="DiffusiveGibbs", make=lambda: diffusive_gibbs(25), across=lambda: diffusive_gibbs(150)),
]
