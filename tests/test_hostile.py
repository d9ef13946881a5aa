"""A corpus of hostile checkpoints and configurations: none runs, each ends in a sentence."""

import copy
import pickle

import pytest
import torch

from eblvm_lit.cli import run
from eblvm_lit.cli.checkpoint_config import stored_config
from eblvm_lit.cli.instantiate import instantiate, resolve_target
from eblvm_lit.cli.validate import EVALUATE_KEYS, TRAIN_KEYS
from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.training.callbacks.checkpoints import load_checkpoint
from eblvm_lit.training.callbacks.figures import Figures
from hostile import NESTED, files, pickles
from shell import composed, configure, train


def evaluate(folder, content=None, **changes):
    """Evaluate a checkpoint of some content."""
    cfg = copy.deepcopy(composed(name="evaluate"))
    cfg.ckpt, cfg.run_dir, cfg.cache_dir = str(folder / "strange.ckpt"), str(folder / "own"), str(folder / "cache")
    for key, value in changes.items():
        cfg[key] = value
    if content is not None:
        torch.save(content, cfg.ckpt)
    return run.evaluate(cfg)


def refuse(attempt, *args, why="", **options):
    """The one sentence in which an attempt ends."""
    with pytest.raises(EblvmError, match=why) as refusal:
        attempt(*args, **options)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


# --- files ------------------------------------------------------------------------------------------------

PICKLES = sorted(pickles("sentinel"))
FILES = sorted(files("sentinel", {"state_dict": {}}))


def test_the_corpus_would_execute_if_it_were_unpickled(tmp_path):
    # as a loader without its guard would; those left out fetch, or need a file of somebody
    harmless = {"torch.hub", "import by name", "importlib.import_module", "torch.load without its guard"}
    for i, name in enumerate(sorted(set(PICKLES) - harmless)):
        path = tmp_path / str(i)
        hostile = pickle.dumps(pickles(path)[name])
        try:
            found = pickle.loads(hostile)
        except Exception:
            found = None  # it has done it by then
        if hasattr(found, "wait"):
            found.wait()
        assert path.exists() or (tmp_path / f"{i}.npy").exists(), name


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused(name, content, sentinel, tmp_path):
    path = tmp_path / "strange.ckpt"
    path.write_bytes(files(sentinel, content)[name])
    sentence = refuse(load_checkpoint, path, why=r"strange.ckpt is not a (readable )?checkpoint")
    assert "weights_only" not in sentence  # torch says how to execute it nevertheless
    assert sentence.isprintable()


@pytest.mark.parametrize("name", ["os.system, zip", "os.system, legacy", "in an optimizer's state", "a bare pickle"])
def test_neither_evaluating_nor_going_on_reads_it(name, content, sentinel, tmp_path):
    (tmp_path / "strange.ckpt").write_bytes(files(sentinel, content)[name])
    refuse(evaluate, tmp_path)
    refuse(train, tmp_path / "run", "method=dsm", f"ckpt={tmp_path / 'strange.ckpt'}")


@pytest.mark.parametrize("address", ["https://x.org/a.ckpt", "s3://x/a", "file:///etc/passwd", "memory://a", "gs:/x"])
def test_an_address_is_no_file(address, tmp_path):
    refuse(evaluate, tmp_path, ckpt=address, why="is an address")
    refuse(train, tmp_path / "run", f"ckpt='{address}'", why="ckpt=.* is an address")
    refuse(train, tmp_path / "run", "data=frey_face", f"data.root='{address}'", why="data.root=.* is an address")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"status.json"}  # that it was refused


# --- what a checkpoint says of itself ---------------------------------------------------------------------

DAMAGES = {
    "parameters that are none": lambda c: c["state_dict"].update(extra="text"),
    "parameters without names": lambda c: c["state_dict"].update({7: torch.zeros(1)}),
    "no parameters": lambda c: c["state_dict"].clear(),
    "an iteration that is none": lambda c: c["eblvm_lit"].update(iteration=[1]),
    "a method of another class": lambda c: c["eblvm_lit"].update(method="os.system"),
    "a seed that is none": lambda c: c["eblvm_lit"]["config"].update(seed="1; import os"),
    "weights that are none": lambda c: c["eblvm_lit"]["config"].update(eval_weights="../../etc/passwd"),
    "a tensor for a configuration": lambda c: c["eblvm_lit"]["config"].update(data=torch.zeros(3)),
    "a tensor in a configuration": lambda c: c["eblvm_lit"]["config"]["data"].update(batch_size=torch.ones(1)),
    "keys that are no names": lambda c: c["eblvm_lit"]["config"]["data"].update({1: 2, "b": 3}),
    "a value that is missing": lambda c: c["eblvm_lit"]["config"]["data"].update(batch_size="???"),
    "more than the machine has": lambda c: c["eblvm_lit"]["config"]["method"]["energy"].update(h_dim=10**15),
    "more than a number holds": lambda c: c["eblvm_lit"]["config"]["method"]["energy"].update(h_dim=10**30),
    "callbacks that are none": lambda c: c["eblvm_lit"]["config"].update(callbacks={"evaluation": 5}),
    "a method that is none": lambda c: c["eblvm_lit"]["config"].update(method={"_target_": 7}),
}


def nested(depth):
    inner = "bottom"
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_says_what_cannot_be_is_refused(damage, content, tmp_path):
    hostile = copy.deepcopy(content)
    DAMAGES[damage](hostile)
    refuse(evaluate, tmp_path, hostile)


def test_a_configuration_deeper_than_the_stack_is_refused(content):
    cfg = copy.deepcopy(composed(name="evaluate"))
    cfg.ckpt = "strange.ckpt"
    config = {**content["eblvm_lit"]["config"], "extra": nested(NESTED)}
    refuse(stored_config, config, cfg, why="strange.ckpt holds no configuration that can be read")


@pytest.mark.parametrize("key", ["loops", "optimizer_states", "global_step"])
@pytest.mark.parametrize("value", [None, "text"])
def test_a_checkpoint_without_what_goes_on_is_not_gone_on_with(key, value, content, tmp_path):
    hostile = copy.deepcopy(content)
    hostile[key] = value
    torch.save(hostile, tmp_path / "strange.ckpt")
    going_on = ("method=dsm", f"ckpt={tmp_path / 'strange.ckpt'}")
    refuse(train, tmp_path / "run", *going_on, why=f"cannot be resumed: its {key} are missing")


# --- targets ----------------------------------------------------------------------------------------------

TARGETS = [
    *("os.system", "posix.system", "builtins.exec", "builtins.eval", "subprocess.Popen", "shutil.rmtree"),
    *("torch.hub.load", "torch.load", "torch.jit.load", "hydra.utils.instantiate", "hydra.utils.call"),
    *("omegaconf.OmegaConf.register_new_resolver", "pytorch_lightning.LightningModule.load_from_checkpoint"),
    *(
        "eblvm_lit.utils.io.os.system",
        "eblvm_lit.cli.cli.sys.modules",
        "eblvm_lit.cli.instantiate.importlib.import_module",
    ),
    *(
        "eblvm_lit.cli.instantiate.importlib",
        "eblvm_lit.training.provenance.subprocess.run",
        "eblvm_lit.utils.io.shutil.rmtree",
    ),
    *(
        "eblvm_lit.data.torchvision_sets.gzip.open",
        "eblvm_lit.utils.io.replacing",
        "eblvm_lit.training.provenance._git",
    ),
    *(
        "eblvm_lit.cli.run.__builtins__.exec",
        "eblvm_lit.objectives.sm.SM.__init__.__globals__",
        "eblvm_lit.cli.run.Path",
    ),
    *(
        "eblvm_lit.reports.__main__.main",
        "eblvm_lit.cli.run.DictConfig",
        "eblvm_lit.cli.instantiate.instantiate",
    ),
    *(
        "eblvm_lit",
        "eblvm_lit.",
        ".eblvm_lit.cli.run",
        "..",
        "",
        " ",
        "os",
        "eblvm_lit..run.X",
        " eblvm_lit.cli.run.Parts",
    ),
    *("ｅblvm_lit.objectives.sm.SM", "еblvm_lit.objectives.sm.SM", "eblvm_lit.objectives.sm.ＳＭ"),
    *("eblvm_lit\u200b.objectives.sm.SM", "eblvm_lit.objectives.sm.SM\n", "EBLVM_LIT.objectives.sm.SM"),
    *("eblvm_lit.\0.SM", "eblvm_lit.\ud800.SM", "eblvm_lit/../os.system", "eblvm_lit-evil.SM", "eblvm_lit_.run.X"),
    *("eblvm_lit." + "a" * 100_000 + ".X", "eblvm_lit.cli.run" + ".x" * 10_000),
    *(7, None, True, 1.5, ["os.system"], {"a": "os.system"}, {"_target_": "os.system"}),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: ascii(target)[:60])
def test_a_target_names_a_class_of_ours_or_nothing(target, sentinel):
    node = {"_target_": target, "command": f"touch {sentinel}"}
    refuse(instantiate, node, "node")
    refuse(instantiate, {"a": [{"b": node}]}, "node")
    if isinstance(target, str):
        refuse(resolve_target, target)


@pytest.mark.parametrize(
    "key", ["_args_", "_partial_", "_convert_", "_recursive_", "__class__", "_target", " _target_"]
)
def test_hydra_s_other_keys_mean_nothing(key, sentinel):
    honest = {"_target_": "eblvm_lit.objectives.sm.SM", key: ["os.system", f"touch {sentinel}"]}
    refuse(instantiate, honest, "node", why="not allowed|has no key")


@pytest.mark.parametrize("target", [t for t in TARGETS if isinstance(t, str) and t.isprintable()][::4])
def test_a_checkpoint_s_targets_are_no_better(target, content, sentinel, tmp_path):
    hostile = copy.deepcopy(content)
    hostile["eblvm_lit"]["config"]["method"]["objective"] = {"_target_": target, "command": f"touch {sentinel}"}
    hostile["eblvm_lit"]["config"]["allow_packages"] = ["os", "builtins", "torch"]
    refuse(evaluate, tmp_path, hostile)


# --- interpolations ---------------------------------------------------------------------------------------

INTERPOLATIONS = [
    *("${oc.env:SECRET}", "a ${oc.env:SECRET} b", "${oc.decode:${oc.env:SECRET}}", "${hydra:runtime.cwd}"),
    *("${oc.create:'{_target_: os.system}'}", "${seed}", "${method}", "${", "\\${oc.env:SECRET}", "${${seed}}"),
]


@pytest.mark.parametrize("text", INTERPOLATIONS)
@pytest.mark.parametrize("where", ["a value", "a key", "a list", "the seed of it"])
def test_nothing_is_looked_up_for_a_checkpoint(text, where, content, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "the secret")
    hostile = copy.deepcopy(content)
    config = hostile["eblvm_lit"]["config"]
    if where == "a key":
        config["data"][text] = 1
    elif where == "a list":
        config["extra"] = [[text]]
    elif where == "a value":
        config["data"]["batch_size"] = text
    else:
        config[text] = config["seed"]
    assert "secret" not in refuse(evaluate, tmp_path, hostile, why="interpolation").lower().replace(text.lower(), "")


# --- folders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../../up", "/absolute", "a/b", "..", ".", "", "x\0y", "a\nb", "-rf", ".hidden", "a\\b"]
)
def test_a_figure_s_name_is_no_path(name, tmp_path):
    refuse(Figures, figures={name: None}, save_dir=str(tmp_path), why="A figure is named by")


def everywhere(node, path=()):
    """The places of a configuration in which a folder is written to."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key in ("save_dir", "cache_dir", "run_dir"):
            yield (*path, key)
        yield from everywhere(value, (*path, key))


def test_no_folder_of_a_checkpoint_is_written_to(content, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    hostile = copy.deepcopy(content)
    config = hostile["eblvm_lit"]["config"]
    config["callbacks"]["figures"] = {
        "_target_": "eblvm_lit.training.callbacks.figures.Figures",
        "figures": {},
        "save_dir": "x",
    }
    config["callbacks"]["evaluation"]["metrics"]["listed"] = [{"deep": [{"save_dir": "x", "cache_dir": "x"}]}]
    places = list(everywhere(config))
    assert len(places) >= 6
    for *path, key in places:
        node = config
        for step in path:
            node = node[step]
        node[key] = str(elsewhere)
    cfg = copy.deepcopy(composed(name="evaluate"))
    cfg.ckpt, cfg.run_dir, cfg.cache_dir = "strange.ckpt", str(tmp_path / "own"), str(tmp_path / "cache")
    stored = stored_config(config, cfg)
    found = run.OmegaConf.to_container(stored)
    assert list(everywhere(found)) == places
    assert str(elsewhere) not in repr([found[part] for part in ("data", "method", "callbacks", "run_dir", "cache_dir")])
    del config["callbacks"]["evaluation"]["metrics"]["listed"]
    evaluate(tmp_path, hostile)
    assert not elsewhere.exists()


@pytest.mark.parametrize("key", ["root", "path", "weights", "folder", "cache_dir"])
def test_a_checkpoint_s_addresses_are_refused(key, content, tmp_path):
    hostile = copy.deepcopy(content)
    hostile["eblvm_lit"]["config"]["callbacks"]["evaluation"]["metrics"]["x"] = {"a": [{key: "https://x.org/a"}]}
    refuse(
        evaluate, tmp_path, hostile, why=rf"callbacks.evaluation.metrics.x.a\[0\].{key}=https://x.org/a is an address"
    )


# --- keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "similar"), [("+treads=2", "threads"), ("+optimiser=adam", "optimizer"), ("+x=1", "")]
)
def test_a_top_level_key_that_nothing_reads_is_refused(override, similar, tmp_path):
    with pytest.raises(ConfigError, match=rf"There is no key '\w+'( \({similar}\?\))?: ") as refusal:
        run.train(configure(override, f"run_dir={tmp_path}"))
    assert similar in str(refusal.value)
    with pytest.raises(ConfigError, match="There is no key"):
        run.evaluate(configure(override, "ckpt=a", f"run_dir={tmp_path}", name="evaluate"))


def test_every_key_there_is_counts():
    for choices in (["method=vages_dsm"], ["method=nce", "data=mnist"]):
        assert set(configure(*choices)) <= set(TRAIN_KEYS)
    chosen = configure("evaluation@callbacks.evaluation.metrics=ksd", "sampler=annealed", name="evaluate")
    assert set(chosen) <= set(EVALUATE_KEYS)
