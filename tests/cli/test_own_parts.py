"""Parts of one's own from a folder outside of the clone: found, trained, evaluated, resumed, reported, or refused."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf
from torch import nn

import eblvm_lit
from eblvm_lit.cli import sample
from eblvm_lit.cli.instantiate import import_packages
from eblvm_lit.core.functional import bind
from eblvm_lit.data.toy import Checkerboard
from eblvm_lit.divergences.kl import KL
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.methods.vages import VaGES
from eblvm_lit.objectives.base import Objective
from eblvm_lit.objectives.dsm import DSM
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
from eblvm_lit.reports import __main__ as reports
from eblvm_lit.scores.variational import VariationalScore
from eblvm_lit.training import start_checks
from eblvm_lit.training.start_checks import StartChecks
from helpers.documents import blocks
from helpers.shell import ROOT, curves, evaluate, of_checkpoint, train

EXAMPLE = ROOT / "examples" / "own_parts"
SHORT = (
    "debug=fast",
    "trainer.max_steps=4",
    "n_validations=2",
    "data.batch_size=20",
    "callbacks.figures.figures.density.n_cells=20",
)


@pytest.fixture
def clean(monkeypatch):
    """What a test imports, and where from, is forgotten afterwards."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file that is written twice in a second is read twice
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("mine", "my_package"):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch, clean):
    """An empty folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, **modules):
    """A package `mine` of some modules."""
    (folder / "mine").mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (folder / "mine" / f"{name}.py").write_text(text)


def finish(folder, *words):
    """Run Python to its end in a folder."""
    environment = {**os.environ, "COLUMNS": "200"}
    result = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout


# --- the worked example -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A copy of the worked example outside of the clone, with a run in it."""
    copy = tmp_path_factory.mktemp("outside") / "own_parts"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    run = ("--config-dir", "conf", "experiment=ring", *SHORT)
    finish(copy, str(ROOT / "train.py"), *run, "hydra.run.dir=outputs/whole")
    return copy


def test_the_example_trains_with_all_of_its_parts(example):
    run = example / "outputs" / "whole"
    config = OmegaConf.load(run / "config.yaml")
    assert config.data._target_ == "my_package.ring.Ring"
    assert config.method.energy._target_ == "my_package.fixed_width_rbm.FixedWidthRBM"
    assert config.method.objective._target_ == "my_package.noise_prediction.NoisePrediction"
    assert [row["iteration"] for row in curves(run) if "val/parameter_norm" in row] == [2, 4]
    assert (run / "figures" / "score_field.png").stat().st_size > 1000
    assert json.loads((run / "metrics.json").read_text())["test/score_norm"] > 0


@pytest.mark.usefixtures("clean")
def test_the_example_is_evaluated_with_leave_alone(example, monkeypatch):
    monkeypatch.chdir(example)
    checkpoint = "outputs/whole/checkpoints/last.ckpt"
    with pytest.raises(ConfigError, match=r"may not name 'my_package.ring.Ring', .* with allow_packages=\[...\]"):
        evaluate("refused", checkpoint)
    metrics = json.loads((example / "outputs" / "whole" / "metrics.json").read_text())
    assert evaluate("evaluation", checkpoint, "allow_packages=[my_package]") == of_checkpoint(metrics)
    assert metrics["iteration"] == 4


@pytest.mark.slow
def test_the_example_s_commands_work_in_its_folder_and_from_another(example, tmp_path):
    longer = ("trainer.max_steps=6", "ckpt=last", "hydra.run.dir=longer", "allow_packages=[my_package]")
    finish(example, str(ROOT / "train.py"), "--config-dir", "conf", "experiment=ring", *SHORT, *longer)
    last = f"ckpt={example}/longer/checkpoints/last.ckpt"
    finish(example, str(ROOT / "evaluate.py"), last, "allow_packages=[my_package]")
    where = ("--config-dir", str(example / "conf"), "allow_packages=my_package", "hydra.run.dir=e")
    finish(tmp_path, str(ROOT / "evaluate.py"), *where, last)
    assert (tmp_path / "e" / "evaluation.json").is_file()
    finish(example, "-m", "eblvm_lit.reports", "longer")


@pytest.mark.usefixtures("clean")
def test_the_example_is_resumed_and_is_in_the_report(example, monkeypatch):
    monkeypatch.chdir(example)
    longer = ("trainer.max_steps=6", "ckpt=last", "run_dir=outputs/longer")
    assert eblvm_lit.train(["experiment=ring", *SHORT, *longer], config_dir="conf").iteration == 6
    assert [row["iteration"] for row in curves("outputs/longer")] == list(range(1, 7))
    reports.main(["outputs", "--out", "report"])
    assert "## ring\n" in (example / "report" / "table.md").read_text()


def test_the_example_trains_and_is_loaded_from_python(folder):
    shutil.copytree(EXAMPLE, folder / "parts", ignore=shutil.ignore_patterns("__pycache__"))
    monitored = ("callbacks.figures=null", "callbacks.evaluation=null", "show_config=false")
    run = eblvm_lit.train(["experiment=ring", *SHORT[:4], *monitored], config_dir="parts/conf")
    assert type(run.energy).__name__ == "FixedWidthRBM"
    assert eblvm_lit.load(run.folder, allow_packages="my_package").score(torch.zeros(3, 2)).shape == (3, 2)
    with pytest.raises(ConfigError, match="may not name"):
        eblvm_lit.load(run.folder)


@pytest.mark.usefixtures("clean")
def test_the_example_is_loaded_and_sampled_from_another_folder(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, conf = example / "outputs" / "whole", example / "conf"
    with pytest.raises(ConfigError, match="there is no such package in"):
        eblvm_lit.load(run, allow_packages="my_package")
    v = eblvm_lit.load(run, allow_packages="my_package", config_dir=conf).sample(3, seed=1)
    options = ["-n", "3", "--seed", "1", "--allow-packages", "my_package", "--out", str(tmp_path)]
    sample.main([str(run), *options, "--config-dir", str(conf)])
    assert np.array_equal(np.load(tmp_path / "samples.npz")["v"], v.numpy())


@pytest.mark.slow
def test_the_commands_that_a_run_suggests_find_its_package_from_any_folder(example, tmp_path):
    words = ("--config-dir", str(example / "conf"), "experiment=ring", *SHORT, "summary=true", "hydra.run.dir=run")
    screen = finish(tmp_path, str(ROOT / "train.py"), *words)
    (command,) = [line.split(maxsplit=1)[1] for line in screen.splitlines() if line.startswith("evaluate ")]
    finish(tmp_path, *shlex.split(command)[1:], "hydra.run.dir=evaluation")
    assert (tmp_path / "evaluation" / "evaluation.json").is_file()


def test_the_page_shows_the_example_s_files_as_they_are():
    shown = {}
    for block in blocks(ROOT / "docs" / "extending.md", "python", "yaml"):
        if block.marker.startswith("example: "):
            shown[block.marker.removeprefix("example: ")] = block.text
    assert len(shown) > 8
    for name, text in shown.items():
        assert text == (EXAMPLE / name).read_text(), name


# --- where a package is found -----------------------------------------------------------------------------


def test_a_package_in_the_working_folder_is_found_and_nothing_hides_what_is_installed(folder):
    write(folder)
    (folder / "json").mkdir()
    (folder / "json" / "__init__.py").write_text("raise RuntimeError('not this one')")
    before = list(sys.path)
    assert import_packages("json") == ["json"]
    assert sys.path == before
    assert import_packages(["mine"]) == ["mine"]
    assert sys.path[: len(before)] == before


# --- what is wrong with it is said in a sentence ----------------------------------------------------------

FAULTS = {
    "no class": ("def E():\n    pass\n", r"may not name 'mine.part.E', only classes of"),
    "a class of another package": ("from pathlib import Path as E\n", r"may not name 'mine.part.E', only classes of"),
    "no such name": ("", r"There is no 'mine.part.E' \(module 'mine.part' has no attribute 'E'\)\.$"),
    "another kind": (
        "class E:\n    pass\n",
        "E has no tractable free energy, which ScoreMatching needs",
    ),
    "what is abstract": (
        "from eblvm_lit.energies.base import Energy\n\n\nclass E(Energy):\n    pass\n",
        r"\(E\) does not fit: Can't instantiate abstract class E with abstract method energy$",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_package_that_does_not_serve_is_refused_in_a_sentence(fault, folder):
    text, why = FAULTS[fault]
    write(folder, part=text)
    with pytest.raises(ConfigError, match=why) as refusal:
        train(folder / "run", "method=dsm", "method.energy={_target_: mine.part.E}", "allow_packages=[mine]")
    assert "\n" not in str(refusal.value)


def test_a_package_that_is_nowhere_is_refused_with_the_folders(folder):
    with pytest.raises(ConfigError, match=rf"names 'mine', and there is no such package in {folder}: start in the"):
        train(folder / "run", "allow_packages=[mine]")


@pytest.mark.parametrize("place", ["data", "method", "+callbacks.x", "+logger.x"])
def test_a_class_of_another_kind_is_refused(place, folder):
    write(folder, part="class X:\n    def __init__(self, **anything):\n        pass\n")
    with pytest.raises(ConfigError, match=r" must be a (ArrayDataModule|Method|Callback|Logger), not X: see "):
        train(folder / "run", f"{place}._target_=mine.part.X", "allow_packages=[mine]")


# --- what cannot train as it is written is refused when training starts -----------------------------------


class Contrast(LossMethod):
    """Low free energy at the data, high at perturbed data: the losses of this section are variants of it."""

    energy_type = MarginalEnergy

    def noise(self, v, generator):
        return torch.randn(v.shape, generator=generator)

    def loss(self, state, v, noise):
        F = bind(self.energy, state.theta).free_energy
        return torch.sigmoid(F(v) - F(v + 0.2 * noise))


class Few(Checkerboard):
    """A small data set of the plane."""

    sizes = (40, 20, 20)


def fit(method, n=2, **options):
    """Train for a few iterations."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    own = {"callbacks": [StartChecks()], "enable_checkpointing": False, **quiet}
    trainer = pl.Trainer(accelerator="cpu", max_steps=n, **own, **options)
    trainer.fit(method, datamodule=Few(batch_size=20))
    return method


def contrast(loss=None, energy=None, **options):
    """A method with another loss or energy."""
    kind = type("Own", (Contrast,), {} if loss is None else {"loss": loss})
    return kind(energy=energy or GRBM(v_dim=2, h_dim=3), optimizer=Adam(lr=0.01), **options)


def test_a_parameter_that_no_group_moves_is_refused():
    method = contrast()
    method.log_z = nn.Parameter(torch.zeros(()))
    with pytest.raises(ConfigError, match=r"^log_z is a parameter of Own that no group moves: .*requires_grad_\(False"):
        fit(method)
    method.log_z.requires_grad_(False)
    fit(method)


class Column(GRBM):
    """A free energy with a dimension too many."""

    def free_energy(self, v):
        return super().free_energy(v)[:, None]


class Square(GRBM):
    """A free energy broadcast against itself."""

    def free_energy(self, v):
        return super().free_energy(v)[:, None] - 0 * super().free_energy(v)


class OverRows(GRBM):
    """An energy summed over the wrong dimension."""

    def energy(self, v, h):
        return (v @ self.W * h).sum(-2)


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        (Column, r"free_energy\(v\) of Column has shape \(5, 1\) .*, and must have \(5,\)"),
        (Square, r"free_energy\(v\) of Square has shape \(5, 5\) .*, and must have \(5,\)"),
        (OverRows, r"energy\(v, h\) of OverRows has shape \(3,\) .*, and must have \(5,\)"),
    ],
)
def test_an_energy_of_another_shape_is_refused(kind, shapes):
    with pytest.raises(ConfigError, match=shapes) as refusal:
        fit(contrast(energy=kind(v_dim=2, h_dim=3)))
    assert "\n" not in str(refusal.value)


class Moving(GRBM):
    """A free energy that moves statistics, and draws its own random numbers."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.norm, self.dropout = nn.BatchNorm1d(2), nn.Dropout(0.1)
        self.register_buffer("n_passes", torch.zeros(()))

    def free_energy(self, v):
        self.n_passes = self.n_passes + 1
        return super().free_energy(self.dropout(self.norm(v)))


def test_looking_at_the_shapes_of_an_energy_leaves_no_trace(monkeypatch):
    def trained():
        torch.manual_seed(0)
        return fit(contrast(energy=Moving(v_dim=2, h_dim=3)), num_sanity_val_steps=0).state_dict()

    looked = trained()
    monkeypatch.setattr(start_checks, "refuse_shape", lambda *_: None)
    torch.testing.assert_close(looked, trained(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (lambda *given: Contrast.loss(*given)[:, None], r"has shape \(20, 1\)"),
    ],
)
def test_a_loss_that_is_not_one_number_for_each_example_is_refused(loss, what):
    with pytest.raises(ConfigError, match=f"^The loss of Own {what}: .* one number for each example, shape"):
        fit(contrast(loss), num_sanity_val_steps=0)


def test_a_loss_that_is_one_number_trains():
    fit(contrast(lambda *given: Contrast.loss(*given).mean()))


def test_a_step_whose_loss_has_more_dimensions_than_one_is_refused():
    class Own(Contrast):
        def iteration(self, state, v, noise):
            loss = lambda params: self.loss(state.at(theta=params), v, noise["model"])[:, None]  # noqa: E731
            return self.descend(state, "model", loss)

    with pytest.raises(ConfigError, match=r"^The loss of Own has shape \(20, 1\)"):
        fit(Own(energy=GRBM(v_dim=2, h_dim=3), optimizer=Adam(lr=0.01)), num_sanity_val_steps=0)


def test_a_loss_may_use_transforms_of_torch_over_the_score():
    def jvp(self, state, v, noise):
        score, slope = torch.func.jvp(bind(self.energy, state.theta).score, (v,), (noise,))
        return 0.5 * score.square().sum(-1) + (noise * slope).sum(-1)

    def vmap(self, state, v, noise):
        energy = bind(self.energy, state.theta)
        jacobian = torch.func.vmap(torch.func.jacrev(lambda x: energy.score(x[None])[0]))(v)
        score, slope = energy.score(v), (jacobian @ noise[..., None]).squeeze(-1)
        return 0.5 * score.square().sum(-1) + (noise * slope).sum(-1)

    class Differentiated(GRBM):
        score = MarginalEnergy.score

    def weights(loss):
        torch.manual_seed(0)
        return fit(contrast(loss, Differentiated(v_dim=2, h_dim=3), compile=False)).energy.W

    torch.testing.assert_close(weights(jvp), weights(vmap))


@pytest.mark.parametrize("kind", [LossMethod, Method])
def test_a_method_that_lacks_its_algorithm_cannot_be_made(kind):
    lacking = type("Lacking", (kind,), {})
    with pytest.raises(TypeError, match=r"Can't instantiate abstract class Lacking with abstract methods? "):
        lacking(optimizer=Adam(lr=0.01)) if kind is LossMethod else lacking()


def test_an_optimizer_of_torch_is_refused_in_a_sentence():
    energy, posterior = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3)
    rule = torch.optim.Adam(energy.parameters(), lr=0.01)
    sentence = r"^An optimizer is a rule such as eblvm_lit\.Adam\(lr=0\.001\), not torch\.optim\.adam\.Adam\."
    with pytest.raises(ConfigError, match=sentence):
        fit(Contrast(energy=energy, optimizer=rule))
    method = VaGES(
        energy=energy,
        posterior=posterior,
        divergence=KL(),
        objective=DSM(noise_std=0.1),
        score=VariationalScore(n_particles=2),
        optimizer=rule,
    )
    with pytest.raises(ConfigError, match=sentence):
        fit(method)


def test_an_objective_without_a_cotangent_serves_variational_scores():
    class Huber(DSM):
        cotangent = Objective.cotangent

        def loss(self, score, v, noise):
            gap = score(v) + noise["eps"] / self.noise_std
            return nn.functional.huber_loss(gap, torch.zeros_like(gap), reduction="none").sum(-1)

    p, q = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3)
    parts = {"energy": p, "posterior": q, "divergence": KL(), "score": VariationalScore(n_particles=2)}
    method = fit(VaGES(objective=Huber(noise_std=0.3), optimizer=Adam(lr=0.01), compile=False, **parts))
    assert method.diagnostics["upper_grad_norm"] > 0
