"""Checkpoints and configurations from strangers are data: evaluating or resuming them executes nothing."""

import importlib
import inspect
import pickle
import re
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import OmegaConf

import eblvm_lit
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.runs.instantiate import FOLDERS, LIBRARIES, instantiate
from eblvm_lit.training.checkpoint_io import load_checkpoint
from helpers.pickled import Pickled
from helpers.shell import evaluate, train

HONEST = {"_target_": "eblvm_lit.objectives.sm.SM"}


def test_a_pickle_that_runs_a_command_is_refused(content, sentinel, tmp_path):
    hostile = Pickled(f"touch {sentinel}")
    pickle.loads(pickle.dumps(hostile))
    assert sentinel.exists()  # unpickling executes the command
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
    """Return malicious nodes by name, each with a pattern that the message of its refusal contains.

    If a node were instantiated, it would execute code, such as the command that creates the sentinel file.
    """
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


TRAINER = {"_target_": "pytorch_lightning.Trainer", "default_root_dir": "ftp://127.0.0.1:1/x", "logger": False}
# Classes that a stranger's method, sampler or callbacks may not name: they create folders, connect to hosts, start
# processes or read files.
MISPLACED = {
    "a trainer": TRAINER,
    "a trainer by its own name": {**TRAINER, "_target_": "pytorch_lightning.trainer.trainer.Trainer"},
    "a logger of Lightning": {"_target_": "pytorch_lightning.loggers.CSVLogger", "save_dir": "x"},
    "a callback of Lightning": {"_target_": "pytorch_lightning.callbacks.ModelCheckpoint", "dirpath": "x"},
    "a logger of ours": {"_target_": "eblvm_lit.training.loggers.wandb.WandbRun", "save_dir": "x", "project": "p"},
    "a callback of ours": {"_target_": "eblvm_lit.training.callbacks.figures.Figures", "save_dir": "x", "figures": {}},
    "data": {"_target_": "eblvm_lit.data.image_folder.ImageFolder", "root": "x", "path": "/etc"},
    "a command": {"_target_": "eblvm_lit.cli.sweeps.Sweep"},
    "a wrapper that starts processes": {"_target_": "torch.nn.parallel.DistributedDataParallel", "module": None},
}
PLACES = {
    "method": lambda misplaced: instantiate({**HONEST, "a": misplaced}, "method"),
    "sampler": lambda misplaced: instantiate(misplaced, "sampler", ["helpers"]),
    "callbacks": lambda misplaced: instantiate([{"a": misplaced}], "callbacks.figures"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", MISPLACED)
def test_a_strangers_configuration_names_what_belongs_to_its_part(name, place, monkeypatch):
    monkeypatch.setattr("hydra.utils.instantiate", lambda *args, **kwargs: "built")
    # Callbacks and data are allowed among the callbacks, because figures and metrics of outliers contain data.
    if place == "callbacks" and name in ("a callback of ours", "data"):
        assert PLACES[place](MISPLACED[name]) == "built"
    else:
        with pytest.raises(ConfigError, match="may not name"):
            PLACES[place](MISPLACED[name])


def test_a_strangers_configuration_may_name_modules_of_torch():
    parts = [{"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3}, {"_target_": "torch.nn.ReLU"}]
    linear, _ = instantiate(parts, "method.network")
    assert isinstance(linear, torch.nn.Linear)


def test_hydra_may_build_only_the_classes_that_were_checked(monkeypatch):
    given = {}
    monkeypatch.setattr("hydra.utils.execution_whitelist", lambda names, reset: (names, reset), raising=False)
    monkeypatch.setattr("hydra.utils.instantiate", lambda node, **options: given.update(options))
    instantiate({"a": [HONEST, {**HONEST}], "b": {"_target_": "torch.nn.ReLU"}}, "method")
    names, is_complete = given["_execution_whitelist_"]
    assert {*names} == {HONEST["_target_"], "torch.nn.ReLU", "torch.nn.modules.activation.ReLU"}
    assert is_complete  # and not in addition to the list of hydra.main


@pytest.mark.filterwarnings("error")  # Hydra 1.4 warns about a call without a list, and Hydra 1.5 refuses it
@pytest.mark.parametrize("name", ["loggers.CSVLogger", "callbacks.EarlyStopping", "Trainer"])
def test_classes_of_lightning_are_built_by_their_short_names(name, tmp_path):
    arguments = {"CSVLogger": {"save_dir": str(tmp_path)}, "EarlyStopping": {"monitor": "x"}}
    node = {"_target_": f"pytorch_lightning.{name}", **arguments.get(name.rpartition(".")[2], {"logger": False})}
    built = instantiate(node, "part", LIBRARIES)
    assert type(built).__name__ == name.rpartition(".")[2]


def paths_of(function):
    """Return the arguments of a constructor that are paths, by their annotation or their name."""
    for name, argument in inspect.signature(function).parameters.items():
        kind = str(argument.annotation)
        if "Path" in kind or ("str" in kind and re.search(r"path|root|weights|file|folder|(^|_)dir", name)):
            yield name


def test_every_path_that_a_checkpoint_may_name_is_known():
    # The loader replaces the paths save_dir, cache_dir and csv_path of a checkpoint. A run sets the paths of data and
    # of networks' weights.
    found = set()
    package = Path(eblvm_lit.__file__).parent
    for file in package.rglob("*.py"):
        name = ".".join(["eblvm_lit", *file.relative_to(package).with_suffix("").parts])
        if any(name.startswith(f"eblvm_lit.{folder}.") for folders in FOLDERS.values() for folder in folders):
            module = importlib.import_module(name)
            classes = (c for c in vars(module).values() if isinstance(c, type) and c.__module__ == name)
            classes = (c for c in classes if not issubclass(c, Exception))
            found |= {argument for c in classes if c.__init__ is not object.__init__ for argument in paths_of(c)}
    found -= {"save_dir", "cache_dir", "csv_path", "weights"}
    # the other arguments are paths of data and of trained models
    assert found <= {"root", "path", "train", "val", "test", "run_folder"}, found


def test_nothing_is_built_before_everything_is_checked(sentinel, monkeypatch):
    built = []
    monkeypatch.setattr("eblvm_lit.objectives.sm.SM.__init__", lambda self: built.append(self))
    instantiate([HONEST], "node")
    with pytest.raises(ConfigError, match=r"os.system"):
        instantiate([HONEST, [{"a": system(sentinel)}]], "node")
    assert len(built) == 1


def test_an_interpolation_that_becomes_a_target_is_not_resolved_after_the_check(sentinel):
    # An escaped interpolation that is resolved once is a string. If it were resolved twice, it would become a node with
    # a target.
    target = f"{{_target_: eblvm_lit.utils.folders.prepare_folder, path: '{sentinel}'}}"
    cfg = OmegaConf.create({"node": {"a": '\\${oc.create:"' + target + '"}'}})
    hydra_instantiate(OmegaConf.to_container(cfg, resolve=True))
    assert sentinel.exists()  # Hydra's own function resolves the interpolation twice, and executes its target
    sentinel.rmdir()
    with pytest.raises(ConfigError, match=r"node\.node\.a"):
        instantiate(cfg, "node")
    with pytest.raises(ConfigError, match="prepare_folder"):
        instantiate(OmegaConf.create({"node": {"a": '${oc.create:"' + target + '"}'}}), "node")


def test_a_hostile_checkpoint_is_refused(content, sentinel, tmp_path):
    config = content["eblvm_lit"]["config"]
    config["callbacks"]["evaluation"]["metrics"]["x"] = system(sentinel)
    config["allow_packages"] = ["os"]  # only the user may give this permission, and not the checkpoint
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


def test_curves_are_drawn_of_the_checkpoints_own_run(content, tmp_path):
    run = tmp_path / "run"
    drawn = {"_target_": "eblvm_lit.figures.learning_curves.LearningCurves"}
    secret = tmp_path / "secret.csv"
    secret.write_text("iteration,password\n1,1\n2,2\n")
    figures = {"_target_": "eblvm_lit.training.callbacks.figures.Figures", "save_dir": "x"}
    figures |= {"figures": {"curves": {**drawn, "csv_path": str(secret)}}}
    content["eblvm_lit"]["config"]["callbacks"]["figures"] = figures
    (run / "checkpoints").mkdir(parents=True)
    torch.save(content, run / "checkpoints" / "last.ckpt")
    evaluate(tmp_path / "evaluated", run)
    assert not (tmp_path / "evaluated" / "figures").exists()  # no curves are drawn, because the run has none
    (run / "metrics.csv").write_text("iteration,val/loss\n1,1\n2,2\n")
    evaluate(tmp_path / "evaluated", run)
    assert (tmp_path / "evaluated" / "figures" / "curves.png").exists()


WRONG = [5, "word", [1], {"a": 5}, {"_target_": 5}, {"_target_": "eblvm_lit.objectives.sm.SM"}]


@pytest.mark.parametrize("part", ["data", "method", "callbacks", "callbacks.evaluation", "sampler", "eval_weights"])
def test_a_part_of_the_wrong_kind_is_named(part, content, tmp_path):
    *above, name = part.split(".")
    node = content["eblvm_lit"]["config"]
    for key in above:
        node = node[key]
    for value in WRONG:
        node[name] = value
        torch.save(content, tmp_path / "wrong.ckpt")
        # Loading may succeed, because it does not use the callbacks, but it may raise no other errors than these two.
        with suppress(ConfigError, DataError):
            _ = (run := eblvm_lit.load(tmp_path / "wrong.ckpt")).sampler, run.data
        # A wrong sampler has no effect here, because the figures and metrics of DSM use no sampler.
        if part != "sampler":
            with pytest.raises((ConfigError, DataError)):
                evaluate(tmp_path / "e", tmp_path / "wrong.ckpt")


def test_endless_containers_of_a_checkpoint_are_refused(content, tmp_path):
    node = [0] * 10
    for _ in range(9):
        node = [node] * 10
    content["eblvm_lit"]["config"]["sampler"] = node
    torch.save(content, tmp_path / "endless.ckpt")
    for use in (lambda path: evaluate(tmp_path / "e", path), eblvm_lit.load, load_checkpoint):
        with pytest.raises(DataError, match="too many"):
            use(tmp_path / "endless.ckpt")
