"""Tests of the functions that read the files of a run."""

from omegaconf import OmegaConf

from eblvm_lit.utils.run_files import read_command


def test_the_command_of_a_run_is_its_own_record_and_that_of_hydra_in_earlier_versions(tmp_path):
    (tmp_path / ".hydra").mkdir()
    # Earlier versions wrote this file for runs that were started from Python.
    OmegaConf.save(["seed=1"], tmp_path / ".hydra" / "overrides.yaml")
    assert read_command(tmp_path) == {"overrides": ["seed=1"]}
    hydra = {"overrides": {"task": ["seed=2"]}, "runtime": {"choices": {"data": "digits"}}}
    OmegaConf.save({"hydra": hydra}, tmp_path / ".hydra" / "hydra.yaml")
    assert read_command(tmp_path) == {"overrides": ["seed=2"], "choices": {"data": "digits"}}
    OmegaConf.save({"overrides": ["seed=3"], "choices": {}}, tmp_path / "command.yaml")
    assert read_command(tmp_path) == {"overrides": ["seed=3"], "choices": {}}
