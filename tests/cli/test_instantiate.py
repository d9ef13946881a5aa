"""A checkpoint or a configuration from a stranger is data: evaluating or resuming it executes nothing."""

import pickle

import pytest
import torch
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import OmegaConf

from eblvm_lit.cli.instantiate import LIBRARIES, instantiate
from eblvm_lit.errors import ConfigError, DataError
from helpers.pickled import Pickled
from helpers.shell import evaluate, train

HONEST = {"_target_": "eblvm_lit.objectives.sm.SM"}


def test_a_pickle_that_runs_a_command_is_refused(content, sentinel, tmp_path):
    hostile = Pickled(f"touch {sentinel}")
    pickle.loads(pickle.dumps(hostile))
    assert sentinel.exists()  # it would
    sentinel.unlink()
    path = tmp_path / "hostile.ckpt"
    torch.save({**content, "extra": hostile}, path)
    with pytest.raises(DataError, match=r"hostile\.ckpt"):
        evaluate(tmp_path / "e", path)
    with pytest.raises(DataError, match=r"hostile\.ckpt"):
        train(tmp_path / "t", "method=dsm", f"ckpt={path}")


def system(sentinel):
    return {"_target_": "os.system", "command": f"touch {sentinel}"}


HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.SubprocessHandler"


def attacks(sentinel):
    """Nodes that would leave the sentinel behind if they were instantiated, and what their refusal names."""
    attack = system(sentinel)
    return {
        "a function of os": (attack, "os.system"),
        "positional arguments": ({**HONEST, "_args_": [attack]}, "_args_|os.system"),
        "deep inside lists": ({"a": [[{"b": [attack]}]]}, "os.system"),
        "a function of ours": ({"_target_": "eblvm_lit.core.tensors.tree_map", "fn": attack}, "eblvm_lit"),
        "a method": ({"_target_": "eblvm_lit.methods.bism.BiSM.load_from_checkpoint"}, "load_from_checkpoint"),
        "a class of torch that starts a process": ({"_target_": HANDLER, "args": [str(sentinel)]}, "SubprocessHandler"),
        "a package that only begins like ours": ({"_target_": "eblvm_lit_evil.module.Class"}, "eblvm_lit_evil"),
    }


@pytest.mark.parametrize("attack", attacks("sentinel"))
def test_a_hostile_configuration_is_refused(attack, sentinel):
    node, named = attacks(sentinel)[attack]
    with pytest.raises(ConfigError, match=named):
        instantiate(node, "node", LIBRARIES)
    assert not sentinel.exists()


def test_nothing_is_built_before_everything_is_checked(sentinel, monkeypatch):
    built = []
    monkeypatch.setattr("eblvm_lit.objectives.sm.SM.__init__", lambda self: built.append(self))
    instantiate([HONEST], "node")
    with pytest.raises(ConfigError, match=r"os.system"):
        instantiate([HONEST, [{"a": system(sentinel)}]], "node")
    assert len(built) == 1


def test_an_interpolation_that_becomes_a_target_is_not_resolved_after_the_check(sentinel):
    # Resolved once, an escaped interpolation is a string; resolved again it would be a node with a target.
    target = f"{{_target_: eblvm_lit.cli.console.prepare_folder, path: '{sentinel}'}}"
    cfg = OmegaConf.create({"node": {"a": '\\${oc.create:"' + target + '"}'}})
    hydra_instantiate(OmegaConf.to_container(cfg, resolve=True))
    assert sentinel.exists()  # as Hydra's own function does
    sentinel.rmdir()
    with pytest.raises(ConfigError, match=r"node\.node\.a"):
        instantiate(cfg, "node")
    with pytest.raises(ConfigError, match="prepare_folder"):
        instantiate(OmegaConf.create({"node": {"a": '${oc.create:"' + target + '"}'}}), "node")


def test_a_hostile_checkpoint_is_refused(content, sentinel, tmp_path):
    config = content["eblvm_lit"]["config"]
    config["callbacks"]["evaluation"]["metrics"]["x"] = system(sentinel)
    config["allow_packages"] = ["os"]  # its leave is not the user's
    torch.save(content, tmp_path / "hostile.ckpt")
    with pytest.raises(ConfigError, match=r"os\.system"):
        evaluate(tmp_path / "e", tmp_path / "hostile.ckpt")


def test_evaluation_writes_into_its_own_folder_alone(content, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    figures = {"_target_": "eblvm_lit.training.callbacks.figures.Figures", "figures": {}, "save_dir": str(elsewhere)}
    content["eblvm_lit"]["config"]["callbacks"]["figures"] = figures
    content["eblvm_lit"]["config"]["run_dir"] = str(elsewhere)
    torch.save(content, tmp_path / "hostile.ckpt")
    evaluate(tmp_path / "own", tmp_path / "hostile.ckpt")
    assert not elsewhere.exists()
    assert (tmp_path / "own" / "evaluation.json").exists()
