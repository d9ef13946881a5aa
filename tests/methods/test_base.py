"""Tests of all methods: what each step trains, the direction of a few steps, and bit-equal resumed runs."""

import pytest
import torch

import eblvm_lit as eb
from cases import H_DIM, V_DIM, make_fitted_normal, randomise
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.networks.smooth_mlp import SmoothMLP
from eblvm_lit.networks.vector_field import VectorField
from eblvm_lit.noise_distributions.normal import FittedNormal
from eblvm_lit.samplers.chains.gibbs_chain import GibbsChain
from eblvm_lit.samplers.chains.langevin_chain import LangevinChain
from helpers import iterating
from helpers.shell import checkpoint, curves, evaluate, of_checkpoint, same_state, train

LANGEVIN = LangevinChain(n_steps=10, step_size=0.05)


def fitted(kind, divergence=eb.KL, **options):
    """Return a function that builds a method with a posterior of binary latents for an energy."""

    def make(energy):
        q = eb.BernoulliPosterior(v_dim=V_DIM, h_dim=energy.h_dim)
        parts = {} if divergence is None else {"posterior": q, "divergence": divergence(), "n_lower_steps": 2}
        return kind(energy=energy, optimizer=eb.Adam(lr=0.02), **parts, **options)

    return make


def alone(kind, **options):
    return lambda energy: kind(energy=energy, optimizer=eb.Adam(lr=0.02), **options)


def of_noise(kind, make=alone, **options):
    return lambda energy: make(kind, noise_distribution=make_fitted_normal(), **options)(energy)


def annealed(energy):
    chains = {"n_chains": 200, "step_size": 0.3, "temperature": 3.0, "n_falling": 4, "n_held": 4}
    method = alone(eb.AnnealedLikelihood, objective=eb.DSM(noise_std=0.1), **chains)(energy).double()
    method.start(torch.randn(200, V_DIM), keyed_generator(0))
    return method


def particles(energy):
    method = alone(eb.ParticleML, chain=GibbsChain(n_steps=1), n_chains=200)(energy)
    method.keep_examples(100)
    return method.double()


MODELS = {
    "score_matching": alone(eb.ScoreMatching, objective=eb.SM()),
    "bism": fitted(eb.BiSM, objective=eb.DSM(noise_std=0.3), n_unroll=2),
    "vages": fitted(eb.VaGES, objective=eb.DSM(noise_std=0.3), score=eb.VariationalScore(n_particles=5)),
    "cd": alone(eb.ContrastiveDivergence, chain=GibbsChain(n_steps=1)),
    "cd-langevin": alone(eb.ContrastiveDivergence, chain=LANGEVIN),
    "pcd": alone(eb.ContrastiveDivergence, chain=GibbsChain(n_steps=1), n_chains=100),
    "jarzynski": alone(eb.Jarzynski, chain=GibbsChain(n_steps=1), n_chains=200),
    "annealed_likelihood": annealed,
    "particle_ml": particles,
    "nce": of_noise(eb.NCE),
    "vnce": of_noise(eb.VNCE, fitted),
    "snl": of_noise(eb.SNL, n_proposals=10),
    "vsnl": of_noise(eb.VSNL, fitted, n_proposals=10),
    "ed": alone(eb.EnergyDiscrepancy),
    "ed_latent": fitted(eb.LatentEnergyDiscrepancy),
}
OTHERS = {
    "fisher_critic": alone(eb.FisherCritic, critic=VectorField(v_dim=V_DIM)),
    "vages_fisher": fitted(eb.VaGESFisher, critic=VectorField(v_dim=V_DIM)),
    "lebm": lambda _: eb.LEBM(
        energy=eb.LatentPriorEnergy(
            h_dim=H_DIM, generator=SmoothMLP(sizes=[H_DIM, 5, V_DIM]), prior=SmoothMLP(sizes=[H_DIM, 5, 1])
        ),
        prior_langevin=eb.Langevin(n_steps=3, step_size=0.1),
        posterior_langevin=eb.Langevin(n_steps=2, step_size=0.01),
        optimizer=eb.Adam(lr=0.02),
    ),
}


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_each_step_changes_only_the_parameters_of_its_group_with_both_backends(name, float64):
    method = {**MODELS, **OTHERS}[name](randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))).double()
    v = torch.randn(6, V_DIM)
    noise = method.draw_noise(v, keyed_generator(0))
    start = iterating.start(method)
    start = start._replace(indices=torch.arange(6)) if name == "particle_ml" else start
    steps = iterating.found(method, start, v, noise)
    with plain_autograd():
        plain = iterating.found(method, start, v, noise)
    assert {key: len(made) for key, made in steps.items()} == {
        key: method.n_lower_steps if key == "lower" else 1 for key in method.groups
    }
    for key, group in method.groups.items():
        for one, other in zip(steps[key], plain[key], strict=True):
            torch.testing.assert_close(one.grads, other.grads)
            torch.testing.assert_close(one.loss, other.loss)
        after, _ = iterating.run(method, start, v, noise, only=[key])
        own = {(group.network, parameter) for parameter in group.of(start.params[group.network])}
        moved = {(n, p) for n, ps in after.params.items() for p in ps if not torch.equal(ps[p], start.params[n][p])}
        assert moved <= own
        # The last bias of the prior only shifts f by a constant, which cancels in differences. It is therefore not
        # moved.
        assert {parameter for _, parameter in own - moved} <= {"prior.layers.2.bias"}
    pure, _ = iterating.run(method, start, v, noise)
    # This iteration works in place, and writes the same values into the method's own tensors.
    method.run_iteration(start, v, noise)
    for name, params in iterating.start(method).params.items():
        torch.testing.assert_close(params, pure.params[name])
    torch.testing.assert_close(iterating.start(method).buffers, pure.buffers)


@pytest.mark.parametrize("start", [-0.6, 0.6])
@pytest.mark.parametrize("name", MODELS)
def test_a_few_steps_move_a_wrong_scale_towards_that_of_the_data(name, start, float64):
    energy = (eb.GaussianLatentModel if name == "particle_ml" else eb.GRBM)(v_dim=V_DIM, h_dim=2)
    with torch.no_grad():
        for p in energy.parameters():
            p.mul_(0.01)
        energy.log_std.fill_(start)
    method = MODELS[name](energy).double()
    if hasattr(method, "proposal_log_z"):
        with torch.no_grad():
            method.model.log_z.copy_(method.proposal_log_z(torch.zeros(100, V_DIM), 1))
    state = iterating.start(method)._replace(indices=torch.arange(100))
    for i in range(14):
        v = torch.randn(100, V_DIM, generator=keyed_generator(0, "data", i))
        method.run_iteration(state, v, method.draw_noise(v, keyed_generator(0, i)))
    assert (energy.log_std.abs() < abs(start) - 0.1).all()


class JointOnly(eb.Energy):
    """A joint energy E(v, h) without any closed form."""

    event_shape = (V_DIM,)
    h_dim = H_DIM
    continuous = True

    def energy(self, v, h): ...


@pytest.mark.parametrize(
    ("name", "energy", "words"),
    [
        ("score_matching", lambda: JointOnly(), "no tractable marginal"),
        ("nce", lambda: JointOnly(), "method=vnce"),
        ("cd", lambda: JointOnly(), "chain=langevin"),
        ("bism", lambda: eb.MLPEnergy(v_dim=V_DIM), "method=mdsm"),
        ("vages", lambda: eb.GaussianLatentModel(v_dim=V_DIM, h_dim=H_DIM), "posterior"),
    ],
)
def test_an_energy_that_a_method_cannot_train_is_refused_with_what_can(name, energy, words):
    with pytest.raises(eb.ConfigError, match=words):
        {**MODELS, **OTHERS}[name](energy())


SHORT = (
    *("trainer.max_steps=10", "n_validations=2", "callbacks.checkpoints.every=4", "optimizer.lr=0.01"),
    *("final_lr=1e-4", "seed=3", "test_checkpoint=last"),
)
STOP = "+callbacks.crash._target_=helpers.stopping.CrashAt"
CRASH = ("allow_packages=[helpers]", STOP, "+callbacks.crash.iteration=9")
FITTED = "noise_distribution=fitted_normal"
# The options of a run, and the buffers that its next iteration needs besides the parameters.
KEPT = {
    "pcd": (("method=pcd",), {"chain_started", "chain_h"}),
    "jarzynski": (("method=jarzynski",), {"chain_started", "chain_v", "chain_volume"}),
    "annealed_likelihood": (
        ("method=annealed_likelihood", "method.n_chains=4", "method.n_falling=3", "method.n_held=2"),
        {"chain_v", "chain_age"},
    ),
    "particle_ml": (
        ("method=particle_ml", "model=gaussian", "chain=langevin", "chain.n_steps=2", "chain.n_latent_steps=2"),
        {"chain_started", "chain_v", "chain_h", "latents"},
    ),
    "vsnl": (("method=vsnl", "model=gaussian", "method.n_proposals=2", FITTED), {"noise_distribution.fitted"}),
    "vages_fisher": (
        ("method=vages_fisher", "data=standard_normal", "model=perturbed_grbm", "data.v_dim=6", "data.batch_size=50"),
        set(),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_resumed_run_is_bit_equal_to_an_uninterrupted_one(name, tmp_path, monkeypatch):
    options, kept = KEPT[name]
    train(tmp_path / "straight", *SHORT, *options)
    with pytest.raises(RuntimeError, match="crashed on purpose"):
        train(tmp_path / "crashed", *SHORT, *options, *CRASH)
    assert checkpoint(tmp_path / "crashed")["global_step"] == 8
    resumed = train(tmp_path / "resumed", *SHORT, *options, f"ckpt={tmp_path}/crashed/checkpoints/last.ckpt")
    assert same_state(tmp_path / "resumed", tmp_path / "straight")
    assert curves(tmp_path / "resumed") == curves(tmp_path / "straight")
    state = checkpoint(tmp_path / "resumed")["state_dict"]
    assert kept == {x for x in state if x.startswith("chain_") or x in ("latents", "noise_distribution.fitted")}
    # The checkpoint contains the fitted noise distribution, which must not be fitted again. With this patch, a second
    # fit would be an error.
    monkeypatch.setattr(FittedNormal, "fit", None)
    again = evaluate(tmp_path / "again", tmp_path / "resumed" / "checkpoints" / "last.ckpt")
    assert again == of_checkpoint(resumed)


@pytest.mark.parametrize("name", ["score_matching", "bism", "vages", "annealed_likelihood", "fisher_critic"])
def test_methods_that_need_gradients_by_v_refuse_bits(name):
    with pytest.raises(eb.ConfigError, match=r"needs gradients with respect to v.*BernoulliRBM are bits.*method=pcd"):
        {**MODELS, **OTHERS}[name](eb.BernoulliRBM(v_dim=V_DIM, h_dim=H_DIM))
