"""Tiny runs of training and evaluation, in this process or in a subprocess."""

import copy
import functools
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from eblvm_lit.cli.hints import refuse_unread
from eblvm_lit.runs import run
from eblvm_lit.training.loggers.csv import read_rows

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
# The folder of real data beside the checkout, if there is one.
SHARED = Path(os.environ.get("EBLVM_SHARED_DATA", ROOT.parent / "shared" / "data"))

# A tiny run on the digits, which need no file. The last minibatch of an epoch is short (1400 = 21 x 64 + 56). Samples
# take 20 Gibbs sweeps instead of 1,000.
TINY = (
    *("debug=fast", "max_examples=null", "trainer.max_steps=10", "data=digits", "data.batch_size=64", "model.h_dim=3"),
    *("callbacks.figures=null", "trainer.log_every_n_steps=1", "sampler.n_steps=20"),
)


def configure(*overrides, name="config"):
    """Compose a configuration as the command line does, and refuse overrides of keys that nothing reads."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        cfg = compose(name, list(overrides))
    if name == "config":
        refuse_unread(cfg, overrides)
    return cfg


@functools.cache
def pickled(*overrides):
    """Compose a configuration once, and return it pickled: loading it is six times faster than ``copy.deepcopy``."""
    return pickle.dumps(configure(*overrides))


def is_value(override):
    """Return whether an override sets the value of a key.

    Other overrides choose the option of a group, or add or delete a key.
    """
    return (
        bool(re.fullmatch(r"(?!hydra\.)[a-z]\w*(\.\w+)*=.*", override)) and not (CONF / override.split("=")[0]).is_dir()
    )


def configured(*overrides):
    """Compose like ``configure``, but faster: compositions of groups are cached, and values are set afterwards."""
    cfg = pickle.loads(pickled(*(o for o in overrides if not is_value(o))))
    return set_values(cfg, *filter(is_value, overrides))


def with_values(cfg, *values):
    """Return a copy of a configuration with other values."""
    return set_values(copy.deepcopy(cfg), *values)


def set_values(cfg, *values):
    """Set values of a configuration, and return it."""
    for override in OverridesParser.create().parse_overrides(list(values)):
        OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
    return cfg


def tiny(folder, *overrides):
    """Return the configuration of a tiny run that writes into a folder.

    With ``sizes.h_dim`` among the overrides, the model need not have the key ``h_dim`` itself.
    """
    sized = any(x.startswith("sizes.h_dim=") for x in overrides)
    first = [x for x in TINY if not (sized and x.startswith("model.h_dim="))]
    return configured(*first, f"run_dir={folder}", f"outputs_dir={Path(folder).parent}", *overrides)


def train(folder, *overrides):
    """Train a tiny run, and return its metrics."""
    return run.train(tiny(folder, *overrides))


def evaluate(folder, ckpt, *overrides):
    """Evaluate a checkpoint, and return its metrics."""
    return run.evaluate(configure(f"ckpt={ckpt}", f"run_dir={folder}", *overrides, name="evaluate"))


def files(folder):
    """Return the bytes of all files below a folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def of_checkpoint(metrics):
    """Select the final metrics that depend only on the checkpoint, and not on the run's training."""
    return {k: v for k, v in metrics.items() if not k.startswith("train/")}


def checkpoint(folder, name="last"):
    """Load the content of a run's checkpoint."""
    return torch.load(Path(folder) / "checkpoints" / f"{name}.ckpt", weights_only=True)


def curves(folder):
    """Read the rows of a run's curves, without the iterations per second, which depend on the clock."""
    path = Path(folder) / "metrics.csv"
    header = path.read_text().splitlines()[0].split(",")
    assert header[0] == "iteration"
    assert len(header) == len(set(header))
    rows = read_rows(path)
    return [{k: v for k, v in row.items() if k != "train/iterations_per_second"} for row in rows]


def same(a, b):
    """Return whether two nested containers are equal, with tensors compared bit by bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def same_state(one, other, name="last"):
    """Return whether two runs' checkpoints have the same parameters, optimizer states and callbacks' states."""
    a = checkpoint(one, name)
    b = checkpoint(other, name)
    assert a["optimizer_states"]
    return all(same(a[k], b[k]) for k in ("state_dict", "optimizer_states", "global_step", "callbacks"))


def close(one, other, rel=1e-9, name="last"):
    """Return whether two runs' checkpoints have the same parameters, optimizer states and averages up to rounding."""
    a = checkpoint(one, name)
    b = checkpoint(other, name)

    def near(x, y):
        if isinstance(x, dict):
            return x.keys() == y.keys() and all(near(x[k], y[k]) for k in x)
        if isinstance(x, list):
            return len(x) == len(y) and all(map(near, x, y))
        if hasattr(x, "dtype") and x.is_floating_point():
            return bool((x - y).norm() <= rel * x.norm() + 1e-12)
        return same(x, y) if hasattr(x, "dtype") else True

    kept = {"state_dict", "optimizer_states", "averages"} & a.keys()
    return a["global_step"] == b["global_step"] and all(near(a[k], b[k]) for k in kept)


def start(script, *args, folder):
    """Start a script of the repository as a user would, in an empty folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / script), *args],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def save_config(cfg):
    """Convert a configuration to plain containers, as it is stored in a checkpoint."""
    return OmegaConf.to_container(cfg, resolve=True)
