"""Tests of trained energies in configurations: the guide of a run's sampler is a trained model, whose files are data."""

import pytest
import torch

import eblvm_lit
from eblvm_lit import ConfigError, DataError
from eblvm_lit.runs.instantiate import instantiate
from eblvm_lit.runs.trained_energy import TrainedEnergy

SHORT = ["method=dual", "data=moons", "method.compile=false", "show_config=false", "callbacks.progress=null"]
SHORT += ["callbacks.figures=null", "callbacks.evaluation=null", "n_validations=1", "model.energy.network.widths=[8]"]
TARGET = "eblvm_lit.runs.trained_energy.TrainedEnergy"


@pytest.fixture(scope="module")
def weak(tmp_path_factory):
    """Train an energy F(v, t) of the moons for one iteration, as the weaker model."""
    folder = tmp_path_factory.mktemp("runs") / "weak"
    return eblvm_lit.train([*SHORT, "trainer.max_steps=1", f"run_dir={folder}"])


def test_a_run_samples_with_the_guide_that_its_configuration_names(weak, tmp_path):
    guide = TrainedEnergy(path=str(weak.folder))
    w = torch.randn(4, 3)
    torch.testing.assert_close(guide.free_energy(w), weak.energy.every_level.free_energy(w))
    assert not any(parameter.requires_grad for parameter in guide.parameters())
    words = ["sampler=guided_flow", f"sampler.dynamics.guide.path={weak.folder}", "sampler.dynamics.n_steps=3"]
    run = eblvm_lit.train([*SHORT, *words, "trainer.max_steps=3", f"run_dir={tmp_path / 'run'}"])
    loaded = eblvm_lit.load(tmp_path / "run")  # an untrusted configuration, whose sampler may name a trained model
    guided = loaded.sample(5, seed=0)
    torch.testing.assert_close(guided, run.sample(5, seed=0))
    loaded.config.sampler.dynamics.guidance = 0.0
    assert not torch.allclose(guided, loaded.sample(5, seed=0))


def test_models_of_one_level_and_missing_models_are_refused_and_only_samplers_may_name_one():
    with pytest.raises(ConfigError, match="method=dual"):
        TrainedEnergy(path="grbm_digits")
    with pytest.raises(DataError, match="no checkpoint at nowhere"):
        TrainedEnergy(path="nowhere")
    with pytest.raises(ConfigError, match="may not name"):
        instantiate({"_target_": TARGET, "path": "nowhere"}, "method")
