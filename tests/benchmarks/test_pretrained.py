"""Tests of benchmarks.pretrained: its commands train the models of the package, and write folders that load."""

import pytest
import torch
from benchmarks.pretrained import RECIPES, Recipe, commands_of, main, make
from omegaconf import OmegaConf

import eblvm_lit
from benchmarks import pretrained
from eblvm_lit.cli.compose import composed
from eblvm_lit.runs.load import PRETRAINED
from eblvm_lit.runs.sharing import FILES
from eblvm_lit.utils.moved import with_present_names


def leaves(node, path=""):
    """Return the values of nested dicts by their dotted keys."""
    if not isinstance(node, dict):
        return {path: node}
    return {key: value for name, inner in node.items() for key, value in leaves(inner, f"{path}.{name}").items()}


def test_every_model_of_the_package_has_a_recipe():
    assert {*RECIPES} == {path.parent.name for path in PRETRAINED.glob("*/config.yaml")}


@pytest.mark.parametrize("name", RECIPES)
def test_a_card_has_the_commands_of_the_recipe_which_still_compose_to_the_stored_settings(name):
    stored = with_present_names(OmegaConf.to_container(OmegaConf.load(PRETRAINED / name / "config.yaml")))
    assert stored["command"] == commands_of(name)
    assert commands_of(name).replace(" && ", "\n") in (PRETRAINED / name / "README.md").read_text()
    now = composed([*RECIPES[name].runs[-1].split(), *(["init_from=first"] if RECIPES[name].runs[1:] else [])])
    for key in ("seed", "data", "method", "sampler"):
        before = leaves({key: stored.get(key, {})})
        node = OmegaConf.select(now, key)
        after = leaves({key: OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node})
        # A model of an older version lacks the keys that were added later, so that only the keys of both are compared.
        # The keys compile and root are left out, because they do not change the trained model.
        both = {path for path in before.keys() & after.keys() if not path.endswith((".compile", ".root"))}
        assert {path: before[path] for path in both} == {path: after[path] for path in both}
        assert both or key == "sampler"  # grbm_digits is older than the key sampler


def test_a_model_trained_twice_is_written_with_all_of_its_commands_and_continued(tmp_path, monkeypatch, unrendered):
    runs = ("method=dsm data=digits model.h_dim=3", "method=pcd data=digits model.h_dim=3 optimizer.lr=1e-3")
    monkeypatch.setitem(pretrained.RECIPES, "small", Recipe(runs))
    short = ("trainer.max_steps=2", "n_validations=1", "callbacks.evaluation=null", "callbacks.figures=null")
    folder = make("small", *short, output=tmp_path)
    assert {path.name for path in folder.iterdir()} == {*FILES}
    loaded = eblvm_lit.load(folder)
    last = eblvm_lit.load(tmp_path / "runs" / "small_2")
    first = eblvm_lit.load(tmp_path / "runs" / "small_1")
    assert type(loaded.method) is type(last.method) is not type(first.method)
    # The parameters of the second run are near those of the first, and are stored in half precision.
    parameters = {run: torch.nn.utils.parameters_to_vector(run.energy.parameters()) for run in (first, last, loaded)}
    assert (parameters[loaded] - parameters[last]).abs().max() < 2**-11 * parameters[last].abs().max()
    assert (parameters[first] - parameters[last]).abs().max() < 0.01
    assert loaded.config.command == commands_of("small")
    assert [words in (folder / "README.md").read_text() for words in runs] == [True, True]
    # The same command again finds both runs finished.
    before = (tmp_path / "runs" / "small_2" / "metrics.csv").stat().st_mtime_ns
    make("small", *short, output=tmp_path)
    assert (tmp_path / "runs" / "small_2" / "metrics.csv").stat().st_mtime_ns == before


def test_the_list_has_the_commands_and_a_missing_or_unknown_name_is_refused(capsys, monkeypatch):
    main("bimdsm_mnist", "--list")
    assert capsys.readouterr().out == f"bimdsm_mnist: {commands_of('bimdsm_mnist')}\n"
    main("--list")
    assert len(capsys.readouterr().out.splitlines()) == len(RECIPES)
    with pytest.raises(SystemExit):
        main("grbm_faces")
    assert "invalid choice" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["pretrained"])
    with pytest.raises(SystemExit):
        main()
    assert "name one of bidvl_mnist, bimdsm_mnist" in capsys.readouterr().err
