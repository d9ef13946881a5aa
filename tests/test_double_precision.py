"""trainer.precision=64-true: every part, method, model, metric and figure computes in float64 where it is told to."""

import pytest
import torch

from cases import DIVERGENCES, ENERGIES, NOISE_DISTRIBUTIONS, OBJECTIVES, PAIRED_OBJECTIVES, PAIRS, VISIBLE_ENERGIES
from eblvm_lit.cli import run
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.scores.exact import ExactScore
from helpers.image_files import write_cifar10, write_mnist
from helpers.shell import checkpoint, configured
from helpers.short_runs import GAN, NARROW, SHORT_CHAINS, SMALL_DEEP, names

IMAGES = ("data=mnist", "data.val_size=2", "data.batch_size=4")
TINY_DEEP = (*IMAGES, *SMALL_DEEP, "model.h_dim=3")
ONE = "method.n_lower_steps=1"
# Every method and every model, in no more runs than there are methods.
RUNS = {
    **dict.fromkeys(("bism", "bissm", "ed", "ed_latent", "fisher_critic", "is_dsm", "is_ksd", "ksd", "nce", "pcd"), ()),
    **dict.fromkeys(("score_matching", "sm", "snl", "ssm", "vages_fisher", "vages_ksd", "vnce"), ()),
    "bidsm": (ONE, "model=coupled_grbm", "model.h_dim=3"),
    "cd": ("model=perturbed_grbm",),
    "dsm": ("model=grbm",),
    "particle_ml": ("model=gaussian",),
    "vages": (ONE, "model=latent_prior_toy"),
    "vages_dsm": (ONE, "model=deep_toy"),
    "vsnl": (ONE, "model=gaussian"),
    "bimdsm": (*TINY_DEEP, "model=deep"),
    "mdsm": (*IMAGES, *SMALL_DEEP, "model=deep_small"),
    "vages_mdsm": (*IMAGES, "data.size=8", "model=deep_mlp", "model.network.widths=[8]"),
    "lebm": (*IMAGES, "data.size=16", "model=latent_prior", "latent_langevin.n_steps=2"),
    "bidvl": (*IMAGES, *NARROW, "model=joint_conv", "loss=symmetric_joint"),
    "bidvl_resnet": (*GAN[1:], "data=cifar10", "model=spectral_resnet", "data.val_size=2", "data.batch_size=4"),
    "vae": (*IMAGES, *NARROW[1:]),
    "sngan": (*IMAGES, *NARROW[::2], "model=spectral_conv", "generator=conv"),
}
FIGURES = "callbacks.figures.figures"
DRAWN = {
    "points": ("samples.n_points=5", "samples.n_steps=2", "density.n_cells=20"),
    "images": (
        *("samples.n=4", "conditional.n=4", "interpolation.n=2", "interpolation.n_lines=2", "inpainting.n=2"),
        *("inpainting.n_completions=1", "tsne.n=4", "energies.n=4"),
    ),
}


def test_every_part_computes_in_the_type_of_what_it_is_given():
    """The default type stays float32."""
    found, generator = {}, torch.Generator()
    energies = {case.name: (case.make().double(), case) for case in (*ENERGIES, *VISIBLE_ENERGIES)}
    for name, (energy, case) in energies.items():
        v = torch.randn(4, *case.event_shape).double()
        found[name] = energy.energy(v, torch.rand(4, energy.h_dim).double())
        if isinstance(energy, MarginalEnergy):
            found[name, "score"] = energy.score(v)
    for energy_case, posterior_case in PAIRS:
        energy, q, v = (
            energies[energy_case.name][0],
            posterior_case.make().double(),
            torch.randn(4, *energy_case.event_shape),
        )
        for case in DIVERGENCES:
            if q.continuous or not case.continuous:
                divergence = case.make()
                noise = divergence.noise(q, v.double(), (), generator)
                found[case.name, energy_case.name, posterior_case.name] = divergence.loss(energy, q, v.double(), noise)
    v, score = torch.randn(4, 2).double(), ExactScore(GaussianLatentModel(v_dim=2, h_dim=3).double())
    for case in (*OBJECTIVES, *PAIRED_OBJECTIVES):
        objective = case.make()
        noise = objective.noise(v, (), generator)
        found[case.name] = objective.loss(score, objective.perturb(v, noise), noise)
    for case in NOISE_DISTRIBUTIONS:
        p_n = case.make().double()
        found[case.name] = p_n.log_prob(p_n.sample(p_n.noise((), v, generator)))
    assert {name: x.dtype for name, x in found.items() if x.dtype != torch.float64} == {}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_mnist(folder, n_test=7)
    write_cifar10(folder)
    return folder


def train(folder, files, monkeypatch, *overrides):
    """The final metrics of a short run in float64."""
    monkeypatch.setenv("EBLVM_DATA", str(files))
    short = ("debug=fast", "trainer.precision=64-true", "trainer.max_steps=2", "n_validations=1")
    found = run.train(configured(*short, *overrides, f"run_dir={folder}", f"cache_dir={folder}"))
    tensors = {name: x for name, x in checkpoint(folder)["state_dict"].items() if x.is_floating_point()}
    assert {name: x.dtype for name, x in tensors.items() if x.dtype != torch.float64} == {}
    assert torch.get_default_dtype() == torch.float32
    return found


def test_runs_have_every_method_and_every_model():
    assert RUNS.keys() == {*names("method")}
    chosen = {word.partition("=")[2] for words in RUNS.values() for word in words if word.startswith("model=")}
    assert chosen == {*names("model")}


@pytest.mark.parametrize("name", RUNS)
def test_every_method_and_model_trains_in_float64(name, files, tmp_path, monkeypatch):
    bare = ("callbacks.figures=null", "callbacks.evaluation=null", "trainer.max_steps=1")
    assert train(tmp_path, files, monkeypatch, f"method={name}", *RUNS[name], *bare)["iteration"] == 1


@pytest.mark.parametrize(
    ("kind", "options"),
    [("points", ()), ("images", (*TINY_DEEP, "method=bimdsm", f"figures@{FIGURES}=all", *SHORT_CHAINS))],
)
def test_every_figure_is_drawn_of_a_run_in_float64(kind, options, files, tmp_path, unrendered, monkeypatch):
    """Metrics are computed in float64 where they are compared over processes."""
    train(tmp_path, files, monkeypatch, *options, *(f"{FIGURES}.{size}" for size in DRAWN[kind]))
    drawn = {path.stem.partition("_0")[0] for path in (tmp_path / "figures").glob("*.png")}
    assert drawn >= {size.partition(".")[0] for size in DRAWN[kind]}
