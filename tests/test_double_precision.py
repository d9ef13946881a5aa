"""Double precision: every part and figure computes in float64 if asked to; cli/test_compose.py tests the methods."""

import pytest
import torch

from cases import DIVERGENCES, ENERGIES, NOISE_DISTRIBUTIONS, OBJECTIVES, PAIRED_OBJECTIVES, PAIRS, VISIBLE_ENERGIES
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.runs import run
from eblvm_lit.scores.exact import ExactScore
from helpers.image_files import write_mnist
from helpers.shell import configured
from helpers.short_runs import SHORT_CHAINS, SMALL_DEEP

IMAGES = ("data=mnist", "data.val_size=2", "data.batch_size=4")
TINY_DEEP = (*IMAGES, *SMALL_DEEP, "model.h_dim=3")
FIGURES = "callbacks.figures.figures"
DRAWN = {
    "points": "samples.n_points=5 density.n_cells=20",
    "images": "samples.n=4 conditional.n=4 interpolation.n=2 interpolation.n_lines=2 inpainting.n=2 "
    "inpainting.n_completions=1 tsne.n=4 energies.n=4",
}


def test_every_part_computes_in_the_type_of_what_it_is_given():
    """Build and call each part with float64 tensors, while the default type is float32."""
    found = {}
    generator = torch.Generator()
    energies = {case.name: (case.make().double(), case) for case in (*ENERGIES, *VISIBLE_ENERGIES)}
    for name, (energy, case) in energies.items():
        v = torch.randn(4, *case.event_shape).double()
        found[name] = energy.energy(v, torch.rand(4, energy.h_dim).double())
        if isinstance(energy, MarginalEnergy):
            found[name, "score"] = energy.score(v)
    for energy_case, posterior_case in PAIRS:
        energy = energies[energy_case.name][0]
        q = posterior_case.make().double()
        v = torch.randn(4, *energy_case.event_shape)
        for case in DIVERGENCES:
            if q.continuous or not case.continuous:
                divergence = case.make()
                noise = divergence.noise(q, v.double(), (), generator)
                found[case.name, energy_case.name, posterior_case.name] = divergence.loss(energy, q, v.double(), noise)
    v = torch.randn(4, 2).double()
    score = ExactScore(GaussianLatentModel(v_dim=2, h_dim=3).double())
    for case in (*OBJECTIVES, *PAIRED_OBJECTIVES):
        objective = case.make()
        noise = objective.noise(v, (), generator)
        found[case.name] = objective.loss(score, objective.perturb(v, noise), noise)
    for case in NOISE_DISTRIBUTIONS:
        p_n = case.make().double()
        found[case.name] = p_n.log_prob(p_n.sample(p_n.noise((), v, generator)))
    assert {name: x.dtype for name, x in found.items() if x.dtype != torch.float64} == {}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("points", ()),
        ("points", ("method=bidsm",)),
        ("images", (*TINY_DEEP, "method=bimdsm", f"figures@{FIGURES}=all", *SHORT_CHAINS)),
    ],
)
def test_every_figure_is_drawn_of_a_run_in_float64(kind, options, tmp_path, unrendered, monkeypatch):
    """Draw each figure for a run in float64, whose metrics are then computed in float64, too."""
    write_mnist(tmp_path, n_test=7)
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    short = ("debug=fast", "trainer.precision=64-true", "trainer.max_steps=2", "n_validations=1")
    sizes = (f"{FIGURES}.{size}" for size in DRAWN[kind].split())
    run.train(configured(*short, *options, *sizes, f"run_dir={tmp_path}", f"cache_dir={tmp_path}"))
    drawn = {path.stem.partition("_0")[0] for path in (tmp_path / "figures").glob("*.png")}
    assert drawn >= {size.partition(".")[0] for size in DRAWN[kind].split()}
