"""The dashboard of the project and the searches for W&B's agents, as far as they go without a network."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from eblvm_lit.evaluation.directions import direction
from eblvm_lit.training.loggers import dashboards
from eblvm_lit.training.loggers.dashboards import best, build, layout, main
from shell import CONF, ROOT, configure

PANELS = [panel for section in layout() for panel in section.panels]


def test_every_metric_that_is_compared_has_a_direction_and_stands_by_its_best():
    compared = [panel.metric for panel in PANELS if panel.kind in ("bar", "grid")]
    assert {
        "test/fid": ".min",
        "test/log_likelihood": ".max",
        "test/rmse": ".min",
        "test/auroc_svhn": ".max",
    }.items() <= {name: best(name).removeprefix(name) for name in compared}.items()
    assert all(direction(name) for name in compared)
    assert len(compared) == len(PANELS) - sum(panel.kind in ("line", "media") for panel in PANELS)


def test_panels_are_of_figures_and_keys_that_there_are():
    (media,) = (panel for panel in PANELS if panel.kind == "media")
    named = set()
    for path in (CONF / "figures").glob("*.yaml"):
        named |= {key for key in OmegaConf.load(path) if key != "defaults"}
    assert {name.removeprefix("figures/") for name in media.metric} <= named
    config = configure("method=bidsm")
    for key in (dashboards.N, dashboards.K):
        assert type(OmegaConf.select(config, key)) is int


class Recorder:
    """Stands for a module of W&B's: what is made of it is what it was given."""

    def __getattr__(self, kind):
        return lambda *args, **options: SimpleNamespace(kind=kind, args=args, **options)


@pytest.fixture
def recorded(monkeypatch):
    package = SimpleNamespace(reports=SimpleNamespace(v2=Recorder()), workspaces=Recorder())
    modules = {"": package, ".reports": package.reports, ".reports.v2": Recorder(), ".workspaces": Recorder()}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"wandb_workspaces{name}", module)


def test_the_layout_becomes_a_workspace(recorded):
    workspace = build(layout(), "team", "project")
    assert (workspace.kind, workspace.entity, workspace.project) == ("Workspace", "team", "project")
    panels = {panel.title: panel for section in workspace.sections for panel in section.panels}
    assert len(panels) == len(PANELS)
    assert (panels["val/loss"].kind, panels["val/loss"].x, panels["val/loss"].y) == (
        "LinePlot",
        "iteration",
        ["val/loss"],
    )
    assert panels["test/fid"].metrics == ["test/fid.min"]
    grid = panels["test/log_likelihood over N and K"]
    assert (grid.x.args, grid.y.args) == (("method.n_unroll",), ("method.n_lower_steps",))
    assert (grid.z.kind, grid.z.args) == ("SummaryMetric", ("test/log_likelihood.max",))


def test_the_layout_is_accepted_by_the_package_itself():
    pytest.importorskip("wandb_workspaces")
    assert [section.name for section in build(layout(), "team", "project").sections] == [s.title for s in layout()]


def test_the_command_shows_sends_or_ends_in_a_sentence(recorded, capsys, monkeypatch):
    assert main(["--show"]) == 0
    assert [section["title"] for section in json.loads(capsys.readouterr().out)] == [s.title for s in layout()]
    assert main([]) == 1
    assert (
        capsys.readouterr().err
        == "ERROR: Whose project is it? python -m eblvm_lit.training.loggers.dashboards --entity TEAM\n"
    )

    def refuse():
        raise RuntimeError("no\nnetwork")

    workspace = SimpleNamespace(save=lambda: None, url="https://wandb.ai/team")
    monkeypatch.setattr(dashboards, "build", lambda *args: workspace)
    assert main(["--entity", "team"]) == 0
    assert capsys.readouterr().out == "https://wandb.ai/team\n"
    workspace.save = refuse
    assert main(["--entity", "team"]) == 1
    assert capsys.readouterr().err.startswith("ERROR: W&B did not take the dashboard (no network): ")


def test_without_the_package_the_command_says_what_to_install(capsys, monkeypatch):
    for name in ("wandb_workspaces", "wandb_workspaces.workspaces", "wandb_workspaces.reports.v2"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["--entity", "team"]) == 1
    assert "pip install wandb-workspaces" in capsys.readouterr().err


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
    config = configure(*command[3:])  # unknown keys and options are refused here
    assert {name: OmegaConf.select(config, name) for name in found} == found
    assert "wandb" in config.logger  # its results would not reach the agents otherwise
    # a parameter of the name of a group would take the place of that group's configuration in W&B
    assert not set(found) & set(config)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_what_a_search_looks_at_is_computed_at_validations(path):
    sweep = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    name, goal = sweep["metric"]["name"], sweep["metric"]["goal"]
    assert direction(name) == {"minimize": -1, "maximize": 1}[goal]
    config = configure(*[part for part in sweep["command"] if re.fullmatch(r"\w+=\w+", part)])
    assert name.removeprefix("val/") in config.callbacks.evaluation.at_validation


def test_the_frey_face_grid_is_that_of_the_paper():
    (path,) = (path for path in SWEEPS if path.stem == "frey_face_n_k")
    parameters = OmegaConf.load(path).parameters
    assert parameters["method.n_unroll"]["values"] == [0, 1, 5, 10]
    assert parameters["method.n_lower_steps"]["values"] == [1, 5, 10]
