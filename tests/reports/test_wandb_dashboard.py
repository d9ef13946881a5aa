"""Tests of the W&B dashboard and of searches by W&B's agents, as far as they are possible without a network."""

import runpy
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from eblvm_lit.utils.quantities import direction
from helpers.shell import CONF, ROOT, configure

dashboard = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "wandb_dashboard.py")))


def test_panels_show_existing_metrics_figures_and_keys():
    assert all(direction(name) for name in (*dashboard.RESULTS, *dashboard.GRIDS))
    named = {key for path in (CONF / "figures").glob("*.yaml") for key in OmegaConf.load(path)}
    assert {*dashboard.FIGURES} <= named
    config = configure("method=bidsm")
    assert all(type(OmegaConf.select(config, key)) is int for key in (dashboard.N, dashboard.K))


def test_the_workspace_is_accepted_by_the_package_itself():
    pytest.importorskip("wandb_workspaces")
    workspace = dashboard.build("team", "project")
    assert [section.name for section in workspace.sections] == ["Results", "N x K", "Validation", "Training", "Figures"]


# --- searches ---------------------------------------------------------------------------------------------

SWEEPS = sorted((ROOT / "wandb_sweeps").glob("*.yaml"))
MACROS = {"${env}": "/usr/bin/env", "${program}": "train.py"}


def first_of(parameter):
    return parameter["values"][0] if "values" in parameter else parameter.get("value", parameter.get("min"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_an_agent_s_command_composes_and_every_parameter_is_a_key(path):
    sweep = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    found = {name: first_of(parameter) for name, parameter in sweep["parameters"].items()}
    command = []
    for part in sweep["command"]:
        command += [f"{name}={value}" for name, value in found.items()] if part == "${args_no_hyphens}" else [part]
    command = [MACROS.get(part, part) for part in command]
    assert command[:3] == ["/usr/bin/env", "python", "train.py"]
    assert (ROOT / command[2]).is_file()
    config = configure(*command[3:])  # configure refuses unknown keys and options
    assert {name: OmegaConf.select(config, name) for name in found} == found
    assert "wandb" in config.logger  # without this logger the agents would not receive results
    metric = sweep["metric"]
    assert direction(metric["name"]) == {"minimize": -1, "maximize": 1}[metric["goal"]]
    assert metric["name"].removeprefix("val/") in config.callbacks.evaluation.at_validation
    # a parameter with the name of a group would replace that group's configuration in W&B
    assert not set(found) & set(config)
