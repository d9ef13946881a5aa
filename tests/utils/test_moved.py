"""Tests of older checkpoints and shared models, which contain former names of classes."""

import importlib
import shutil
from pathlib import Path

import pytest
import torch

import eblvm_lit
from eblvm_lit.runs.instantiate import resolve_target
from eblvm_lit.runs.load import PRETRAINED
from eblvm_lit.training.checkpoint_io import load_checkpoint
from eblvm_lit.utils.moved import MOVED, with_present_names


def exists(name):
    """Return whether the package has a module, or a class in a module, of this name."""
    module, _, last = f"eblvm_lit.{name}".rpartition(".")
    return hasattr(importlib.import_module(module if last[0].isupper() else f"{module}.{last}"), last) or last.islower()


def test_every_present_name_exists_and_no_former_name_does():
    assert [name for name in MOVED.values() if not exists(name)] == []
    modules = {name for name in MOVED if not name.rpartition(".")[2][0].isupper()}
    assert [
        name for name in modules if (Path(eblvm_lit.__file__).parent / f"{name.replace('.', '/')}.py").exists()
    ] == []


def test_a_shared_model_is_loaded_by_former_names(tmp_path):
    folder = shutil.copytree(PRETRAINED / "grbm_digits", tmp_path / "grbm_digits")
    text = (folder / "config.yaml").read_text()
    former = text.replace("likelihood.log_likelihood.", "likelihood.").replace(
        "evaluation.likelihood.ais.", "evaluation.ais."
    )
    assert former != text
    (folder / "config.yaml").write_text(former)
    before, present = (eblvm_lit.load(name).config for name in (folder, "grbm_digits"))
    assert before.callbacks == present.callbacks


def test_a_checkpoint_is_read_by_former_names(tmp_path):
    target = "eblvm_lit.evaluation.ais.AIS"
    ours = {"version": eblvm_lit.__version__, "method": target, "config": {"parts": [{"_target_": target}]}}
    torch.save({"eblvm_lit": ours, "state_dict": {}}, tmp_path / "last.ckpt")
    found = load_checkpoint(tmp_path / "last.ckpt")["eblvm_lit"]
    present = "eblvm_lit.evaluation.likelihood.ais.AIS"
    assert (found["method"], found["config"]) == (present, {"parts": [{"_target_": present}]})


def test_names_that_have_not_moved_stay():
    node = {"_target_": "eblvm_lit.objectives.dsm.DSM", "path": "evaluation.ais", "n": [1, {"_target_": None}]}
    assert with_present_names(node) == node


@pytest.mark.parametrize("name", [name for name in MOVED.values() if name[name.rindex(".") + 1].isupper()])
def test_a_class_is_where_the_table_says(name):
    assert resolve_target(f"eblvm_lit.{name}", ()).__name__ == name.rpartition(".")[2]


def test_figures_of_generators_are_figures_that_take_draws():
    node = {"_target_": "eblvm_lit.figures.generator_samples.GeneratedSamples", "n": 4}
    assert with_present_names([node]) == [{"_target_": "eblvm_lit.figures.samples.Samples", "n": 4}]
