"""The structure of the package: where things are, what may import what, and how far an iteration is to read."""

import re
import sys
from collections import Counter

import pytest

import eblvm_lit
from eblvm_lit.cli import run
from eblvm_lit.methods.base import Method
from image_files import write_cifar10
from shell import CONF, ROOT, configure, train

PACKAGE = ROOT / "src" / "eblvm_lit"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
# What methods stand on: mathematics that knows nothing of processes.
BELOW = (
    *("core", "energies", "posteriors", "divergences", "objectives", "scores", "hypergradients", "optimizers"),
    *("networks", "noise_distributions", "samplers", "bidvl"),
)
PRIVATE = re.compile(r"torch\._(?!_)|\b_dynamo\b|\b_inductor\b|\b_functorch\b|__code__|_current_fx|utils\._|\.hooked\b")


def text(path):
    return path.read_text()


def test_nothing_lies_loose_in_the_package():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "errors.py"}


def test_no_two_modules_have_one_name():
    names = Counter(path.name for path in MODULES)
    assert [name for name, n in names.items() if n > 1 and name != "base.py"] == []


def test_the_first_line_of_a_module_says_what_is_in_it():
    for path in MODULES:
        first = text(path).splitlines()[0]
        assert re.match(r'^r?"""[A-Z`].*[.:]("""$|$)', first), f"{path}: {first}"


@pytest.mark.parametrize("folder", BELOW)
def test_mathematics_imports_nothing_of_processes(folder):
    for path in (PACKAGE / folder).rglob("*.py"):
        if path.name not in ("ranks.py", "reductions.py"):
            assert "torch.distributed" not in text(path), path


def test_private_names_of_torch_and_lightning_are_in_one_module():
    found = [path for path in MODULES if PRIVATE.search(text(path))]
    assert found == [PACKAGE / "core" / "fast_paths.py"]


def test_what_a_method_has_is_asked_of_its_parts():
    for path in MODULES:
        assert not re.search(r"(get|has)attr\(method", text(path)), path


def test_there_are_few_configuration_files():
    assert len(list(CONF.rglob("*.yaml"))) <= 220  # a part that users choose is one file


class Frames:
    """The package's functions that one training step calls."""

    def __init__(self):
        self.functions = Counter()

    def __call__(self, frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)):
            self.functions[name, frame.f_code.co_qualname] += 1


@pytest.fixture
def frames(monkeypatch):
    """The frames of the last training step of a run, when everything has been looked up."""
    found, step = Frames(), Method.training_step

    def traced(self, *arguments):
        found.functions.clear()
        sys.setprofile(found)
        try:
            return step(self, *arguments)
        finally:
            sys.setprofile(None)

    traced.__signature__ = step.__signature__
    monkeypatch.setattr(Method, "training_step", traced)
    return found


# From the minibatch to the moved parameters: few files, few functions, few calls.
EAGER = ("callbacks.evaluation=null", "iterations_per_batch=1", "method.compile=false", "n_validations=1")


def test_an_iteration_of_bidsm_is_short_to_read(tmp_path, frames):
    assert str(PACKAGE) == eblvm_lit.__path__[0]
    train(tmp_path, "method=bidsm", "method.n_lower_steps=5", "method.n_unroll=5", *EAGER)
    assert len(frames.functions) <= 45, frames.functions
    assert len({name for name, _ in frames.functions}) <= 10
    assert frames.functions.total() <= 260


def test_an_iteration_of_bidvl_is_short_to_read(tmp_path, monkeypatch, frames):
    write_cifar10(tmp_path)
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    narrow = [f"{part}.width=2" for part in ("model.network", "posterior.network", "generator")]
    small = ["data.val_size=2", "data.batch_size=3", "trainer.accelerator=cpu", "trainer.max_steps=3", "logger=none"]
    quiet = ["callbacks.figures=null", "callbacks.progress=null", "show_config=false"]
    folders = [f"run_dir={tmp_path / 'run'}", f"outputs_dir={tmp_path}"]
    run.train(configure("method=bidvl", "data=cifar10", *narrow, *small, *quiet, *folders, *EAGER))
    assert len(frames.functions) <= 55, frames.functions
    assert len({name for name, _ in frames.functions}) <= 12
