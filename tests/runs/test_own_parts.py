"""Tests of a user's own parts in a folder outside of the clone: they are found, trained, evaluated, resumed, or
refused."""

import json
import shutil
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from PIL import Image

import eblvm_lit
from eblvm_lit.cli import sample
from eblvm_lit.errors import ConfigError
from eblvm_lit.reports import __main__ as reports
from eblvm_lit.runs.instantiate import import_packages
from eblvm_lit.runs.settings import check_config
from helpers.documents import blocks
from helpers.shell import ROOT, configure, curves, evaluate, of_checkpoint, train

EXAMPLE = ROOT / "examples" / "own_parts"
SHORT = ("debug=fast", "trainer.max_steps=4", "n_validations=2", "data.batch_size=20")
SHORT += ("callbacks.figures.figures.density.n_cells=20", "sampler.n_steps=20")


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "my_package")]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to an empty working folder, and restore the import path and the imported modules afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # Without this setting, Python would import a file that is changed twice within a second from its old bytecode.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    forget()


def write(folder, **modules):
    """Write a package `mine` with some modules."""
    (folder / "mine").mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (folder / "mine" / f"{name}.py").write_text(text)


# --- the worked example -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Copy the worked example to a folder outside of the clone, and train a run in it."""
    copy = tmp_path_factory.mktemp("outside") / "own_parts"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, file, **options: Image.new("L", (1, 1)).save(file, "PNG"))
        patch.chdir(copy)
        patch.setattr(sys, "path", list(sys.path))
        eblvm_lit.train(["experiment=ring", *SHORT, "run_dir=outputs/whole"], config_dir="conf")
    forget()
    return copy


def test_the_example_trains_with_all_of_its_parts(example):
    run = example / "outputs" / "whole"
    config = OmegaConf.load(run / "config.yaml")
    assert config.data._target_ == "my_package.ring.Ring"
    assert config.method.energy._target_ == "my_package.fixed_width_rbm.FixedWidthRBM"
    assert config.method.objective._target_ == "my_package.noise_prediction.NoisePrediction"
    assert [row["iteration"] for row in curves(run) if "val/parameter_norm" in row] == [2, 4]
    assert (run / "figures" / "score_field.png").exists()
    assert json.loads((run / "metrics.json").read_text())["test/score_norm"] > 0
    assert json.loads((run / "quantities.json").read_text())["test/score_norm"] == [0, "per unit of v"]


@pytest.mark.usefixtures("folder", "unrendered")
def test_the_example_is_evaluated_only_with_permission(example, monkeypatch):
    monkeypatch.chdir(example)
    checkpoint = "outputs/whole/checkpoints/last.ckpt"
    with pytest.raises(ConfigError, match=r"may not name 'my_package.ring.Ring', .* with allow_packages=\[...\]"):
        evaluate("refused", checkpoint)
    metrics = json.loads((example / "outputs" / "whole" / "metrics.json").read_text())
    assert evaluate("evaluation", checkpoint, "allow_packages=[my_package]") == of_checkpoint(metrics)
    assert metrics["iteration"] == 4


@pytest.mark.usefixtures("folder")
def test_the_example_is_resumed_and_is_in_the_report(example, unrendered, monkeypatch):
    monkeypatch.chdir(example)
    longer = ("trainer.max_steps=6", "ckpt=last", "run_dir=outputs/longer")
    assert eblvm_lit.train(["experiment=ring", *SHORT, *longer], config_dir="conf").iteration == 6
    assert [row["iteration"] for row in curves("outputs/longer")] == list(range(1, 7))
    reports.main(["outputs", "--out", "report"])
    assert "## ring\n" in (example / "report" / "table.md").read_text()


@pytest.mark.usefixtures("unrendered")
def test_the_example_is_loaded_and_sampled_from_another_folder(example, folder):
    run = example / "outputs" / "whole"
    conf = example / "conf"
    with pytest.raises(ConfigError, match="there is no such package in"):
        eblvm_lit.load(run, allow_packages="my_package")
    v = eblvm_lit.load(run, allow_packages="my_package", config_dir=conf).sample(3, seed=1)
    options = ["-n", "3", "--seed", "1", "--allow-packages", "my_package", "--out", str(folder)]
    sample.main([str(run), *options, "--config-dir", str(conf)])
    assert np.array_equal(np.load(folder / "samples.npz")["v"], v.numpy())


def test_the_page_shows_the_example_s_files_as_they_are():
    found = blocks(ROOT / "docs" / "extending.md", "python", "yaml")
    shown = [(block.marker.removeprefix("example: "), block.text) for block in found if "example: " in block.marker]
    assert len(shown) > 3
    for name, text in shown:
        assert text == (EXAMPLE / name).read_text(), name


# --- where a package is found -----------------------------------------------------------------------------


def test_a_package_in_the_working_folder_is_found_and_nothing_hides_what_is_installed(folder):
    write(folder)
    (folder / "json").mkdir()
    (folder / "json" / "__init__.py").write_text("raise RuntimeError('not this one')")
    before = list(sys.path)
    assert import_packages(["json", "mine"]) == ["json", "mine"]
    assert sys.path[: len(before)] == before


# --- a faulty package is refused in a sentence ------------------------------------------------------------

FAULTS = {
    "no class": ("def E():\n    pass\n", r"mine\.part\.E"),
    "another kind": (
        "class E:\n    pass\n",
        r"method.energy \(ScoreMatching\) must be of class Energy, not E: choose one by model=",
    ),
    "abstract": ("from eblvm_lit.energies.base import Energy\n\n\nclass E(Energy):\n    pass\n", "abstract class E"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_missing_or_faulty_package_is_refused_in_a_sentence(fault, folder):
    text, named = FAULTS[fault]
    with pytest.raises(ConfigError, match=f"'mine'.*{folder}"):
        train(folder / "run", "method=dsm", "allow_packages=[mine]")
    write(folder, part=text)
    with pytest.raises(ConfigError, match=named) as refusal:
        train(folder / "run", "method=dsm", "method.energy={_target_: mine.part.E}", "allow_packages=[mine]")
    assert "\n" not in str(refusal.value)


POINTS = """
import torch
from eblvm_lit.energies.base import MarginalEnergy


class E(MarginalEnergy):
    h_dim = 0
    continuous = True

    def __init__(self, *, v_shape: list[int], width: int = 3):
        super().__init__()
        self.event_shape, self.a = tuple(v_shape), torch.nn.Parameter(torch.ones(width))

    def free_energy(self, v):
        return (v.square() * self.a[0]).sum(-1)

    def energy(self, v, h):
        return self.free_energy(v)
"""


@pytest.mark.usefixtures("folder")
def test_an_own_energy_of_points_may_name_its_argument_v_shape_and_has_its_values_checked(folder):
    write(folder, part=POINTS)
    own = "model={_target_: mine.part.E, v_shape: '${sizes.v_shape}', width: WIDTH}"
    words = ["run_dir=none", "method=dsm", "allow_packages=[mine]", "~model", "+" + own]
    check_config(configure(*[word.replace("WIDTH", "3") for word in words], "method.energy=${model}"))
    with pytest.raises(ConfigError, match=r"model\.width \(E\) must be a valid integer, not 'wide'"):
        check_config(configure(*[word.replace("WIDTH", "wide") for word in words], "method.energy=${model}"))
    with pytest.raises(ConfigError, match=r"The model needs images, and the data are vectors"):
        check_config(configure("run_dir=none", "method=dsm", "model=deep", "data=moons"))
