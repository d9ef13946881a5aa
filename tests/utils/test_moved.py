"""Configurations of older checkpoints, which name former classes and keys."""

import pytest

from eblvm_lit.runs.instantiate import resolve_target
from eblvm_lit.utils.moved import MOVED, STEPS, with_present_names

FITTING = "eblvm_lit.draws.choice.FittingSampler"
SAMPLER = "eblvm_lit.samplers.sampler.Sampler"


def former(deep):
    """A sampler as it was, which said that it was for images of deep models only."""
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
    # a sampler for all models draws by steps of its own; without one, the steps are refused where they are read
    assert with_present_names({**node, "sampler": former(False)})["sampler"] == {"_target_": SAMPLER, "kind": "mean"}
    assert with_present_names({**node, "sampler": None}) == {**node, "sampler": None}


def test_figures_of_generators_are_figures_that_take_draws():
    node = {"_target_": "eblvm_lit.figures.generator_samples.GeneratedSamples", "n": 4}
    assert with_present_names([node]) == [{"_target_": "eblvm_lit.figures.samples.Samples", "n": 4}]
