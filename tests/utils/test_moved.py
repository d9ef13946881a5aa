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
from eblvm_lit.utils.moved import DROPPED, MOVED, STEPS, with_present_names

FITTING = "eblvm_lit.draws.choice.FittingSampler"
SAMPLER = "eblvm_lit.samplers.sampler.Sampler"


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


def test_parts_that_are_gone_are_left_out():
    figures = {"score_bias": {"_target_": DROPPED[0]}, "curves": {"csv_path": "metrics.csv"}}
    assert with_present_names(figures) == {"score_bias": None, "curves": {"csv_path": "metrics.csv"}}


def former(deep):
    """Return the configuration of a sampler in its former format, which had a flag for deep models of images."""
    return {"_target_": "eblvm_lit.samplers.chain_samples.ChainSamples", "kind": "mean", "deep_images_only": deep}


@pytest.mark.parametrize("name", [name for name in MOVED.values() if name[name.rindex(".") + 1].isupper()])
def test_a_class_is_where_the_table_says(name):
    assert resolve_target(f"eblvm_lit.{name}", ()).__name__ == name.rpartition(".")[2]


@pytest.mark.parametrize(("deep", "target"), [(True, FITTING), (False, SAMPLER)])
def test_the_flag_of_a_former_sampler_is_a_class_of_its_own(deep, target):
    assert with_present_names({"sampler": former(deep)}) == {"sampler": {"_target_": target, "kind": "mean"}}


@pytest.mark.parametrize("place", STEPS)
def test_steps_beside_a_former_sampler_are_steps_of_it(place):
    node = {"_target_": f"eblvm_lit.{place}", "n_steps": 7, "step_size": 0.1, "sampler": former(True)}
    found = with_present_names(node)
    sampler = {"_target_": FITTING, "kind": "mean", "n_steps": 7, "step_size": 0.1}
    assert found == {"_target_": f"eblvm_lit.{place}", "sampler": sampler}
    # A former sampler for all models drops the steps beside it, because the present class has its own. If there is no
    # sampler, the steps stay, and the part that reads them refuses them.
    assert with_present_names({**node, "sampler": former(False)})["sampler"] == {"_target_": SAMPLER, "kind": "mean"}
    assert with_present_names({**node, "sampler": None}) == {**node, "sampler": None}


def test_figures_of_generators_are_figures_that_take_draws():
    node = {"_target_": "eblvm_lit.figures.generator_samples.GeneratedSamples", "n": 4}
    assert with_present_names([node]) == [{"_target_": "eblvm_lit.figures.samples.Samples", "n": 4}]
