"""A checkpoint or a configuration from a stranger is data: evaluating or resuming it executes nothing."""

import copy
import pickle

import pytest
import torch
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import OmegaConf

from eblvm_lit.cli.instantiate import LIBRARIES, instantiate
from eblvm_lit.errors import ConfigError, DataError, EblvmError
from helpers.pickled import Pickled
from helpers.shell import evaluate, train


def test_a_pickle_that_runs_a_command_is_refused(content, sentinel, tmp_path):
    hostile = Pickled(f"touch {sentinel}")
    pickle.loads(pickle.dumps(hostile))
    assert sentinel.exists()  # it would
    sentinel.unlink()
    path = tmp_path / "hostile.ckpt"
    torch.save({**content, "extra": hostile}, path)
    for attempt in (
        lambda: evaluate(tmp_path / "e", path),
        lambda: train(tmp_path / "t", "method=dsm", f"ckpt={path}"),
    ):
        with pytest.raises(DataError, match="not a readable checkpoint"):
            attempt()


def attacks(sentinel):
    """Nodes that would leave the sentinel behind if they were instantiated, and why they are not."""
    touch, own = f"touch {sentinel}", "eblvm_lit.cli.console.prepare_folder"
    system = {"_target_": "os.system", "command": touch}
    fetch = {
        "_target_": "eblvm_lit.cli.instantiate.resolve_target",
        "name": "os.system",
        "extra_packages": ["os"],
    }
    applied = {"_target_": "eblvm_lit.core.tensors.tree_map", "fn": fetch, "first": {"a": touch}}
    honest = {"_target_": "eblvm_lit.objectives.sm.SM"}
    forbidden = not_a_class = "may not name"
    return {
        "a function of os": (system, forbidden),
        "os by way of our module": (
            {**system, "_target_": "eblvm_lit.utils.io.os.system"},
            "There is no|may not name",
        ),
        "a module's import": ({"_target_": "eblvm_lit.cli.cli.sys"}, not_a_class),
        "a builtin": (
            {"_target_": "builtins.eval", "_args_": [f"open({str(sentinel)!r}, 'w')"]},
            "_args_|may not",
        ),
        "a process": ({"_target_": "subprocess.Popen", "args": ["touch", str(sentinel)]}, forbidden),
        "positional arguments": ({**honest, "_args_": [system]}, "_args_|may not name"),
        "a partial": ({**honest, "_partial_": True}, "has a key '_partial_' that is not allowed"),
        "deep inside lists": ({"a": [[{"b": [system]}]]}, forbidden),
        "an argument of an honest class": ({**honest, "extra": system}, forbidden),
        "a function of ours": ({"_target_": own, "path": str(sentinel)}, not_a_class),
        "functions of ours that fetch and call": (applied, not_a_class),
        "a class of ours imported from elsewhere": (
            {"_target_": "eblvm_lit.cli.run.Path", "a": "b"},
            not_a_class,
        ),
        "a target that is no string": ({"_target_": ["os.system"], "command": touch}, forbidden),
        "a method": ({"_target_": "eblvm_lit.methods.bism.BiSM.load_from_checkpoint"}, "There is no"),
        "a package that only begins like ours": ({"_target_": "eblvm_lit_evil.module.Class"}, forbidden),
        "the loader of a checkpoint": ({"_target_": "torch.load", "f": str(sentinel)}, forbidden),
    }


ATTACKS = sorted(attacks("sentinel"))
PLACES = [
    ("data",),
    ("method", "energy"),
    ("callbacks", "nonfinite"),
    ("callbacks", "evaluation", "metrics", "x"),
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_configuration_is_refused_wherever_it_stands(attack, content, sentinel, tmp_path):
    node, why = attacks(sentinel)[attack]
    with pytest.raises(ConfigError, match=why):
        instantiate(node, "node")
    for place in PLACES:
        hostile = copy.deepcopy(content)
        parent = hostile["eblvm_lit"]["config"]
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = node
        hostile["eblvm_lit"]["config"]["allow_packages"] = [
            "os",
            "subprocess",
            "builtins",
            "torch",
            "eblvm_lit_evil",
        ]
        torch.save(hostile, tmp_path / "hostile.ckpt")
        with pytest.raises(EblvmError) as refusal:
            evaluate(tmp_path / "e", tmp_path / "hostile.ckpt")
        assert "\n" not in str(refusal.value)
        assert not sentinel.exists()


def test_of_torch_a_configuration_may_name_what_starts_no_process(sentinel):
    handler = "torch.distributed.elastic.multiprocessing.subprocess_handler.SubprocessHandler"
    node = {"_target_": handler, "entrypoint": "touch", "args": [str(sentinel)]}
    with pytest.raises(ConfigError, match="may not name"):
        instantiate(node, "node", LIBRARIES)
    assert type(instantiate({"_target_": "torch.nn.ReLU"}, "node", LIBRARIES)).__name__ == "ReLU"


def test_nothing_is_built_before_everything_is_checked(sentinel, monkeypatch):
    built = []
    monkeypatch.setattr("eblvm_lit.objectives.sm.SM.__init__", lambda self: built.append(self))
    honest = {"_target_": "eblvm_lit.objectives.sm.SM"}
    instantiate([honest], "node")
    assert len(built) == 1
    with pytest.raises(ConfigError, match=r"may not name 'os.system'"):
        instantiate([honest, [{"a": attacks(sentinel)["a function of os"][0]}]], "node")
    assert len(built) == 1


def test_an_interpolation_that_becomes_a_target_is_not_resolved_after_the_check(sentinel):
    # Resolved once, an escaped interpolation is a string; resolved again it would be a node with a target.
    target = f"{{_target_: eblvm_lit.cli.console.prepare_folder, path: '{sentinel}'}}"
    cfg = OmegaConf.create({"node": {"a": '\\${oc.create:"' + target + '"}'}})
    plain = OmegaConf.to_container(cfg, resolve=True)
    hydra_instantiate(plain)
    assert sentinel.exists()  # as Hydra's own function does
    sentinel.rmdir()
    with pytest.raises(ConfigError, match=r"node\.node\.a has an interpolation, which is not resolved"):
        instantiate(cfg, "node")
    direct = OmegaConf.create({"node": {"a": '${oc.create:"' + target + '"}'}})
    with pytest.raises(ConfigError, match="may not name"):
        instantiate(direct, "node")


@pytest.mark.parametrize("part", ["logger", "trainer", "hydra", "model"])
def test_parts_that_evaluation_has_no_use_for_are_not_built(part, content, sentinel, tmp_path):
    hostile = copy.deepcopy(content)
    hostile["eblvm_lit"]["config"][part] = attacks(sentinel)["a function of os"][0]
    torch.save(hostile, tmp_path / "hostile.ckpt")
    evaluate(tmp_path / "e", tmp_path / "hostile.ckpt")


def test_evaluation_writes_into_its_own_folder_alone(content, tmp_path):
    hostile = copy.deepcopy(content)
    elsewhere = tmp_path / "elsewhere"
    figures = {"_target_": "eblvm_lit.training.callbacks.figures.Figures", "figures": {}, "save_dir": str(elsewhere)}
    hostile["eblvm_lit"]["config"]["callbacks"]["figures"] = figures
    hostile["eblvm_lit"]["config"]["run_dir"] = str(elsewhere)
    torch.save(hostile, tmp_path / "hostile.ckpt")
    evaluate(tmp_path / "own", tmp_path / "hostile.ckpt")
    assert not elsewhere.exists()
    assert (tmp_path / "own" / "evaluation.json").exists()
