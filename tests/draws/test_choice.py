"""Tests of the choice of a sampler: runs, figures, metrics and the command draw the same samples."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import eblvm_lit
from eblvm_lit.cli import sample
from eblvm_lit.data.base import Splits
from eblvm_lit.draws.choice import draws_of
from eblvm_lit.evaluation import modes
from eblvm_lit.figures import samples as figure_of_samples
from eblvm_lit.runs.build import build
from eblvm_lit.runs.instantiate import LIBRARIES, instantiate, to_plain
from eblvm_lit.runs.settings import adapt
from eblvm_lit.runs.trained_run import TrainedRun
from helpers.models import LatentOnly, generator, random_grbm
from helpers.shell import configured
from helpers.short_runs import NARROW
from helpers.stand_in import StandIn

METRICS = "evaluation@callbacks.evaluation.metrics"
FIGURES = "figures@callbacks.figures.figures"
POINTS = ["data=two_blobs", f"{METRICS}=[plane,points]"]
FD = "callbacks.evaluation.metrics.fd_classifier"
CLASSIFIER = [f"{METRICS}=classifier", f"{FIGURES}=annealed", f"{FD}.n_samples=50", f"{FD}.features.n_steps=2"]
CIFAR = ["data=cifar10", "data.size=8"]
IMAGES = [*CIFAR, f"{METRICS}=generator", f"{FIGURES}=generator"]
# The folder of a shared model contains log Z, which no test here reads.
SHORT_AIS = [f"callbacks.evaluation.metrics.log_likelihood.{n}" for n in ("n_chains=4", "n_betas=3")]
FEW = [f"sampler.dynamics.{name}=2" for name in ("n_hot", "n_falling", "n_cold")]
NETWORK = ["model.widths=[8]"]
DEEP = [*NETWORK, "model.h_dim=3", "model.head_dim=4", "method=vages_dsm"]
MLP = ["model.network.widths=[8]", "model.h_dim=3", "model.head_dim=4", "method=vages_dsm"]
LEBM = ["method=lebm", "model=latent_prior_toy", "latent_langevin.n_steps=2", f"{FIGURES}=generator"]
OTHER = ["sampler=walk_jump", "sampler.dynamics.n_hot=6"]
# Each entry has overrides, the expected title of the sampler, and the expected kind of its chains.
TABLE = {
    "grbm of points": ([*POINTS, "method=dsm", "sampler.n_steps=3"], "Gibbs samples, 3 sweeps", "gibbs"),
    "another sampler": ([*POINTS, "method=dsm", *OTHER], "AnnealedLangevin, 6 steps", "marginal"),
    "grbm of images": (
        ["data=digits", *CLASSIFIER, "method=dsm", "sampler.n_steps=3", *SHORT_AIS],
        "Gibbs samples, 3 sweeps",
        "gibbs",
    ),
    "deep points": ([*POINTS, "model=deep_toy", *DEEP, "sampler.n_steps=3"], "Langevin, 3 steps", "joint"),
    "deep points, another sampler": (
        [*POINTS, "model=deep_toy", *DEEP, *OTHER],
        "AnnealedLangevin, 6 steps",
        "posterior",
    ),
    "deep images": ([*CIFAR, "model=deep_mlp", *CLASSIFIER, *MLP, *FEW], "AnnealedLangevin, 6 steps", "posterior"),
    "marginal energy of points": (
        [*POINTS, "method=mdsm", "model=deep_toy", *NETWORK, "sampler.n_steps=3"],
        "Langevin, 3 steps",
        "marginal",
    ),
    "bidvl": (["method=bidvl", *IMAGES, *NARROW], "generator", None),
    "vae": (["method=vae", *IMAGES, *NARROW[1:]], "generator", None),
    "lebm": ([*POINTS, *LEBM], "generator", None),
}


@pytest.fixture
def setting(request, monkeypatch):
    """Return a run with random parameters, and its data."""
    cfg = configured("max_examples=50", "method.compile=false", "run_dir=nowhere", "seed=4", *request.param)
    adapt(cfg)
    parts = build(cfg)
    data = parts.data
    if "cifar10" in cfg.data._target_.lower():  # the tests have no files of CIFAR10, so that random images replace them
        images = torch.randint(256, (60, *data.event_shape), generator=generator(), dtype=torch.uint8)
        data.splits = Splits(images[:40], images[40:50], images[50:])
    data.setup()
    config = OmegaConf.create(to_plain(cfg))
    monkeypatch.setattr(TrainedRun, "_unread_data", lambda self: data)
    return TrainedRun(method=parts.method.eval(), config=config, iteration=3, metrics={"a": 1.0}), data


def shown(figure, run, data, monkeypatch):
    """Return the samples that a figure shows.

    They are its last panel of images, or the dots in its last axes.
    """
    panels = []
    monkeypatch.setattr(figure_of_samples, "image_grid", lambda rows, *args, **options: panels.extend(rows[0]))
    drawn = figure.draw(run.method, data, generator())
    return panels[-1][1] if panels else torch.tensor(np.asarray(drawn.axes[1].collections[0].get_offsets()))


def judged(nodes, run, data, monkeypatch):
    """Return the samples that each metric of sample quality compares with data."""
    found = {}
    of_samples = {name: nodes[name] for name in ("points", "fd_classifier", "modes") if name in nodes}
    metrics = {name: instantiate(node, name, LIBRARIES) for name, node in of_samples.items()}
    for name in {*metrics} - {"modes"}:
        found[name] = metrics[name].images.images(run.method, data, 5)
    if "modes" in metrics:
        monkeypatch.setattr(modes, "shares_of_modes", lambda v, *args: found.update(modes=v) or torch.ones(2))
        metrics["modes"].n_samples = 5
        metrics["modes"].evaluate(run.method, data, "test", generator())
    return found


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(("setting", "title", "kind"), TABLE.values(), ids=TABLE, indirect=["setting"])
def test_runs_figures_metrics_and_the_command_draw_the_same(setting, title, kind, tmp_path, monkeypatch):
    run, data = setting
    draws = draws_of(run.method, data, run.sampler, generator=getattr(run.draws(), "images", None))
    assert (draws.title, getattr(draws, "kind", None)) == (title, kind)
    # The seed is 4, because figures and metrics draw with the seed of the run, which is 4 here.
    drawn = run.sample(5, seed=4)
    assert torch.equal(draws.draw(5, seed=4).reshape(drawn.shape), drawn)
    callbacks = run.config.callbacks
    figure = instantiate(callbacks.figures.figures.samples, "samples", LIBRARIES)
    figure.n = figure.n_points = 5
    images = data.image_shape is not None
    expected = run.sample(5, seed=4, mean=images and title.startswith("Gibbs"))
    torch.testing.assert_close(shown(figure, run, data, monkeypatch).to(drawn), expected, rtol=0, atol=0)
    found = judged(callbacks.evaluation.metrics, run, data, monkeypatch)
    assert found
    for v in found.values():
        assert torch.equal(v.flatten(1), (data.as_bytes(drawn.clone()) if images else drawn).flatten(1))
    run.save_pretrained(tmp_path / "model")
    sample.main([str(tmp_path / "model"), "-n", "5", "--seed", "4", "--out", str(tmp_path)])
    assert np.array_equal(np.load(tmp_path / "samples.npz")["v"], drawn.numpy())


@pytest.mark.parametrize(
    ("setting", "starts"),
    [(TABLE["deep points"][0], "box"), (TABLE["deep images"][0], "latents")],
    indirect=["setting"],
)
def test_chains_start_where_a_shared_model_says(setting, starts):
    run, data = setting
    known = {name: 2 * value + 1 for name, value in run.starts.items()}
    assert list(known) == [starts]
    drawn = draws_of(run.method, data, run.sampler, starts=known)
    assert not torch.equal(drawn.draw(3, seed=0), run.sample(3))
    assert drawn.starts == known


def test_a_model_without_any_sampler_has_no_samples():
    binary = LatentOnly(random_grbm(2, 3))
    binary.continuous = False
    for energy in (None, binary):
        assert draws_of(StandIn(energy=energy), eblvm_lit.Checkerboard()) is None
